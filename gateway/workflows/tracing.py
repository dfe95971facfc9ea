"""Runs of workflows and the steps of their executors as OpenTelemetry spans. Called only when instrumentation is on."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.telemetry.instrumentation import Operation

DURATION = "gen_ai.client.operation.duration"


async def traced_run(name: str, workflow_id: str, run: Awaitable[None]) -> None:
    """One run. What its agents and tools do is below it."""
    told = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
    operation = Operation(f"invoke_workflow {name}", {**told, "workflow.id": workflow_id}, metric=DURATION)
    await _traced(operation, run, tuple(told))


async def traced_step(executor_id: str, kind: str, step: Awaitable[object]) -> None:
    """An executor at one message."""
    await _traced(Operation(f"executor.process {executor_id}", {"executor.id": executor_id, "executor.type": kind}), step, ())


async def _traced(operation: Operation, work: Awaitable[object], labels: tuple[str, ...]) -> None:
    try:
        with operation.active():
            await work
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        operation.end(labels=labels)
