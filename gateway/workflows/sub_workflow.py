"""`WorkflowExecutor`: a workflow as an executor of another. Names are agent-framework's.

The inner workflow's outputs are sent on as messages, or yielded directly; what it asks goes to the parent, as a message
to an executor there that answers, or further out to whoever runs the parent. One inner workflow handles one message at a
time, so messages that arrive together wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio

from gateway.types.content import Content
from gateway.workflows.agent_executor import is_request, with_id
from gateway.workflows.annotations import is_instance_of, name_of
from gateway.workflows.checkpoints import WorkflowCheckpoint
from gateway.workflows.context import WorkflowContext
from gateway.workflows.events import WorkflowEvent, WorkflowRunResult
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.messages import RUN_KWARGS_KEY, MessageType, WorkflowMessage
from gateway.workflows.request import RunRequest
from gateway.workflows.snapshots import give_back, take
from gateway.workflows.workflow import Workflow


@dataclass
class SubWorkflowResponseMessage:
    """The answer of a parent's executor to a request of an inner workflow."""

    data: Any
    source_event: WorkflowEvent[Any]


@dataclass
class SubWorkflowRequestMessage:
    """A request of an inner workflow, for an executor of the parent."""

    source_event: WorkflowEvent[Any]
    executor_id: str
    """Who to send the answer to."""

    def create_response(self, data: Any) -> SubWorkflowResponseMessage:
        """The answer; send it to `executor_id`.

        Raises:
            TypeError: It is not of the type asked for.
        """
        wanted = self.source_event.response_type
        if not is_instance_of(data, wanted):
            found = type(data).__name__
            raise TypeError(
                f"Response data type {found} does not match {name_of(wanted)}, which request {self.source_event.request_id} wants."
            )
        return SubWorkflowResponseMessage(data, self.source_event)


class WorkflowExecutor(Executor):
    """Runs a workflow for each message."""

    def __init__(
        self, workflow: Workflow, id: str | None = None, allow_direct_output: bool = False, propagate_request: bool = False
    ) -> None:
        """The id is the workflow's where not given. `allow_direct_output` yields the inner outputs as the parent's;
        `propagate_request` asks the parent's caller what the inner workflow asks, instead of an executor of the parent.

        Raises:
            ValueError: The id is empty.
        """
        super().__init__(workflow.id if id is None else id)
        self.workflow = workflow
        self.allow_direct_output = allow_direct_output
        self.propagate_request = propagate_request
        self._lock = anyio.Lock()
        self._open: dict[str, WorkflowEvent[Any]] = {}
        """Requests of the inner workflow without an answer."""
        self._answers: dict[str, Any] = {}
        """Answers that wait for the others of the same run."""

    @property
    def input_types(self) -> list[Any]:
        """What the inner workflow takes, and answers to it."""
        return [*self.workflow.input_types, SubWorkflowResponseMessage]

    @property
    def output_types(self) -> list[Any]:
        """What the inner workflow yields, and its requests where it can have some."""
        asks = any(item.is_request_response_capable for item in self.workflow.executors.values())
        return [*self.workflow.output_types, *([SubWorkflowRequestMessage] if asks else [])]

    @property
    def workflow_output_types(self) -> list[Any]:
        """What is yielded directly; without `allow_direct_output` nothing is, but it may be selected all the same."""
        return list(self.workflow.output_types) if self.allow_direct_output else [Any]

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Whether the inner workflow takes it, or it answers one of its requests."""
        if message.type is MessageType.RESPONSE or isinstance(message.data, SubWorkflowResponseMessage):
            return True
        return any(is_instance_of(message.data, kind) for kind in self.workflow.input_types)

    @handler
    async def handle_response_message(self, response: SubWorkflowResponseMessage, ctx: WorkflowContext[Any, Any]) -> None:
        """An executor of the parent answered."""
        await self._answered(response.source_event.request_id, response.data, ctx)

    @handler
    async def process_workflow(self, input_data: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Run the inner workflow with a message."""
        await self._run(RunRequest(input_data, run_kwargs=ctx.get_state(RUN_KWARGS_KEY), ctx=ctx.call), ctx)

    @response_handler
    async def handle_propagated_response(self, original_request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """The parent's caller answered."""
        await self._answered(ctx.request_id or "", response, ctx)

    def to_dict(self) -> dict[str, Any]:
        """With the inner workflow."""
        return {**super().to_dict(), "workflow": self.workflow.to_dict()}

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """The inner workflow as a checkpoint of its own."""
        inner = await take(self.workflow)
        return {"inner": inner, "open": dict(self._open), "answers": dict(self._answers)}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Put the inner workflow where it was."""
        inner: WorkflowCheckpoint = state["inner"]
        await give_back(self.workflow, inner)
        self._open = dict(state["open"])
        self._answers = dict(state["answers"])

    async def _answered(self, request_id: str, data: Any, ctx: WorkflowContext[Any, Any]) -> None:
        event = self._open.pop(request_id, None)
        if event is None:
            await ctx.add_event(
                WorkflowEvent[Any].warning(f"Executor {self.id!r} got an answer to {request_id!r}, which it did not ask; ignored.")
            )
            return
        self._answers[event.request_id] = data
        if self._open:
            return
        answers, self._answers = self._answers, {}
        await self._run(RunRequest(responses=answers, ctx=ctx.call), ctx)

    async def _run(self, request: RunRequest, ctx: WorkflowContext[Any, Any]) -> None:
        events: list[WorkflowEvent[Any]] = []

        async def forward(event: WorkflowEvent[Any]) -> None:
            if event.type == "intermediate":
                await ctx.report_intermediate(event.data)
            elif event.type == "output" and self.allow_direct_output:
                await ctx.yield_output(event.data)

        async with self._lock:
            await self.workflow.perform(request, forward, events=events, is_streaming=ctx.is_streaming() and self.allow_direct_output)
        result = WorkflowRunResult.of(events)
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
