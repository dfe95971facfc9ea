"""Decides whether a tool may be called again with the same arguments, and whether a failed request may be resent.

`is_idempotent` decides about tools. `gate.tool_rules` uses it for the steps of tasks that were in flight when their process died, and the
middleware `agents.middleware.call_retry` uses it to retry an agent's tool calls. `may_resend` decides about requests. `upstream.delivery`
and `MCPTool`, which send the requests, use it. Three kinds of requests are resent without it, because the server has not run
them: `HttpOrSdkCarrier` sends `server/discover`, which only reads, once more on the SDK path; `TaskFollower` sends a call without a task if
the server rejected it as a task (error -32601 or -32602); and `AuthorizedTransport` sends a request with new credentials if the server
rejected it with 401 or 403.
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
"""Methods of requests that may be repeated if they may have run: they read, cancel the same task, or give a task the same answers."""


def is_idempotent(name: str, annotations: JsonMapping | None, *, idempotent: Sequence[str], trust_annotations: bool) -> bool:
    """Return whether a second call of a tool with the same arguments has no further effect. `name` is the tool's name at its source.

    A tool is idempotent if a glob of the operator's list `idempotent` matches its name. With `trust_annotations`, a tool is also idempotent
    if its annotations say so (`readOnlyHint` or `idempotentHint`). The gateway trusts annotations of its own tools; it trusts annotations
    of a remote server only if the server's policy sets `trustAnnotations`.
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

    A request may be resent if the server did not accept it because the session no longer exists. A request that may have run may be
    resent only if `_REPEATABLE` contains its method, or if it calls an idempotent tool without requesting a task. After any other failure,
    a second attempt would fail too. `annotations` are the annotations of the called tool.
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
