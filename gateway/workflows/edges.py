"""Edges and edge groups of a workflow graph: they decide which executors receive a message.

A group decides about one message at a time: a single edge by its condition, a fan-out by its selection function, a switch by its first
matching case, a fan-in by waiting for messages of all its sources. `superstep_runner` delivers the messages. Public names are those of
Microsoft's agent-framework.
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
"""Type of an edge's condition: a function, sync or async, of a message. The edge carries the message if the result is true."""

Selection = Callable[[Any, list[str]], list[str]]
"""Type of a fan-out's selection function (not async): (message, ids of all targets) → ids of the targets that receive the message."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection in a workflow graph that carries messages from one executor to another."""

    source_id: str
    target_id: str
    condition: EdgeCondition | None = field(default=None, compare=False)
    max_traversals: int | None = None
    """Maximum number of messages that the edge carries per run; `None` means no limit."""
    condition_name: str | None = None
    """Name of the condition in drawings and in the graph's signature (`graph_signature_hash`); by default the function's name."""

    @property
    def id(self) -> str:
        """Id of the edge: `source->target`, with the ids of the two executors."""
        return f"{self.source_id}->{self.target_id}"

    @property
    def has_condition(self) -> bool:
        """Whether the edge has a condition, so that it carries only some of the messages."""
        return self.condition is not None

    @property
    def label(self) -> str | None:
        """The name of the edge's condition for drawings, or `None` if the edge has no condition."""
        if self.condition is None:
            return None
        return self.condition_name or getattr(self.condition, "__name__", type(self.condition).__name__)

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as JSON-compatible data. The condition is represented by its name."""
        ends: dict[str, Any] = {"source_id": self.source_id, "target_id": self.target_id}
        named = {"condition_name": self.label, "max_traversals": self.max_traversals}
        return ends | {key: value for key, value in named.items() if value is not None}

    async def should_route(self, data: Any) -> bool:
        """Return whether the edge carries the message `data`: it has no condition, or the condition's result is true."""
        if self.condition is None:
            return True
        verdict = self.condition(data)
        return bool(await verdict) if inspect.isawaitable(verdict) else bool(verdict)


@dataclass
class Case:
    """One case of a switch (`add_switch_case_edge_group`): messages for which `condition`, and no earlier one, is true go to `target`.

    `condition` must not be async.
    """

    condition: Callable[[Any], bool]
    target: Executor | Agent


@dataclass
class Default:
    """The default case of a switch (`add_switch_case_edge_group`): messages that match no other case go to `target`."""

    target: Executor | Agent


@dataclass(eq=False)
class EdgeGroup:
    """Edges of a workflow graph that decide together which executors receive a message. Their order is that of the given ids.

    Base class of groups with one edge, with edges to several executors (fan-out, switch), and with edges from several executors (fan-in).
    """

    edges: list[Edge]

    @property
    def type(self) -> str:
        """The class name of this edge group, such as `FanOutEdgeGroup`."""
        return type(self).__name__

    @property
    def source_executor_ids(self) -> list[str]:
        """Ids of the executors whose messages this group carries, each once."""
        return list(dict.fromkeys(edge.source_id for edge in self.edges))

    @property
    def target_executor_ids(self) -> list[str]:
        """Ids of the executors that may receive messages from this group, each once."""
        return list(dict.fromkeys(edge.target_id for edge in self.edges))

    async def select(self, message: Any) -> list[Edge]:
        """Return the edges of the group that carry this message.

        Whether the target executors have a handler for the type of the message is checked later.
        """
        return [edge for edge in self.edges if await edge.should_route(message)]

    @property
    def id(self) -> str:
        """Id of the edge group, made of its class name, source ids and target ids. Unique in a validated graph."""
        return f"{self.type}/{','.join(self.source_executor_ids)}->{','.join(self.target_executor_ids)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the edge group as JSON-compatible data. Conditions are represented by their names."""
        return {"id": self.id, "type": self.type, "edges": [edge.to_dict() for edge in self.edges]}

    def describe(self) -> dict[str, Any]:
        """Return the data of this edge group that goes into the graph's signature.

        The signature is a digest of the graph. Checkpoints contain it, so that a graph does not restore checkpoints of another graph.
        """
        return {"type": self.type, "edges": [[edge.source_id, edge.target_id, edge.label, edge.max_traversals] for edge in self.edges]}


class SingleEdgeGroup(EdgeGroup):
    """An edge group with one edge, which may have a condition, and a limit on the number of messages that it carries per run."""

    def __init__(
        self, source_id: str, target_id: str, condition: EdgeCondition | None = None, *, max_traversals: int | None = None
    ) -> None:
        super().__init__([Edge(source_id, target_id, condition, max_traversals)])


