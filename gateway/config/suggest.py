"""Did-you-mean suggestions for names a person typed. Pure text; used by every room that refuses a name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or `None` when nothing is close. Case and `-`/`_` do not count."""
    folded = {_fold(item): item for item in known}
    wanted = _fold(name)
    matches = get_close_matches(wanted, folded, n=1, cutoff=0.7) or [item for item in folded if sorted(item) == sorted(wanted)]
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or the empty string when nothing is close."""
    match = closest(name, known)
    return f"Did you mean {match!r}?" if match is not None else ""


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
