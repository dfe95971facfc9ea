"""Decides what may run a second time: a tool (`is_idempotent`), and a request that failed (`may_resend`).

Used by `gate.tool_rules` for a step that was in flight when its process died, by agents' retries, and by `upstream.delivery`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.errors import OutcomeUnknown, RequestFailure, SessionGone
from gateway.json_types import JsonMapping


def is_idempotent(name: str, annotations: JsonMapping | None, *, idempotent: Sequence[str], trust_annotations: bool) -> bool:
    """Return whether a second call of this tool (native name) with the same arguments has no further effect.

    That is assumed if the operator listed the tool (`idempotent`, globs), or if its annotations (`readOnlyHint`, `idempotentHint`) say so
    and are trusted. Annotations of our own tools are trusted, those of a remote server only with `trustAnnotations`.
    """
    if any(fnmatchcase(name, pattern) for pattern in idempotent):
        return True
    hints = annotations or {}
    return trust_annotations and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)


def may_resend(
    failure: RequestFailure,
    method: str,
    params: JsonMapping,
    annotations: JsonMapping | None,
    *,
    idempotent: Sequence[str],
    trust_annotations: bool,
) -> bool:
    """Return whether to send a failed request once more, on a new session. `annotations` are those of the tool that it calls.

    A request that a lost session did not accept may be sent again. One that may have run may be sent again only if it is a plain call of
    an idempotent tool; a call that asked for a task is not plain. After any other failure the second attempt would fail the same way.
    """
    match failure:
        case SessionGone():
            return True
        case OutcomeUnknown():
            name = params.get("name")
            if method != "tools/call" or not isinstance(name, str) or "task" in params:
                return False
            return is_idempotent(name, annotations, idempotent=idempotent, trust_annotations=trust_annotations)
        case _:
            return False
