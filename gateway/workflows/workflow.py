"""`Workflow`: a graph of executors that can be run. A run returns its result or a stream of its events.

`WorkflowBuilder` builds workflows. User code and `WorkflowTool` run them; a workflow can also run as an agent (`workflow_agent`) or inside
another workflow (`sub_workflow`). `superstep_runner` executes the runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import anyio

from gateway.former_names import FormerMethods
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.graph import WorkflowGraph
from gateway.workflows.run_lock import RunSlot
from gateway.workflows.run_request import GraphOptions, RunRequest
from gateway.workflows.run_state import RUN_KWARGS_KEY, RunState
from gateway.workflows.run_stream import EventStream, start_run
from gateway.workflows.snapshots import book_of, restore_snapshot
from gateway.workflows.superstep_runner import SuperstepRunner
from gateway.workflows.tracing import traced_run
from gateway.workflows.type_hints import checked_response
from gateway.workflows.workflow_agent import WorkflowAgent

if TYPE_CHECKING:
    from gateway.sessions.session_context import ContextProvider


class Workflow(WorkflowGraph, FormerMethods):
    """A graph of executors that can be run, one run at a time. Create it with `WorkflowBuilder`."""

    def book(self) -> TypeBook:
        """Return the set of classes that may be decoded from checkpoints of this workflow."""
        return book_of(self)

    def as_agent(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
    ) -> WorkflowAgent:
        """Return an agent that runs this workflow. Name and description default to those of the workflow.

        Raises:
            ValueError: The start executor has no handler for `list[Message]`.
        """
        return WorkflowAgent(self, name=name or self.name, description=description or self.description, context_providers=context_providers)

    @overload
    def run(
        self, message: Any = None, *, stream: Literal[False] = False, include_status_events: bool = False, **options: Unpack[GraphOptions]
    ) -> Awaitable[WorkflowRunResult]: ...
    @overload
    def run(
        self, message: Any = None, *, stream: Literal[True], include_status_events: bool = False, **options: Unpack[GraphOptions]
    ) -> EventStream: ...
    def run(
        self, message: Any = None, *, stream: bool = False, include_status_events: bool = False, **options: Unpack[GraphOptions]
    ) -> Awaitable[WorkflowRunResult] | EventStream:
        """Run the workflow until no messages are left. Await the result, or iterate the events of the run with `stream=True`.

        Begin with a `message`, or continue with `responses` to open requests (by request id), with a checkpoint, or with both.
        `function_invocation_kwargs` and `client_kwargs` are passed to the agents of the graph: to all agents, or by executor id. `ctx` is
        the tool call that the run serves.

        Raises:
            ValueError: The arguments cannot be combined, a response has an unknown id or the wrong type, or no storage is known for the
                checkpoint.
            RuntimeError: Another run has not ended (raised by the call itself), or `responses` are given but no request is open.
            WorkflowCheckpointException: The checkpoint does not exist, cannot be read or was made by another graph, or a new checkpoint
                cannot be stored.
            WorkflowConvergenceException: Messages were left after `max_iterations` supersteps (rounds).
            Exception: Any exception that an executor raised.
        """
        request = RunRequest.of_graph(message, **options)
        request.check()
        slot = self._run_lock.begin(self.name)
        return start_run(self, request, slot, stream=stream, include_status_events=include_status_events)

    async def perform(self, request: RunRequest, log: EventLog, *, is_streaming: bool = False, slot: RunSlot | None = None) -> None:
        """Do one run with the input `request`, and add every event to `log`. Raises the exceptions that `run` documents.

        `is_streaming` means that the events are read while the run continues. `slot` is the permission for this run, if the caller already
        has it; a workflow permits one run at a time.
        """
        storage = request.checkpoint_storage or self._storage
        with slot or self._run_lock.begin(self.name):
            responses = await self._prepare(request, storage)
            runner = SuperstepRunner(self, log.add, request.ctx or CallContext(), is_streaming=is_streaming, storage=storage)

            async def begin() -> None:
                if request.message is not None:
                    await runner.deliver_first(request.message)
                    return
                runner.respond(responses)
                if request.checkpoint_id is not None:
                    await runner.repeat_requests()

            try:
                run: Awaitable[None] = runner.run(begin)
                if OBSERVABILITY_SETTINGS.enable_instrumentation:
                    run = traced_run(self.name or self.id, self.description, self.id, run)
                await run
            except anyio.get_cancelled_exc_class():
                self.status = WorkflowRunState.CANCELLED
                self.run_state.discard_round()
                log.events.append(WorkflowEvent[Any].status(WorkflowRunState.CANCELLED))
                raise

    def reset(self) -> None:
        """Drop the shared state, messages and requests of earlier runs. The state inside executor objects does not change."""
        self.run_state = RunState()
        self.status = WorkflowRunState.IDLE

    async def _prepare(self, request: RunRequest, storage: CheckpointStorage | None) -> dict[str, Any]:
        """Prepare a run: restore the checkpoint, if the request names one, and store the keyword arguments for agents.

        Return the responses in the request, by request id, each converted to the type that the workflow's request requires.
        """
        if request.checkpoint_id is not None:
            if storage is None:
                raise ValueError("Cannot restore from checkpoint: either provide checkpoint_storage parameter here or to WorkflowBuilder.")
            await restore_snapshot(self, await storage.load(request.checkpoint_id))
        responses: dict[str, Any] = {}
        if request.responses is not None:
            pending = self.run_state.pending
            if not pending:
                raise RuntimeError("No pending requests found: this workflow waits for no response.")
            for request_id, response in request.responses.items():
                if request_id not in pending:
                    raise ValueError(f"Response provided for unknown request ID: {request_id}")
                responses[request_id] = checked_response(request_id, response, pending[request_id].response_type)
        if request.run_kwargs is not None or request.message is not None:
            self.run_state.shared.set(RUN_KWARGS_KEY, dict(request.run_kwargs or {}))
            self.run_state.shared.commit()
        return responses
