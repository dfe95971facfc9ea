"""A workflow in code as a tool: its arguments have the start executor's input type, its results are the yielded outputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflows.scripted import publish, run


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    yield
    sys.modules.pop("wf_typed", None)


TYPED = """\
from typing import Any
from typing_extensions import TypedDict
from pydantic import BaseModel
from gateway import Agent, Executor, Message, ScriptedChatClient, SequentialBuilder, WorkflowBuilder, WorkflowContext, handler

class Trip(BaseModel):
    to: str
    days: int = 1

class Found(TypedDict):
    price: int

class Book(Executor):
    @handler
    async def book(self, trip: Trip, ctx: WorkflowContext[Any, Found]) -> None:
        for number in range(trip.days):
            await ctx.yield_output({"price": number})

class Anything(Executor):
    @handler
    async def take(self, message: dict[str, Any], ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output([message, Trip(to="x"), "text"])
        await ctx.yield_output({"a": 1})

class Talk(Executor):
    @handler
    async def talk(self, messages: list[Message], ctx: WorkflowContext[Any, Message]) -> None:
        await ctx.yield_output(Message("assistant", ["said: " + messages[-1].text]))

trips = WorkflowBuilder(start_executor=Book("book")).build()
anything = WorkflowBuilder(start_executor=Anything("any")).build()
talk = WorkflowBuilder(start_executor=Talk("talk")).build()
team = SequentialBuilder(participants=[Agent(ScriptedChatClient(["answered"]), name="one")]).build()
"""


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    (tmp_path / "wf_typed.py").write_text(TYPED)
    return tmp_path


def code(name: str) -> str:
    return f"name: coded\ndescription: d\npython: wf_typed:{name}\n"


@pytest.mark.requirement("WF7")
async def test_start_with_fields_has_those_arguments(typed: Path) -> None:
    tool = await publish(code("trips"), base_dir=typed)
    assert {name: item["type"] for name, item in tool.definition.input_schema["properties"].items()} == {"to": "string", "days": "integer"}
    assert tool.definition.output_schema is not None
    assert tool.definition.output_schema["required"] == ["price"]
    result = await run(tool, to="Kiel", days=2)
    assert [json.loads(block["text"]) for block in result.content] == [{"price": 0}, {"price": 1}]
    assert result.structured == {"price": 1}


async def test_untyped_start_has_one_argument_and_outputs_stay_apart(typed: Path) -> None:
    tool = await publish(code("anything"), base_dir=typed)
    assert tool.definition.input_schema["properties"]["input"]["type"] == "object"
    result = await run(tool, input={"q": 1})
    assert result.structured == {"outputs": ['[{"q": 1}, {"to": "x", "days": 1}, "text"]', {"a": 1}]}


@pytest.mark.parametrize(("name", "text"), [("talk", "said: hi"), ("team", "answered")])
async def test_start_that_takes_a_conversation_has_the_text_message(typed: Path, name: str, text: str) -> None:
    tool = await publish(code(name), base_dir=typed)
    assert tool.definition.input_schema["required"] == ["message"]
    assert (await run(tool, message="hi")).as_text() == text