class FanOutEdgeGroup(EdgeGroup):
    """Edges from one executor to several. A message goes to all targets, or to the targets that `selection_func` returns for it."""

    def __init__(self, source_id: str, target_ids: Sequence[str], selection_func: Selection | None = None) -> None:
        """Create edges from `source_id` to each target, in this order. By default, a message goes to all targets.

        With `selection_func`, a message goes only to the targets that this function returns.

        Raises:
            ValueError: `target_ids` has fewer than two ids.
        """
        if len(target_ids) <= 1:
            raise ValueError("FanOutEdgeGroup must contain at least two targets; use add_edge for one.")
        super().__init__([Edge(source_id, target) for target in target_ids])
        self.selection_func = selection_func

    async def select(self, message: Any) -> list[Edge]:
        """Return the edges that carry this message: all, or the edges to the targets that `selection_func` returns, in the returned order.

        Raises:
            RuntimeError: `selection_func` returned an id that is not a target.
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
        """Return the fan-out as JSON-compatible data. Its selection function is represented by its name."""
        return {**EdgeGroup.to_dict(self), "selection_func_name": self._selection_name}

    def describe(self) -> dict[str, Any]:
        """Return the data of this fan-out that goes into the graph's signature, including the name of the selection function.

        The signature is a digest of the graph. Checkpoints contain it, so that a graph does not restore checkpoints of another graph.
        """
        return {**EdgeGroup.describe(self), "selection": self._selection_name}

    @property
    def _selection_name(self) -> str | None:
        return getattr(self.selection_func, "__name__", None)


class FanInEdgeGroup(EdgeGroup):
    """Edges from several executors to one target. When each source has sent a message, the target receives them as one list."""

    def __init__(self, source_ids: Sequence[str], target_id: str) -> None:
        """Create edges from each source to `target_id`. The order of sources is the order of their messages in the list.

        Raises:
            ValueError: `source_ids` has fewer than two ids.
        """
        if len(source_ids) <= 1:
            raise ValueError("FanInEdgeGroup must contain at least two sources; use add_edge for one.")
        super().__init__([Edge(source, target_id) for source in source_ids])


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupCase:
    """A case of a switch in a built graph: messages for which `condition`, and no earlier one, is true go to the executor `target_id`."""

    condition: Callable[[Any], bool]
    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return this case of a switch as JSON-compatible data. The condition is represented by its name."""
        return {"target_id": self.target_id, "type": "Case", "condition_name": getattr(self.condition, "__name__", "")}


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupDefault:
    """The default case of a switch in a built graph: messages that match no other case go to the executor `target_id`."""

    target_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return this default case of a switch as JSON-compatible data, with the id of its target executor."""
        return {"target_id": self.target_id, "type": "Default"}


class SwitchCaseEdgeGroup(FanOutEdgeGroup):
    """Edges from one executor to several, as a switch: a message goes to the target of the first case whose condition is true.

    A message for which no condition is true goes to the target of the default case.
    """

    def __init__(self, source_id: str, cases: Sequence[SwitchCaseEdgeGroupCase | SwitchCaseEdgeGroupDefault]) -> None:
        """Create edges from `source_id` to the targets of the cases, which are tried in this order.

        Raises:
            ValueError: There are fewer than two cases, or the number of default cases is not one.
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
        """Return the target id of the first case whose condition is true, or of the default case if no condition is true.

        A condition that raises an exception counts as false, except that `ToolFailed` is raised to the caller.
        """
        for case in self.cases:
            if isinstance(case, SwitchCaseEdgeGroupDefault):
                continue
            try:
                if case.condition(message):
                    return [case.target_id]
            except ToolFailed:  # conditions of workflow files raise `ToolFailed` to end the run
                raise
            except Exception as error:  # the condition is user code; a later case may accept this type of message
                logger.warning("switch condition failed case=%s error=%s", case.target_id, error)
        return [case.target_id for case in self.cases if isinstance(case, SwitchCaseEdgeGroupDefault)]

    def to_dict(self) -> dict[str, Any]:
        """Return the switch as JSON-compatible data, with its cases. Conditions are represented by their names."""
        return {**EdgeGroup.to_dict(self), "cases": [case.to_dict() for case in self.cases]}

    def describe(self) -> dict[str, Any]:
        """Return the data of this switch that goes into the graph's signature, including the names of the conditions.

        The signature is a digest of the graph. Checkpoints contain it, so that a graph does not restore checkpoints of another graph.
        """
        names = [None if isinstance(case, SwitchCaseEdgeGroupDefault) else getattr(case.condition, "__name__", "") for case in self.cases]
        return {**EdgeGroup.describe(self), "cases": names}


class InternalEdgeGroup(EdgeGroup):
    """An edge group with one edge that the engine adds for each executor. The edge delivers responses to requests of this executor."""

    def __init__(self, executor_id: str) -> None:
        super().__init__([Edge(internal_source(executor_id), executor_id)])


def internal_source(executor_id: str) -> str:
    """Return the source id of messages that deliver responses to requests of this executor. It is not the id of an executor."""
    return f"internal:{executor_id}"
