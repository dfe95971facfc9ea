"""`WorkflowExecutor`: an executor that runs a workflow (the inner workflow) inside another workflow (the parent).

Outputs of the inner workflow are sent to other executors of the parent as messages, or yielded as outputs of the parent. Requests of the
inner workflow go to an executor of the parent as messages, or to the parent's caller. The inner workflow handles one message at a time;
concurrent messages wait. Names are those of Microsoft's agent-framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio

from gateway.types.content import Content
from gateway.workflows.agent_executor import is_request, with_id
from gateway.workflows.checkpoints import WorkflowCheckpoint
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunResult
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.messages import MessageType, WorkflowMessage
from gateway.workflows.run_request import RunRequest
from gateway.workflows.run_state import RUN_KWARGS_KEY
from gateway.workflows.snapshots import restore_snapshot, take_snapshot
from gateway.workflows.type_hints import is_instance_of, name_of
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


@dataclass
class SubWorkflowResponseMessage:
    """The message with which an executor of the parent workflow responds to a request of the inner workflow that runs inside the parent."""

    data: Any
    source_event: WorkflowEvent[Any]


@dataclass
class SubWorkflowRequestMessage:
    """The message that passes a request of an inner workflow to an executor of the parent workflow, in which the inner workflow runs."""

    source_event: WorkflowEvent[Any]
    executor_id: str
    """Id of the executor of the parent workflow that runs the inner workflow. The response must be sent to this executor."""

    def create_response(self, data: Any) -> SubWorkflowResponseMessage:
        """Create the response message with the value `data`. The caller must send it to the executor `executor_id`.

        Raises:
            TypeError: `data` does not have the response type that the request requires.
        """
        wanted = self.source_event.response_type
        if not is_instance_of(data, wanted):
            found = type(data).__name__
            raise TypeError(
                f"Response data type {found} does not match {name_of(wanted)}, which request {self.source_event.request_id} requires."
            )
        return SubWorkflowResponseMessage(data, self.source_event)


class WorkflowExecutor(Executor):
    """An executor that runs another workflow (the inner workflow) once for each message that it receives."""

    def __init__(
        self, workflow: Workflow, id: str | None = None, allow_direct_output: bool = False, propagate_request: bool = False
    ) -> None:
        """Create an executor that runs `workflow`, the inner workflow. The default `id` is the id of `workflow`.

        With `allow_direct_output`, outputs of the inner workflow become outputs of the parent workflow instead of messages to other
        executors. With `propagate_request`, requests of the inner workflow go to the caller of the parent instead of to an executor of the
        parent.

        Raises:
            ValueError: The id is empty.
        """
        super().__init__(workflow.id if id is None else id)
        self.workflow = workflow
        self.allow_direct_output = allow_direct_output
        self.propagate_request = propagate_request
        self._lock = anyio.Lock()
        self._open: dict[str, WorkflowEvent[Any]] = {}
        """Requests of the inner workflow that have no response yet, by request id."""
        self._answers: dict[str, Any] = {}
        """Responses to requests of the inner workflow, by request id. They are collected until each open request has a response."""

    @property
    def input_types(self) -> list[Any]:
        """Types of messages that this executor accepts: those with which the inner workflow can begin, and responses to its requests."""
        return [*self.workflow.input_types, SubWorkflowResponseMessage]

    @property
    def output_types(self) -> list[Any]:
        """Types of messages that this executor may send: outputs of the inner workflow, and its requests if it can make any.

        The list does not depend on `allow_direct_output` and `propagate_request`, with which they are not sent as messages.
        """
        asks = any(item.is_request_response_capable for item in self.workflow.executors.values())
        return [*self.workflow.output_types, *([SubWorkflowRequestMessage] if asks else [])]

    @property
    def workflow_output_types(self) -> list[Any]:
        """Types of outputs that this executor may yield in the parent workflow: with `allow_direct_output`, those of the inner workflow.

        Without `allow_direct_output`, the list is `[Any]`, so that a builder does not reject the selection of this executor's outputs.
        """
        return list(self.workflow.output_types) if self.allow_direct_output else [Any]

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Return whether the inner workflow can begin with this message, or the message is a response to a request."""
        if message.type is MessageType.RESPONSE or isinstance(message.data, SubWorkflowResponseMessage):
            return True
        return any(is_instance_of(message.data, kind) for kind in self.workflow.input_types)

    @handler
    async def handle_response_message(self, response: SubWorkflowResponseMessage, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle the response of another executor to a request of the inner workflow.

        The inner workflow continues when each of its open requests has a response.
        """
        await self._answered(response.source_event.request_id, response.data, ctx)

    @handler
    async def process_workflow(self, input_data: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle a message: run the inner workflow, which this executor contains, with the message as its input."""
        await self._run(RunRequest(input_data, run_kwargs=ctx.get_state(RUN_KWARGS_KEY), ctx=ctx.call), ctx)

    @response_handler
    async def handle_propagated_response(self, original_request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle the response of the parent workflow's caller to a request of the inner workflow.

        The inner workflow continues when each of its open requests has a response.
        """
        await self._answered(ctx.request_id or "", response, ctx)

    def to_dict(self) -> dict[str, Any]:
        """Return the executor as JSON-compatible data: id, class name and the graph of the inner workflow."""
        return {**super().to_dict(), "workflow": self.workflow.to_dict()}

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state for the parent's checkpoint: a checkpoint of the inner workflow, its open requests, and collected responses."""
        inner = await take_snapshot(self.workflow)
        return {"inner": inner, "open": dict(self._open), "answers": dict(self._answers)}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the inner workflow, its open requests and the collected responses from the result of `on_checkpoint_save`."""
        inner: WorkflowCheckpoint = state["inner"]
        await restore_snapshot(self.workflow, inner)
        self._open = dict(state["open"])
        self._answers = dict(state["answers"])

    async def _answered(self, request_id: str, data: Any, ctx: WorkflowContext[Any, Any]) -> None:
        event = self._open.pop(request_id, None)
        if event is None:
            await ctx.add_event(
                WorkflowEvent[Any].warning(f"Executor {self.id!r} dropped a response to {request_id!r}, which is not an open request.")
            )
            return
        self._answers[event.request_id] = data
        if self._open:
            return
        answers, self._answers = self._answers, {}
        await self._run(RunRequest(responses=answers, ctx=ctx.call), ctx)

    async def _run(self, request: RunRequest, ctx: WorkflowContext[Any, Any]) -> None:
        async def forward(event: WorkflowEvent[Any]) -> None:
            if event.type == "intermediate":
                await ctx.report_intermediate(event.data)
            elif event.type == "output" and self.allow_direct_output:
                await ctx.yield_output(event.data)

        log = EventLog(emit=forward)
        async with self._lock:
            await self.workflow.perform(request, log, is_streaming=ctx.is_streaming() and self.allow_direct_output)
        result = WorkflowRunResult.of(log.events)
        if not self.allow_direct_output:
            for output in result.get_outputs():
                await ctx.send_message(output)
        for event in result.get_request_info_events():
            if self.propagate_request:
                key = ctx.free_request_id(event.request_id)
                self._open[key] = event
                data = with_id(event.data, key) if isinstance(event.data, Content) and is_request(event.data) else event.data
                await ctx.pass_request(event, request_id=key, data=data)
            else:
                self._open[event.request_id] = event
                await ctx.send_message(SubWorkflowRequestMessage(event, self.id))
