"""Edges and edge groups: where messages of an executor go. Names are agent-framework's.

A group decides over one message at a time: a single edge by its condition, a fan-out by its selection, a switch by its
first matching case, a fan-in by waiting for all its sources. Delivering is `runner`'s.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import ToolFailed

if TYPE_CHECKING:
    from gateway.agents.agent import Agent
    from gateway.workflows.executor import Executor

logger = logging.getLogger(__name__)

EdgeCondition = Callable[[Any], bool | Awaitable[bool]]
"""Judges the message; the edge carries it only when true."""

Selection = Callable[[Any, list[str]], list[str]]
"""Of a message and the ids of all targets, the targets that get it."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Carries messages of one executor to another."""

    source_id: str
    target_id: str
    condition: EdgeCondition | None = field(default=None, compare=False)
    max_traversals: int | None = None
    """Messages it carries in one run; `None` means no limit."""
    condition_name: str | None = None
    """What to call the condition in drawings and in the graph's signature; by default its function's name."""

    @property
    def id(self) -> str:
        """`source->target`."""
        return f"{self.source_id}->{self.target_id}"

    @property
    def has_condition(self) -> bool:
        """Whether it carries some messages only."""
        return self.condition is not None

    @property
    def label(self) -> str | None:
        """The name of its condition, where it has one."""
        if self.condition is None:
            return None
        return self.condition_name or getattr(self.condition, "__name__", type(self.condition).__name__)

    def to_dict(self) -> dict[str, Any]:
        """The edge as data, its condition by name."""
        ends: dict[str, Any] = {"source_id": self.source_id, "target_id": self.target_id}
        named = {"condition_name": self.label, "max_traversals": self.max_traversals}
        return ends | {key: value for key, value in named.items() if value is not None}

    async def should_route(self, data: Any) -> bool:
        """Whether the condition lets the message pass."""
        if self.condition is None:
            return True
        verdict = self.condition(data)
        return bool(await verdict) if inspect.isawaitable(verdict) else bool(verdict)


@dataclass
class Case:
    """One case of a switch."""

    condition: Callable[[Any], bool]
    target: Executor | Agent


@dataclass
class Default:
    """The case of a switch that takes what no other took."""

    target: Executor | Agent


@dataclass(eq=False)
class EdgeGroup:
    """Edges that decide together. `edges` is in the order in which targets were given."""

    edges: list[Edge]

    @property
    def type(self) -> str:
        """The name of the kind."""
        return type(self).__name__

    @property
    def source_executor_ids(self) -> list[str]:
        """Where its messages come from."""
        return list(dict.fromkeys(edge.source_id for edge in self.edges))

    @property
    def target_executor_ids(self) -> list[str]:
        """Where they may go."""
        return list(dict.fromkeys(edge.target_id for edge in self.edges))

    async def select(self, message: Any) -> list[Edge]:
        """The edges that want this message, before types are looked at."""
        return [edge for edge in self.edges if await edge.should_route(message)]

    @property
    def id(self) -> str:
        """What it connects; unique in a graph that was checked."""
        return f"{self.type}/{','.join(self.source_executor_ids)}->{','.join(self.target_executor_ids)}"

    def to_dict(self) -> dict[str, Any]:
        """The group as data, functions by name."""
        return {"id": self.id, "type": self.type, "edges": [edge.to_dict() for edge in self.edges]}

    def describe(self) -> dict[str, Any]:
        """What the graph's signature says about it."""
        return {"type": self.type, "edges": [[edge.source_id, edge.target_id, edge.label, edge.max_traversals] for edge in self.edges]}


class SingleEdgeGroup(EdgeGroup):
    """One edge."""

    def __init__(
        self, source_id: str, target_id: str, condition: EdgeCondition | None = None, *, max_traversals: int | None = None
    ) -> None:
        super().__init__([Edge(source_id, target_id, condition, max_traversals)])


