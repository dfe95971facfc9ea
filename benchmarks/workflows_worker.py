"""One contender of `benchmarks.workflows`, in the interpreter that has its package: runs workflows on command and says what they cost.

    python workflows_worker.py MODULE

`MODULE` is `gateway` or `agent_framework`: the same code runs on both, only the import differs. Reads lines `SCENARIO RUNS`
from stdin and answers each with the processor seconds that the runs took.
"""

from __future__ import annotations

import sys
import time
from asyncio import run as run_loop  # noqa: TID251  # the other interpreter need not have anyio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Never

LENGTH = 20
"""Executors of the chain, and rounds of the ping-pong: both make `LENGTH` supersteps."""

WIDTH = 10
"""Executors side by side in the fan."""

if TYPE_CHECKING:
    from gateway import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
else:
    framework = import_module(sys.argv[1])
    Executor, Workflow, WorkflowBuilder, WorkflowContext, handler = (
        getattr(framework, name) for name in ("Executor", "Workflow", "WorkflowBuilder", "WorkflowContext", "handler")
    )


class Step(Executor):
    """Counts and passes on."""

    @handler
    async def step(self, message: int, ctx: WorkflowContext[int]) -> None:
        """One more."""
        await ctx.send_message(message + 1)


class Last(Executor):
    """Yields what it gets."""

    @handler
    async def last(self, message: int, ctx: WorkflowContext[Never, int]) -> None:
        """The output."""
        await ctx.yield_output(message)


class Sum(Executor):
    """Yields the sum of what several sent."""

    @handler
    async def add(self, messages: list[int], ctx: WorkflowContext[Never, int]) -> None:
        """The output."""
        await ctx.yield_output(sum(messages))


def chain() -> Workflow:
    """One executor after the other."""
    nodes = [*(Step(f"n{number}") for number in range(LENGTH)), Last("last")]
    return WorkflowBuilder(start_executor=nodes[0]).add_chain(nodes).build()


def fan() -> Workflow:
    """One to many to one."""
    start, end = Step("start"), Sum("end")
    nodes = [Step(f"n{number}") for number in range(WIDTH)]
    return WorkflowBuilder(start_executor=start).add_fan_out_edges(start, nodes).add_fan_in_edges(nodes, end).build()


def pingpong() -> Workflow:
    """Two executors that pass a number to and fro until it is large enough."""
    left, right, end = Step("left"), Step("right"), Last("end")
    builder = WorkflowBuilder(start_executor=left).add_edge(left, right)
    return builder.add_edge(right, left, is_small).add_edge(right, end, is_large).build()


def is_small(number: int) -> bool:
    """Whether to go on."""
    return number < LENGTH


def is_large(number: int) -> bool:
    """Whether it is done."""
    return not is_small(number)


SCENARIOS: dict[str, tuple[Callable[[], Workflow], int]] = {
    "chain": (chain, LENGTH),
    "fan": (fan, WIDTH * 2),
    "pingpong": (pingpong, LENGTH),
}
"""The graph of each, and the output of a run that begins with 0."""


async def run(workflow: Workflow, mode: str) -> int:
    """The output of one run."""
    if mode == "streamed":
        outputs = [event.data async for event in workflow.run(0, stream=True) if event.type == "output"]
        return int(outputs[0])
    return (await workflow.run(0)).get_outputs()[0]


async def serve() -> None:
    """Answer the commands on stdin."""
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
