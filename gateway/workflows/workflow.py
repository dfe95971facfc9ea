"""`Workflow`: a built graph that can be run, seen as a result or as a stream of events.

How rounds work is `runner`'s. Made by `WorkflowBuilder`; run by people's code, by `WorkflowTool`, as an agent
(`workflow_agent`) and inside another workflow (`sub_workflow`).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio

from gateway.former import FormerMethods
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.types.responses import ResponseStream
from gateway.workflows.annotations import coerced, is_instance_of, name_of
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.edges import EdgeGroup, InternalEdgeGroup
from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.exclusive import OneRun, Turn
from gateway.workflows.executor import Executor
from gateway.workflows.messages import RUN_KWARGS_KEY, WorkflowMessage
from gateway.workflows.request import RunRequest
from gateway.workflows.runner import DEFAULT_MAX_ITERATIONS, START_SOURCE, OnEvent, Runner, RunState
from gateway.workflows.snapshots import book_of, give_back
from gateway.workflows.stream import live
from gateway.workflows.tracing import traced_run
from gateway.workflows.workflow_agent import WorkflowAgent

if TYPE_CHECKING:
    from gateway.sessions.context import ContextProvider


@dataclass(frozen=True, slots=True)
class OutputDesignation:
    """Whose outputs count. `outputs=None` means everybody's."""

    outputs: frozenset[str] | None = None
    intermediates: frozenset[str] = frozenset()

    def classify(self, executor_id: str) -> Literal["output", "intermediate"] | None:
        """What an executor's output is to the caller; `None` when it is hidden."""
        if self.outputs is None or executor_id in self.outputs:
            return "output"
        return "intermediate" if executor_id in self.intermediates else None


