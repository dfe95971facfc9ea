"""Whether what may have run already may run again.

Decided here alone: for a tool (`is_repeatable`: a step in flight when its process died, `tools.guard`), and for a request whose
connection broke (`may_repeat`, `upstream.delivery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from gateway.json_types import JsonMapping

Fate = Literal["unsent", "unknown"]
"""What is known of the failed request: it never reached the server (or was turned away unread), or it may have run."""


def is_repeatable(name: str, annotations: JsonMapping | None, *, idempotent: Sequence[str], trust_annotations: bool) -> bool:
    """Whether a second call of this tool (native name) changes nothing more, as far as the operator is to be believed.

    The operator marked it (`idempotent`, globs), or it says so itself (`readOnlyHint`, `idempotentHint`) and its source is
    trusted with that: ours are, a remote server where `trustAnnotations` is set.
    """
    if any(fnmatchcase(name, pattern) for pattern in idempotent):
        return True
    hints = annotations or {}
    return trust_annotations and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)


def may_repeat(
    fate: Fate, method: str, params: JsonMapping, annotations: JsonMapping | None, *, idempotent: Sequence[str], trust_annotations: bool
) -> bool:
    """Whether to send the same request once more, over a new connection.

    What was never sent may go again (requirements MC9). What may have run goes again only if it is a plain call of a tool that
    is `is_repeatable`; a call that asked to become a task never does (requirements 3.C).
    """
    if fate == "unsent":
        return True
    name = params.get("name")
    if method != "tools/call" or not isinstance(name, str) or "task" in params:
        return False
    return is_repeatable(name, annotations, idempotent=idempotent, trust_annotations=trust_annotations)
