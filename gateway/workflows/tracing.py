"""Building and running workflows as OpenTelemetry spans, under agent-framework's names. Called only when instrumentation is on.

`workflow.build`; `workflow.run` with an `executor.process` below it for each message an executor handles, an
`edge_group.process` for each message an edge group decides over, and a `message.send` below the executor that sends.
What a message caused is linked to its sending, not below it. Of errors only the class is told: their text may hold what
was said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.telemetry.instrumentation import Operation
from gateway.workflows.edges import EdgeGroup, internal_source

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from gateway.workflows.messages import WorkflowMessage
    from gateway.workflows.workflow import Workflow

DURATION = "gen_ai.client.operation.duration"

DELIVERED = "delivered"
BUFFERED = "buffered"
WRONG_TYPE = "dropped type mismatch"
WRONG_TARGET = "dropped target mismatch"
CONDITION_FALSE = "dropped condition evaluated to false"
FAILED = "exception"

ResultT = TypeVar("ResultT")


def traced_build(name: str, description: str | None, build: Callable[[Callable[[], None]], Workflow]) -> Workflow:
    """Build a graph. `build` calls what it is given when the graph was found to be sound."""
    operation = Operation("workflow.build", {})
    operation.event("build.started")
    try:
        with operation.active():
            workflow = build(lambda: operation.event("build.validation_completed"))
        operation.add({"workflow_builder.name": name, "workflow.id": workflow.id, "workflow.definition": workflow.to_json()})
        if description:
            operation.add({"workflow_builder.description": description})
        operation.event("build.completed")
        return workflow
    except Exception as error:  # a graph that is wrong: told, and raised as it is
        operation.event("build.error", {"build.error.type": type(error).__name__, "build.error.message": str(error)})
        operation.fail(error)
        raise
    finally:
        operation.end()


async def traced_run(name: str, description: str | None, workflow_id: str | None, run: Awaitable[ResultT]) -> ResultT:
    """One run. What its agents and tools do is below it."""
    told = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
    named = {"workflow.name": name, "workflow.description": description, "workflow.id": workflow_id}
    operation = Operation("workflow.run", {**told, **{key: value for key, value in named.items() if value}}, metric=DURATION)
    operation.event("workflow.started")
    try:
        with operation.active():
            result = await run
        operation.event("workflow.completed")
        return result
    except BaseException as error:
        operation.event("workflow.error", {"error.type": type(error).__name__})
        operation.fail(error)
        raise
    finally:
        operation.end(labels=tuple(told))


def traced_start(executor_id: str) -> None:
    """The run's message goes to the start executor."""
    told = {"edge_group.type": "InternalEdgeGroup", "message.source_id": internal_source(executor_id), "message.target_id": executor_id}
    operation = Operation("edge_group.process InternalEdgeGroup", told)
    operation.add({"edge_group.delivered": True, "edge_group.delivery_status": DELIVERED})
    operation.end()


async def traced_step(executor_id: str, kind: str, message: WorkflowMessage, step: Awaitable[object]) -> None:
    """An executor at one message."""
    told = {"executor.id": executor_id, "executor.type": kind, "message.type": message.type.value}
    told["message.payload_type"] = type(message.data).__name__
    operation = Operation(f"executor.process {executor_id}", told, links=message.sent_in)
    try:
        with operation.active():
            await step
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        operation.end()


def traced_send(message: Any, target_id: str | None) -> tuple[SpanContext, ...]:
    """A message leaves an executor; what comes of it is linked to this."""
    told = {"message.type": type(message).__name__, **({"message.destination_executor_id": target_id} if target_id else {})}
    operation = Operation("message.send", told, kind="producer")
    operation.end()
    return (operation.context,)


async def traced_delivery(
    group: EdgeGroup,
    message: WorkflowMessage,
    decide: Awaitable[Sequence[ResultT]],
    why_not: Callable[[], str],
) -> Sequence[ResultT]:
    """An edge group decides over a message. `why_not` says why it went nowhere."""
    told = {"edge_group.type": group.type, "edge_group.id": group.id, "message.source_id": message.source_id}
    if message.target_id is not None:
        told["message.target_id"] = message.target_id
    operation = Operation(f"edge_group.process {group.type}", told, links=message.sent_in)
    status = FAILED
    try:
        with operation.active():
            found = await decide
        status = DELIVERED if found else why_not()
        return found
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        operation.add({"edge_group.delivered": status in (DELIVERED, BUFFERED), "edge_group.delivery_status": status})
        operation.end()