class Workflow(FormerMethods):
    """A graph ready to run. Its executors and shared state live on between runs, so it does one run at a time (WF10)."""

    def __init__(
        self,
        edge_groups: Sequence[EdgeGroup],
        executors: Mapping[str, Executor],
        start_executor: Executor,
        *,
        name: str = "",
        description: str | None = None,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        designation: OutputDesignation | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
    ) -> None:
        """Use `WorkflowBuilder`, which checks the graph."""
        self.id = name or str(uuid.uuid4())
        """The name, so that it is the same at each build."""
        self.name = name
        self.description = description
        self.max_iterations = max_iterations
        self.executors = dict(executors)
        self.edge_groups = [*edge_groups, *(InternalEdgeGroup(name) for name in executors)]
        self.start_executor_id = start_executor.id
        self.run_state = RunState()
        """What is carried between rounds; the runner's and the checkpoints'."""
        self._designation = designation or OutputDesignation()
        self._storage = checkpoint_storage
        self._status = WorkflowRunState.IDLE
        self._one_run = OneRun()
        self._outgoing: dict[str, list[tuple[int, EdgeGroup]]] = {}
        for index, group in enumerate(self.edge_groups):
            for source in group.source_executor_ids:
                self._outgoing.setdefault(source, []).append((index, group))
        signature = json.dumps(self._signature(), sort_keys=True, ensure_ascii=False)
        self.graph_signature_hash = hashlib.sha256(signature.encode()).hexdigest()
        """The same for every build of the same graph; checkpoints carry it."""

    # -- the graph ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> WorkflowRunState:
        """Where the run stands, or the last one ended."""
        return self._status

    @property
    def input_types(self) -> list[Any]:
        """What a run's message may be: what the start executor handles."""
        return self.get_start_executor().input_types

    @property
    def output_types(self) -> list[Any]:
        """What executors may yield, by their annotations."""
        return list(dict.fromkeys(kind for item in self.executors.values() for kind in item.workflow_output_types))

    @property
    def result_types(self) -> list[Any]:
        """What executors whose outputs count may yield, by their annotations."""
        return list(dict.fromkeys(kind for item in self.get_output_executors() for kind in item.workflow_output_types))

    @property
    def entry_id(self) -> str:
        """The executor that gets the run's message."""
        return self.start_executor_id

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests without an answer, by id."""
        return self.run_state.pending

    def takes(self, message: object) -> bool:
        """Whether a run may begin with this message."""
        return self.get_start_executor().can_handle(WorkflowMessage(message, START_SOURCE))

    def book(self) -> TypeBook:
        """The classes that its checkpoints may hold."""
        return book_of(self)

    def get_start_executor(self) -> Executor:
        """The executor that gets the run's message."""
        return self.executors[self.start_executor_id]

    def get_executors_list(self) -> list[Executor]:
        """All executors, in the order in which they were given."""
        return list(self.executors.values())

    def get_output_executors(self) -> list[Executor]:
        """Those whose outputs count."""
        return [item for item in self.executors.values() if self.classify(item.id) == "output"]

    def get_intermediate_executors(self) -> list[Executor]:
        """Those whose outputs are reported on the way."""
        return [item for item in self.executors.values() if self.classify(item.id) == "intermediate"]

    def is_terminal_executor(self, executor_id: str) -> bool:
        """Whether its outputs count."""
        return self.classify(executor_id) == "output"

    def is_intermediate_executor(self, executor_id: str) -> bool:
        """Whether its outputs are reported on the way."""
        return self.classify(executor_id) == "intermediate"

    def classify(self, executor_id: str) -> Literal["output", "intermediate"] | None:
        """What an executor's output is to the caller."""
        return self._designation.classify(executor_id)

    def groups_of(self, source_id: str) -> list[tuple[int, EdgeGroup]]:
        """Where its messages may go, each with the group's index in `edge_groups`."""
        return self._outgoing.get(source_id, [])

    def to_dict(self) -> dict[str, Any]:
        """The graph as data."""
        data: dict[str, Any] = {"name": self.name, "id": self.id, "start_executor_id": self.start_executor_id}
        if self.description is not None:
            data["description"] = self.description
        data["max_iterations"] = self.max_iterations
        data["executors"] = {name: item.to_dict() for name, item in self.executors.items()}
        data["edge_groups"] = [group.to_dict() for group in self.edge_groups]
        outputs, others = self._designation.outputs, self._designation.intermediates
        data["output_executors"] = sorted(outputs) if outputs is not None else None
        data["intermediate_executors"] = sorted(others) if outputs is not None else None
        return data

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def as_agent(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
    ) -> WorkflowAgent:
        """The workflow as an agent.

        Raises:
            ValueError: The start executor takes no list of messages.
        """
        return WorkflowAgent(self, name=name or self.name, description=description or self.description, context_providers=context_providers)

    # -- running -----------------------------------------------------------------------------------------------

    @overload
    def run(
        self,
        message: Any = None,
        *,
        stream: Literal[False] = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> Awaitable[WorkflowRunResult]: ...

    @overload
    def run(
        self,
        message: Any = None,
        *,
        stream: Literal[True],
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...

    def run(
        self,
        message: Any = None,
        *,
        stream: bool = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> Awaitable[WorkflowRunResult] | ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Run until no messages are left: await the result, or iterate the events with `stream=True`.

        Begins with a `message`, goes on with `responses` to open requests, with a checkpoint, or with both. The two
        `…_kwargs` go to the agents in the graph: to all of them, or by executor id. `ctx` is the call it serves.

        Raises:
            ValueError: The combination makes no sense, a response has an unknown id or another type than was asked for.
            RuntimeError: A run is going on; raised at once. Or nothing waits for a response; raised, like what follows, when it begins.
            WorkflowCheckpointException: The checkpoint is not there, or is another graph's.
            WorkflowConvergenceException: The run did not come to rest.
            Exception: Whatever an executor raised.
        """
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        given = {key: dict(value) for key, value in kwargs.items() if value is not None}
        request = RunRequest(message, responses, checkpoint_id, checkpoint_storage, given or None, ctx)
        request.check()
        turn = self._one_run.begin(self.name)
        if not stream:
            return self._collect(request, turn, include_status_events=include_status_events)
        events: list[WorkflowEvent[Any]] = []

        async def follow(emit: OnEvent) -> None:
            await self.perform(request, emit, events=events, is_streaming=True, turn=turn)

        return ResponseStream(live(follow), lambda _: WorkflowRunResult.of(events, include_status_events=include_status_events))

    async def _collect(self, request: RunRequest, turn: Turn, *, include_status_events: bool) -> WorkflowRunResult:
        events: list[WorkflowEvent[Any]] = []
        await self.perform(request, None, events=events, turn=turn)
        return WorkflowRunResult.of(events, include_status_events=include_status_events)

    async def perform(
        self,
        request: RunRequest,
        emit: OnEvent | None,
        *,
        events: list[WorkflowEvent[Any]],
        is_streaming: bool = False,
        turn: Turn | None = None,
    ) -> None:
        """Run; every event is put into `events` and told to `emit`. Raises as `run` does."""

        async def note(event: WorkflowEvent[Any]) -> None:
            events.append(event)
            if emit is not None:
                await emit(event)

        storage = request.checkpoint_storage or self._storage
        with turn or self._one_run.begin(self.name):
            answered = await self._prepare(request, storage)
            self._note_kwargs(request)
            runner = Runner(self, note, request.ctx or CallContext(), is_streaming=is_streaming, storage=storage)

            async def begin(runner: Runner) -> None:
                if request.message is not None:
                    await runner.deliver_first(request.message)
                    return
                runner.respond(answered)
                if request.checkpoint_id is not None:
                    await runner.repeat_requests()

            try:
                run: Awaitable[None] = runner.run(begin)
                if OBSERVABILITY_SETTINGS.enable_instrumentation:
                    run = traced_run(self.name or self.id, self.description, self.id, run)
                await run
            except anyio.get_cancelled_exc_class():
                self.note_status(WorkflowRunState.CANCELLED)
                self.run_state.shared.discard()
                self.run_state.messages.clear()
                events.append(WorkflowEvent[Any].status(WorkflowRunState.CANCELLED))
                raise

    def note_status(self, state: WorkflowRunState) -> None:
        """The runner's: where the run stands now."""
        self._status = state

    def reset(self) -> None:
        """Forget shared state, messages and requests, as if it had just been built; executors keep what is their own."""
        self.run_state = RunState()
        self._status = WorkflowRunState.IDLE

    async def _prepare(self, request: RunRequest, storage: CheckpointStorage | None) -> dict[str, Any]:
        """Take back the checkpoint and judge the answers, before anything is told."""
        if request.checkpoint_id is not None:
            if storage is None:
                raise ValueError("Cannot restore from checkpoint: either provide checkpoint_storage parameter here or to WorkflowBuilder.")
            await give_back(self, await storage.load(request.checkpoint_id))
        if request.responses is None:
            return {}
        pending = self.run_state.pending
        if not pending:
            raise RuntimeError("No pending requests found: this workflow waits for no response.")
        answers: dict[str, Any] = {}
        for request_id, response in request.responses.items():
            if request_id not in pending:
                raise ValueError(f"Response provided for unknown request ID: {request_id}")
            wanted = pending[request_id].response_type
            answer = coerced(response, wanted)
            if not is_instance_of(answer, wanted):
                found = type(response).__name__
                raise ValueError(f"Response type mismatch for request ID {request_id}: expected {name_of(wanted)}, got {found}.")
            answers[request_id] = answer
        return answers

    def _note_kwargs(self, request: RunRequest) -> None:
        shared = self.run_state.shared
        if request.run_kwargs is not None:
            shared.set(RUN_KWARGS_KEY, dict(request.run_kwargs))
            shared.commit()
        elif request.message is not None:
            shared.set(RUN_KWARGS_KEY, {})
            shared.commit()

    def _signature(self) -> dict[str, Any]:
        executors = {name: f"{type(item).__module__}.{type(item).__qualname__}" for name, item in self.executors.items()}
        groups = [group.describe() for group in self.edge_groups if not isinstance(group, InternalEdgeGroup)]
        inner = {
            name: child.graph_signature_hash
            for name, item in self.executors.items()
            if (child := getattr(item, "workflow", None)) is not None
        }
        return {"start": self.start_executor_id, "executors": executors, "groups": groups, "inner": inner}