class FanOutEdgeGroup(EdgeGroup):
    """From one executor to several: to all, or to those that `selection_func` picks."""

    def __init__(self, source_id: str, target_ids: Sequence[str], selection_func: Selection | None = None) -> None:
        """
        Raises:
            ValueError: There are fewer than two targets.
        """
        if len(target_ids) <= 1:
            raise ValueError("FanOutEdgeGroup must contain at least two targets; use add_edge for one.")
        super().__init__([Edge(source_id, target) for target in target_ids])
        self.selection_func = selection_func

    async def select(self, message: Any) -> list[Edge]:
        """The chosen targets, in the order chosen.

        Raises:
            RuntimeError: The selection named somebody else.
        """
        if self.selection_func is None:
            return list(self.edges)
        by_target = {edge.target_id: edge for edge in self.edges}
        chosen = self.selection_func(message, list(by_target))
        unknown = [name for name in chosen if name not in by_target]
        if unknown:
            raise RuntimeError(f"Invalid selection result: {unknown[0]!r} is no target; the targets are {', '.join(map(repr, by_target))}.")
        return [by_target[name] for name in chosen]

    def to_dict(self) -> dict[str, Any]:
        """With the name of the selection."""
        return {**EdgeGroup.to_dict(self), "selection_func_name": self._selection_name}

    def describe(self) -> dict[str, Any]:
        """With the name of the selection."""
        return {**EdgeGroup.describe(self), "selection": self._selection_name}

    @property
    def _selection_name(self) -> str | None:
        return getattr(self.selection_func, "__name__", None)


class FanInEdgeGroup(EdgeGroup):
    """From several executors to one, which gets a list as soon as each of them has sent something."""

    def __init__(self, source_ids: Sequence[str], target_id: str) -> None:
        """
        Raises:
            ValueError: There are fewer than two sources.
        """
        if len(source_ids) <= 1:
            raise ValueError("FanInEdgeGroup must contain at least two sources; use add_edge for one.")
        super().__init__([Edge(source, target_id) for source in source_ids])


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupCase:
    """A case with its target's id."""

    condition: Callable[[Any], bool]
    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """The case as data, its condition by name."""
        return {"target_id": self.target_id, "type": "Case", "condition_name": getattr(self.condition, "__name__", "")}


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupDefault:
    """The default case with its target's id."""

    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """The case as data."""
        return {"target_id": self.target_id, "type": "Default"}


class SwitchCaseEdgeGroup(FanOutEdgeGroup):
    """To the target of the first case that holds, else to the default's."""

    def __init__(self, source_id: str, cases: Sequence[SwitchCaseEdgeGroupCase | SwitchCaseEdgeGroupDefault]) -> None:
        """
        Raises:
            ValueError: There are fewer than two cases, or not exactly one default.
        """
        if len(cases) < 2:
            raise ValueError("SwitchCaseEdgeGroup must contain at least two cases (including the default case).")
        if sum(isinstance(case, SwitchCaseEdgeGroupDefault) for case in cases) != 1:
            raise ValueError("SwitchCaseEdgeGroup must contain exactly one default case.")
        targets = list(dict.fromkeys(case.target_id for case in cases))
        EdgeGroup.__init__(self, [Edge(source_id, target) for target in targets])
        self.cases = list(cases)
        self.selection_func = self._choose

    def _choose(self, message: Any, targets: list[str]) -> list[str]:
        """Cases in order, the default last wherever it stands; a condition that cannot judge the message does not hold."""
        for case in self.cases:
            if isinstance(case, SwitchCaseEdgeGroupDefault):
                continue
            try:
                if case.condition(message):
                    return [case.target_id]
            except ToolFailed:  # raised on purpose
                raise
            except Exception as error:  # a condition is the user's; the next case may know the type
                logger.warning("the condition of case %r failed: %s", case.target_id, error)
        return [case.target_id for case in self.cases if isinstance(case, SwitchCaseEdgeGroupDefault)]

    def to_dict(self) -> dict[str, Any]:
        """With the cases."""
        return {**EdgeGroup.to_dict(self), "cases": [case.to_dict() for case in self.cases]}

    def describe(self) -> dict[str, Any]:
        """With the names of the conditions."""
        names = [None if isinstance(case, SwitchCaseEdgeGroupDefault) else getattr(case.condition, "__name__", "") for case in self.cases]
        return {**EdgeGroup.describe(self), "cases": names}


class InternalEdgeGroup(EdgeGroup):
    """From an executor to itself: how answers to its own requests reach it."""

    def __init__(self, executor_id: str) -> None:
        super().__init__([Edge(internal_source(executor_id), executor_id)])


def internal_source(executor_id: str) -> str:
    """The source of an executor's responses."""
    return f"internal:{executor_id}"
