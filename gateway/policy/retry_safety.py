"""Decides whether a tool may be called again with the same arguments, and whether a failed request may be sent again.

`is_idempotent` is used by `gate.tool_rules`, for a task's step that was in flight when its process died, and by the middleware that retries
an agent's tool calls; `may_resend` is used by `upstream.delivery` and `MCPTool`, which send the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.errors import OutcomeUnknown, RequestFailure, SessionGone
from gateway.json_types import JsonMapping

_REPEATABLE = frozenset({
    *("completion/complete", "prompts/get", "resources/directory/read", "resources/read", "skills/get", "skills/list"),
    *("tasks/cancel", "tasks/get", "tasks/result", "tasks/update"),
})
"""Methods whose second request has no further effect: it reads, cancels the same task, or gives a task the same answers."""


def is_idempotent(name: str, annotations: JsonMapping | None, *, idempotent: Sequence[str], trust_annotations: bool) -> bool:
    """Return whether a second call of a tool with the same arguments has no further effect. `name` is the tool's name at its source.

    That is assumed if a glob of the operator's list `idempotent` matches the name, or if the tool's annotations (`readOnlyHint`,
    `idempotentHint`) say so and `trust_annotations` is true. Annotations of the gateway's own tools are trusted; annotations of a remote
    server only if its policy sets `trustAnnotations`.
    """
    if any(fnmatchcase(name, pattern) for pattern in idempotent):
        return True
    hints = annotations or {}
    return trust_annotations and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)


def may_resend(
    failure: RequestFailure,
    method: str,
    params: JsonMapping,
    annotations: JsonMapping | None = None,
    *,
    idempotent: Sequence[str] = (),
    trust_annotations: bool = False,
) -> bool:
    """Return whether to send a failed request to a server once more, on a new MCP session.

    A request that was not accepted because the session no longer exists may be sent again. A request that may have run may be sent again
    only if it reads, is about a task, or calls an idempotent tool without requesting a task. After any other failure, a second attempt
    would fail too. `annotations` are those of the called tool.
    """
    match failure:
        case SessionGone():
            return True
        case OutcomeUnknown():
            if method != "tools/call":
                return method in _REPEATABLE
            name = params.get("name")
            if not isinstance(name, str) or "task" in params:
                return False
            return is_idempotent(name, annotations, idempotent=idempotent, trust_annotations=trust_annotations)
        case _:
            return False
