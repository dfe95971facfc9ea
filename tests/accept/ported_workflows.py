"""A program over agent-framework's workflows; `test_ported_workflows` runs it as it is and with `gateway` imported instead.

Prints what it sees as one JSON line. Not for reading by a type checker: the module it imports is another framework's.
"""
# pyright: basic, reportMissingImports=false

import asyncio  # noqa: TID251  # the other framework's program
import json
import tempfile
from dataclasses import dataclass
from typing import Any, Never

from agent_framework import (
    Case,
    Default,
    Executor,
    FileCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
    step,
    workflow,
)

SEEN: list[Any] = []


@dataclass
class Draft:
    text: str
    rounds: int = 0


class Writer(Executor):
    @handler
    async def topic(self, topic: str, ctx: WorkflowContext[Draft]) -> None:
        ctx.set_state("topic", topic)
        await ctx.send_message(Draft(f"on {topic}"))

    @handler
    async def again(self, draft: Draft, ctx: WorkflowContext[Draft]) -> None:
        await ctx.send_message(Draft(draft.text + "!", draft.rounds + 1))


class Editor(Executor):
    @handler
    async def look(self, draft: Draft, ctx: WorkflowContext[Draft, str]) -> None:
        await ctx.request_info(request_data=draft, response_type=bool)

    @response_handler
    async def decide(self, original_request: Draft, response: bool, ctx: WorkflowContext[Draft, str]) -> None:
        if response:
            await ctx.yield_output(f"{original_request.text} {ctx.get_state('topic')}")
        else:
            await ctx.send_message(original_request)


@executor(id="long")
async def is_long(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output("long " + text)


@executor(id="short")
async def is_short(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output("short " + text)


@executor(id="enter")
async def enter(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.strip())


class Gather(Executor):
    @handler
    async def all(self, texts: list[str], ctx: WorkflowContext[Never, list[str]]) -> None:
        await ctx.yield_output(sorted(texts))


def reviewed(storage: Any = None) -> Any:
    writer, editor = Writer(id="writer"), Editor(id="editor")
    return WorkflowBuilder(start_executor=writer, name="reviewed", checkpoint_storage=storage).add_chain([writer, editor]).add_edge(
        editor, writer
    ).build()


def sized() -> Any:
    cases = [Case(condition=lambda text: len(text) > 3, target=is_long), Default(target=is_short)]
    return WorkflowBuilder(start_executor=enter).add_switch_case_edge_group(enter, cases).build()


@step
async def double(number: int) -> int:
    SEEN.append(["double", number])
    return number * 2


@workflow
async def doubled(number: int) -> int:
    return await double(number) + 1


def note(name: str, result: Any) -> None:
    kinds = [event.type for event in result if not event.type.startswith("superstep")]
    SEEN.append([name, result.get_final_state().value, result.get_outputs(), kinds])


async def main() -> None:
    flow = reviewed()
    result = await flow.run("tea")
    note("asked", result)
    for answer in (False, True):
        (event,) = result.get_request_info_events()
        SEEN.append([event.source_executor_id, event.data.text, event.data.rounds])
        result = await flow.run(responses={event.request_id: answer})
        note("answered", result)

    storage = FileCheckpointStorage(tempfile.mkdtemp(), allowed_checkpoint_types=["__main__:Draft"])
    await reviewed(storage).run("milk")
    latest = await storage.get_latest(workflow_name="reviewed")
    flow = reviewed(storage)
    result = await flow.run(checkpoint_id=latest.checkpoint_id)
    note("restored", result)
    note("went on", await flow.run(responses={event.request_id: True for event in result.get_request_info_events()}))

    for text in ("tea ", "coffee"):
        note("sized", await sized().run(text))
    outer = WorkflowBuilder(start_executor=enter).add_edge(enter, inner := WorkflowExecutor(sized(), id="inner"))
    note("sub", await outer.add_edge(inner, is_short).build().run("coffee"))

    first, second, gather = executor(id="one")(passing), executor(id="two")(passing), Gather(id="gather")
    fan = WorkflowBuilder(start_executor=enter, output_from=[gather]).add_fan_out_edges(enter, [first, second])
    note("fan", await fan.add_fan_in_edges([first, second], gather).build().run("x"))
    note("functional", await doubled.run(4))
    SEEN.append([event.data async for event in sized().run("coffee", stream=True) if event.type == "output"])
    for call in (lambda: flow.run(), lambda: flow.run("x", responses={"y": 1}), lambda: flow.run(responses={"y": 1})):
        try:
            await call()
        except Exception as error:
            SEEN.append(type(error).__name__)


async def passing(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text + text)


asyncio.run(main())
print(json.dumps(SEEN))  # noqa: T201
