"""The verdicts that policy functions return: `Pass`, `Rewrite` and `Reject`. They are values for the calling code, not exceptions."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class Pass:
    """Verdict of a policy function: accept the input unchanged."""


PASS = Pass()
"""The shared instance of `Pass`, which has no fields. To test for a verdict, use `isinstance`."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Verdict of a policy function: continue with `arguments` in place of the input, which is not modified."""

    arguments: JsonObject
    """Replacement of the input: the arguments of a call, or the whole request or result if a request or result was judged."""
    dropped: tuple[str, ...] = ()
    """Names of arguments that were removed, in their original order."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Verdict of a policy function: reject the input."""

    rule: str
    """Stable id of the rule that rejects the input. For a rule in the configuration, its path there, such as `arguments.read_text.path`."""
    reason: str
    """Text for the model or the operator: what is wrong and what is expected. Long values are never repeated."""
    dropped: tuple[str, ...] = ()
    """Names of arguments that were removed from the call before the rejection."""


Verdict = Pass | Rewrite | Reject
"""Result of a policy function: accept the input, replace it, or reject it."""
