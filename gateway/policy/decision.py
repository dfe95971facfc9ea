"""The verdicts of policy, as values. Made by `policy`, acted on by whoever asked; never raised."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class Pass:
    """Go on with what was judged, unchanged."""


PASS = Pass()
"""The one `Pass` the happy path hands out; compare with `isinstance`."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Go on with `arguments` instead of what was judged (the original is untouched)."""

    arguments: JsonObject
    """The arguments of a call, or the whole request where a request was judged."""
    dropped: tuple[str, ...] = ()
    """Names that were taken out, in the order they came."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Do not go on."""

    rule: str
    """Stable id of the rule, as in the configuration where it stands there: `arguments.read_text.path`."""
    reason: str
    """For the model or the operator: what is wrong and what is expected. Never echoes long values."""
    dropped: tuple[str, ...] = ()
    """Argument names that had been taken out before the refusal."""


Verdict = Pass | Rewrite | Reject
"""How a judgement can end."""
