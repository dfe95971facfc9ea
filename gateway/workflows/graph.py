"""`Graph` and `Edge`: the built shape of a workflow, and what is wrong with a shape.

Pure data and checks, shared by the builder and by workflow files, so both refuse the same graphs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.workflows.executor import Executor

EdgeCondition = Callable[[Any], bool | Awaitable[bool]]
"""Judges the message; the edge carries it only when true."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Carries messages of one executor to another."""

    source_id: str
    target_id: str
    condition: EdgeCondition | None = None
    max_traversals: int | None = None
    """Messages it carries in one run; `None` means no limit."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph."""

    start_id: str
    executors: Mapping[str, Executor]
    edges: tuple[Edge, ...]
    """Their order is the order of messages."""
    output_ids: frozenset[str] | None = None
    """Executors whose outputs count; `None` means all."""
    outgoing: Mapping[str, tuple[tuple[int, Edge], ...]] = field(init=False)
    """Edges by source, each with its index in `edges`."""

    def __post_init__(self) -> None:
        outgoing: dict[str, list[tuple[int, Edge]]] = {name: [] for name in self.executors}
        for index, edge in enumerate(self.edges):
            outgoing[edge.source_id].append((index, edge))
        object.__setattr__(self, "outgoing", {name: tuple(edges) for name, edges in outgoing.items()})


Pair = tuple[str, str]
"""Source and target of an edge."""


def repeated(pairs: Sequence[Pair]) -> list[int]:
    """Indexes of edges that repeat an earlier one."""
    return [index for index, pair in enumerate(pairs) if pair in pairs[:index]]


def reachable(start: str, pairs: Iterable[Pair]) -> set[str]:
    """`start` and everything edges lead to from it."""
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
    """Whether `name` can have run when `other` runs: a path of at least one edge leads there."""
    return any(other in reachable(target, pairs) for source, target in pairs if source == name)


def on_a_loop(pairs: Sequence[Pair]) -> list[str]:
    """Executors from which edges lead back to themselves, in edge order."""
    return [name for name in dict.fromkeys(source for source, _ in pairs) if runs_before(name, name, pairs)]
