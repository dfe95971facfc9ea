"""Functions over the edges of a graph: which executors are reachable, which run before which, which are in a loop.

Used by `WorkflowBuilder` and by the rules for workflow files, so that both refuse the same graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[str, str]
"""Source and target of an edge."""


def repeated(pairs: Sequence[Pair]) -> list[int]:
    """Return the indexes of edges that repeat an earlier edge."""
    return [index for index, pair in enumerate(pairs) if pair in pairs[:index]]


def reachable(start: str, pairs: Iterable[Pair]) -> set[str]:
    """Return `start` and every id that edges lead to from it."""
    following: dict[str, list[str]] = {}
    for source, target in pairs:
        following.setdefault(source, []).append(target)
    seen, open_ids = {start}, [start]
    while open_ids:
        for target in following.get(open_ids.pop(), []):
            if target not in seen:
                seen.add(target)
                open_ids.append(target)
    return seen


def runs_before(name: str, other: str, pairs: Sequence[Pair]) -> bool:
    """Return whether `name` may have run when `other` runs: a path of at least one edge leads there."""
    return any(other in reachable(target, pairs) for source, target in pairs if source == name)


def on_a_loop(pairs: Sequence[Pair]) -> list[str]:
    """Return the ids from which edges lead back to themselves, in the order of the edges."""
    return [name for name in dict.fromkeys(source for source, _ in pairs) if runs_before(name, name, pairs)]
