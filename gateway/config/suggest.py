"""Did-you-mean suggestions for names that a person typed. Pure; used by every package that reports an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or `None` if none is close. Case and `-`/`_` are ignored."""
    folded = {_fold(item): item for item in known}
    wanted = _fold(name)
    matches = get_close_matches(wanted, folded, n=1, cutoff=0.7) or [item for item in folded if sorted(item) == sorted(wanted)]
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?`, or the empty string if no name is close."""
    match = closest(name, known)
    return f"Did you mean {match!r}?" if match is not None else ""


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
