"""Functions on the edges of a workflow graph: they find repeated edges, unreachable executors, loops, and the order of executors.

The validation of graphs (`validation`) and the checks of workflow files (`file_rules`) use them, so that both reject the same
repeated edges and unreachable executors. `source` and `file_report` use them to find workflows that call each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[str, str]
"""An edge of a graph, as a pair of ids: source and target."""


def repeated(pairs: Sequence[Pair]) -> list[int]:
    """Return the indexes in `pairs` of edges that have the same source and target as an earlier edge."""
    return [index for index, pair in enumerate(pairs) if pair in pairs[:index]]


def reachable(start: str, pairs: Iterable[Pair]) -> set[str]:
    """Return `start` and every id that can be reached from `start` along the edges in `pairs`."""
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
    """Return whether the executor `name` may run before `other`: a path of at least one edge leads from `name` to `other`."""
    return any(other in reachable(target, pairs) for source, target in pairs if source == name)


def on_a_loop(pairs: Sequence[Pair]) -> list[str]:
    """Return the ids from which edges lead back to the same id, so that they are part of a loop. The result has the order of the edges."""
    return [name for name in dict.fromkeys(source for source, _ in pairs) if runs_before(name, name, pairs)]
