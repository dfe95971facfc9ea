"""Functions that record OpenTelemetry spans of workflow runs. They are called only if instrumentation is enabled.

The span `workflow.run` contains a span `executor.process` for each message that an executor handles, `edge_group.process` for each decision
of an edge group (edges that decide together which executors receive a message), and `message.send` inside the span of the sending executor.
The spans `executor.process` and `edge_group.process` of a message are linked to its `message.send`, not nested in it. Unless sensitive data
is recorded, spans contain only the class of an exception, because its text may contain user data. The span `workflow.build` is recorded in
`builder`. Names are those of Microsoft's agent-framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.telemetry.instrumentation import Operation
from gateway.workflows.messages import WorkflowMessage

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

DURATION = "gen_ai.client.operation.duration"

DELIVERED = "delivered"
BUFFERED = "buffered"
WRONG_TYPE = "dropped type mismatch"
WRONG_TARGET = "dropped target mismatch"
CONDITION_FALSE = "dropped condition evaluated to false"
FAILED = "exception"

ResultT = TypeVar("ResultT")


async def traced_run(name: str, description: str | None, workflow_id: str | None, run: Awaitable[ResultT]) -> ResultT:
    """Await `run`, a workflow run, inside a span `workflow.run`, and return its result. The run's duration is recorded as a metric."""
    labels = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
    named = {"workflow.name": name, "workflow.description": description, "workflow.id": workflow_id}
    operation = Operation("workflow.run", {**labels, **{key: value for key, value in named.items() if value}}, metric=DURATION)
    operation.event("workflow.started")
    with operation.running(labels=tuple(labels)):
        try:
            result = await run
        except BaseException as error:
            operation.event("workflow.error", {"error.type": type(error).__name__})
            raise
        operation.event("workflow.completed")
        return result


def traced_start(source_id: str, executor_id: str) -> None:
    """Record a span for the delivery of the first message of a workflow run to the start executor."""
    facts = {"edge_group.type": "InternalEdgeGroup", "message.source_id": source_id, "message.target_id": executor_id}
    operation = Operation("edge_group.process InternalEdgeGroup", facts)
    operation.add({"edge_group.delivered": True, "edge_group.delivery_status": DELIVERED})
    operation.end()


async def traced_step(executor_id: str, kind: str, message: WorkflowMessage, step: Awaitable[object]) -> None:
    """Await `step` inside a span. In `step`, a workflow executor handles `message`. `kind` is the executor's class name."""
    facts = {"executor.id": executor_id, "executor.type": kind, "message.type": message.type.value}
    facts["message.payload_type"] = type(message.data).__name__
    operation = Operation(f"executor.process {executor_id}", facts, links=message.sent_in)
    with operation.running():
        await step


def traced_send(message: Any, target_id: str | None) -> tuple[SpanContext, ...]:
    """Record a span for a message that a workflow executor sends, and return the span's context in a tuple.

    The caller stores the context with the message, so that the spans for handling the message can be linked to this span.
    """
    facts = {"message.type": type(message).__name__, **({"message.destination_executor_id": target_id} if target_id else {})}
    operation = Operation("message.send", facts, kind="producer")
    operation.end()
    return (operation.context,)


async def traced_delivery(
    group_type: str, group_id: str, message: WorkflowMessage, decide: Awaitable[Sequence[ResultT]], why_not: Callable[[], str]
) -> Sequence[ResultT]:
    """Await `decide` inside a span, and return its deliveries. In `decide`, an edge group selects the executors that get `message`.

    `why_not` returns the delivery status to record if the list of deliveries is empty.
    """
    facts = {"edge_group.type": group_type, "edge_group.id": group_id, "message.source_id": message.source_id}
    if message.target_id is not None:
        facts["message.target_id"] = message.target_id
    operation = Operation(f"edge_group.process {group_type}", facts, links=message.sent_in)
    status = FAILED
    with operation.running():
        try:
            found = await decide
            status = DELIVERED if found else why_not()
            return found
        finally:
            operation.add({"edge_group.delivered": status in (DELIVERED, BUFFERED), "edge_group.delivery_status": status})
