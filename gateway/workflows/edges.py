"""Edges and edge groups: they decide which executors receive a message. Names are agent-framework's.

A group decides about one message at a time: a single edge by its condition, a fan-out by its selection, a switch by its first matching
case, a fan-in by waiting for all its sources. `superstep_runner` delivers the messages.
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
"""Function of a message. The edge carries the message if the result is true."""

Selection = Callable[[Any, list[str]], list[str]]
"""Function (message, ids of all targets) → ids of the targets that receive the message."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Carries messages from one executor to another."""

    source_id: str
    target_id: str
    condition: EdgeCondition | None = field(default=None, compare=False)
    max_traversals: int | None = None
    """Maximum number of messages per run; `None` means no limit."""
    condition_name: str | None = None
    """Name of the condition in drawings and in the graph's signature; by default the function's name."""

    @property
    def id(self) -> str:
        """The id of the edge: `source->target`, made of the executor ids."""
        return f"{self.source_id}->{self.target_id}"

    @property
    def has_condition(self) -> bool:
        """Whether a condition filters the messages."""
        return self.condition is not None

    @property
    def label(self) -> str | None:
        """The name of the condition; `None` without a condition."""
        if self.condition is None:
            return None
        return self.condition_name or getattr(self.condition, "__name__", type(self.condition).__name__)

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as JSON-compatible data, with the name of its condition."""
        ends: dict[str, Any] = {"source_id": self.source_id, "target_id": self.target_id}
        named = {"condition_name": self.label, "max_traversals": self.max_traversals}
        return ends | {key: value for key, value in named.items() if value is not None}

    async def should_route(self, data: Any) -> bool:
        """Return whether the condition accepts the message."""
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
    """The case of a switch that receives the messages which no other case matches."""

    target: Executor | Agent


@dataclass(eq=False)
class EdgeGroup:
    """Edges that decide together which executors receive a message, in the order in which the targets were given."""

    edges: list[Edge]

    @property
    def type(self) -> str:
        """The name of the class of this group, such as `FanOutEdgeGroup`."""
        return type(self).__name__

    @property
    def source_executor_ids(self) -> list[str]:
        """Ids of the executors that send to this group."""
        return list(dict.fromkeys(edge.source_id for edge in self.edges))

    @property
    def target_executor_ids(self) -> list[str]:
        """Ids of the executors that may receive from this group."""
        return list(dict.fromkeys(edge.target_id for edge in self.edges))

    async def select(self, message: Any) -> list[Edge]:
        """Return the edges that carry this message. Whether the targets have a handler for its type is checked later."""
        return [edge for edge in self.edges if await edge.should_route(message)]

    @property
    def id(self) -> str:
        """An id made of sources and targets; unique in a validated graph."""
        return f"{self.type}/{','.join(self.source_executor_ids)}->{','.join(self.target_executor_ids)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-compatible data, with the names of its functions."""
        return {"id": self.id, "type": self.type, "edges": [edge.to_dict() for edge in self.edges]}

    def describe(self) -> dict[str, Any]:
        """Return the text that stands for this group in the graph's signature, which checkpoints contain."""
        return {"type": self.type, "edges": [[edge.source_id, edge.target_id, edge.label, edge.max_traversals] for edge in self.edges]}


class SingleEdgeGroup(EdgeGroup):
    """A group of one edge."""

    def __init__(
        self, source_id: str, target_id: str, condition: EdgeCondition | None = None, *, max_traversals: int | None = None
    ) -> None:
        super().__init__([Edge(source_id, target_id, condition, max_traversals)])


class FanOutEdgeGroup(EdgeGroup):
    """Edges from one executor to several: to all, or to those that `selection_func` returns."""

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
        """Return the edges to the chosen targets, in the order chosen.

        Raises:
            RuntimeError: The selection returned an id that is not a target.
        """
        if self.selection_func is None:
            return list(self.edges)
        by_target = {edge.target_id: edge for edge in self.edges}
        chosen = self.selection_func(message, list(by_target))
        unknown = [name for name in chosen if name not in by_target]
        if unknown:
            known = ", ".join(map(repr, by_target))
            raise RuntimeError(f"Invalid selection result: {unknown[0]!r} is not a target; the targets are {known}.")
        return [by_target[name] for name in chosen]

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-compatible data, with the name of the selection function."""
        return {**EdgeGroup.to_dict(self), "selection_func_name": self._selection_name}

    def describe(self) -> dict[str, Any]:
        """Return the text for the graph's signature, with the name of the selection function."""
        return {**EdgeGroup.describe(self), "selection": self._selection_name}

    @property
    def _selection_name(self) -> str | None:
        return getattr(self.selection_func, "__name__", None)


class FanInEdgeGroup(EdgeGroup):
    """Edges from several executors to one target, which receives a list of messages as soon as each source has sent one."""

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
    """A case of a switch, with the id of its target."""

    condition: Callable[[Any], bool]
    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON-compatible data, with the name of its condition."""
        return {"target_id": self.target_id, "type": "Case", "condition_name": getattr(self.condition, "__name__", "")}


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupDefault:
    """The default case of a switch, with the id of its target."""

    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON-compatible data."""
        return {"target_id": self.target_id, "type": "Default"}


class SwitchCaseEdgeGroup(FanOutEdgeGroup):
    """Edges to the target of the first case whose condition is true, otherwise to the default target."""

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
        """Return the target id of the first case whose condition is true, otherwise that of the default case.

        A condition that raises an exception counts as false.
        """
        for case in self.cases:
            if isinstance(case, SwitchCaseEdgeGroupDefault):
                continue
            try:
                if case.condition(message):
                    return [case.target_id]
            except ToolFailed:  # a workflow file's condition raises it to end the run
                raise
            except Exception as error:  # user code; a later case may accept the type
                logger.warning("switch condition failed case=%s error=%s", case.target_id, error)
        return [case.target_id for case in self.cases if isinstance(case, SwitchCaseEdgeGroupDefault)]

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-compatible data, with its cases."""
        return {**EdgeGroup.to_dict(self), "cases": [case.to_dict() for case in self.cases]}

    def describe(self) -> dict[str, Any]:
        """Return the text for the graph's signature, with the names of the conditions."""
        names = [None if isinstance(case, SwitchCaseEdgeGroupDefault) else getattr(case.condition, "__name__", "") for case in self.cases]
        return {**EdgeGroup.describe(self), "cases": names}


class InternalEdgeGroup(EdgeGroup):
    """The edge from an executor to itself that carries responses to its requests."""

    def __init__(self, executor_id: str) -> None:
        super().__init__([Edge(internal_source(executor_id), executor_id)])


def internal_source(executor_id: str) -> str:
    """Return the id that messages with responses to an executor's requests have as their source."""
    return f"internal:{executor_id}"
