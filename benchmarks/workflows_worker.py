"""The worker process of `benchmarks.workflows` for one engine: runs workflows on command and prints their CPU time.

    python workflows_worker.py MODULE

`MODULE` is `gateway` or `agent_framework`; only the import differs between the two. The worker reads lines `SCENARIO RUNS` from stdin and,
for each line, prints the CPU seconds of all runs together.
"""

from __future__ import annotations

import sys
import time
from asyncio import run as run_loop  # noqa: TID251  # the other environment may lack anyio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Never

LENGTH = 20
"""Number of `Step` executors in the chain, and of `Step` messages in the ping-pong."""

WIDTH = 10
"""Number of parallel executors in the fan."""

if TYPE_CHECKING:
    from gateway import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
else:
    framework = import_module(sys.argv[1])
    Executor, Workflow, WorkflowBuilder, WorkflowContext, handler = (
        getattr(framework, name) for name in ("Executor", "Workflow", "WorkflowBuilder", "WorkflowContext", "handler")
    )


class Step(Executor):
    """An executor that adds 1 to a number and sends the sum to the next executor."""

    @handler
    async def step(self, message: int, ctx: WorkflowContext[int]) -> None:
        """Send `message + 1`."""
        await ctx.send_message(message + 1)


class Last(Executor):
    """An executor that yields its input as the output of the workflow."""

    @handler
    async def last(self, message: int, ctx: WorkflowContext[Never, int]) -> None:
        """Yield the input."""
        await ctx.yield_output(message)


class Sum(Executor):
    """An executor that yields the sum of the numbers from several executors."""

    @handler
    async def add(self, messages: list[int], ctx: WorkflowContext[Never, int]) -> None:
        """Yield the sum."""
        await ctx.yield_output(sum(messages))


def chain() -> Workflow:
    """Build a workflow of `LENGTH` steps in sequence."""
    nodes = [*(Step(f"n{number}") for number in range(LENGTH)), Last("last")]
    return WorkflowBuilder(start_executor=nodes[0]).add_chain(nodes).build()


def fan() -> Workflow:
    """Build a workflow that sends a number to `WIDTH` parallel executors and adds their results."""
    start, end = Step("start"), Sum("end")
    nodes = [Step(f"n{number}") for number in range(WIDTH)]
    return WorkflowBuilder(start_executor=start).add_fan_out_edges(start, nodes).add_fan_in_edges(nodes, end).build()


def pingpong() -> Workflow:
    """Build a workflow of two executors that send a number back and forth until it reaches `LENGTH`."""
    left, right, end = Step("left"), Step("right"), Last("end")
    builder = WorkflowBuilder(start_executor=left).add_edge(left, right)
    return builder.add_edge(right, left, is_small).add_edge(right, end, is_large).build()


def is_small(number: int) -> bool:
    """Return whether the ping-pong continues."""
    return number < LENGTH


def is_large(number: int) -> bool:
    """Return whether the ping-pong is complete."""
    return not is_small(number)


SCENARIOS: dict[str, tuple[Callable[[], Workflow], int]] = {
    "chain": (chain, LENGTH),
    "fan": (fan, WIDTH * 2),
    "pingpong": (pingpong, LENGTH),
}
"""Build function of each graph, and the output of a run with input 0. The output of the fan is not checked."""


async def run(workflow: Workflow, mode: str) -> int:
    """Run a workflow with input 0 and return its first output."""
    if mode == "streamed":
        outputs = [event.data async for event in workflow.run(0, stream=True) if event.type == "output"]
        return int(outputs[0])
    return (await workflow.run(0)).get_outputs()[0]


async def serve() -> None:
    """Execute each command line from stdin and print its CPU seconds.

    Raises:
        SystemExit: A run returned an unexpected output.
    """
    workflows = {name: build() for name, (build, _) in SCENARIOS.items()}
    for line in sys.stdin:
        scenario, count = line.split()
        name, _, mode = scenario.partition("-")
        start = time.process_time()
        for _ in range(int(count)):
            workflow = SCENARIOS[name][0]() if mode == "built" else workflows[name]
            found, wanted = await run(workflow, mode), SCENARIOS[name][1]
            if name != "fan" and found != wanted:
                raise SystemExit(f"{scenario}: unexpected output {found!r}")
        sys.stdout.write(f"{time.process_time() - start}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_loop(serve())
