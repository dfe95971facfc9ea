"""Finds the known name most similar to a misspelled name, for suggestions in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most similar to `name`, or `None` if no name is similar. Case, `-` and `_` are ignored."""
    folded = {_fold(item): item for item in known}
    wanted = _fold(name)
    matches = get_close_matches(wanted, folded, n=1, cutoff=0.7) or [item for item in folded if sorted(item) == sorted(wanted)]
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` with the name in `known` that is most similar to `name`; an empty string if no name is similar."""
    match = closest(name, known)
    return f"Did you mean {match!r}?" if match is not None else ""


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
