"""Code written for agent-framework, with only the import changed: its direct use of tool objects, and code around their calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from gateway import (
    SKIP_PARSING,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionTool,
    ResponseStream,
    ScriptedChatClient,
    SessionContext,
    ToolException,
    function_middleware,
    map_chat_to_agent_update,
    tool,
    validate_chat_options,
    validate_tool_mode,
    validate_tools,
)
from gateway.middleware import CallNext
from tests.agents.building import agent_of, both_ways, call, results_of, run


@tool(max_invocations=9)
def join(first: str, second: str = "?") -> str:
    """Joins."""
    return first + second


class City(BaseModel):
    name: str


@dataclass
class Place:
    city: str


@pytest.mark.requirement("TL1")
async def test_tool_is_invoked_with_its_arguments_one_by_one() -> None:
    assert [content.text for content in await join.invoke(first="a", second="b", tool_call_id="c1")] == ["ab"]
    for wrong in ({"first": "a", "third": "c"}, {"arguments": {"first": "a"}, "second": "b"}):
        with pytest.raises(TypeError, match="third" if "third" in wrong else "second"):
            await join.invoke(**wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="must be an object, not list"):
        await join.invoke(arguments=[1])  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("TL1")
async def test_invoked_tool_raises_the_exception_of_its_function() -> None:
    @tool
    def ask() -> str:
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError, match="slow"):
        await ask.invoke()
    declared = FunctionTool[..., Any](name="open_file")
    assert declared.approval_mode == "never_require"
    with pytest.raises(ToolException, match="only declared"):
        await declared.invoke()
    with pytest.raises(ToolException, match="only declared"):
        declared()


@pytest.mark.requirement("TL1")
async def test_tool_survives_json_without_its_function_and_regains_it() -> None:
    data = json.loads(join.to_json())
    assert (data["type"], data["name"], data["description"], data["max_invocations"]) == ("function_tool", "join", "Joins.", 9)
    assert data["input_model"] == join.parameters()
    assert "kind" not in data and "kind" in join.to_dict(exclude_none=False)
    assert "input_model" not in join.to_dict(exclude={"input_model"})
    declared = FunctionTool[..., Any].from_json(join.to_json())
    assert (declared.declaration_only, declared.parameters()) == (True, join.parameters())
    again = FunctionTool[..., Any].from_dict(data, dependencies={"function_tool": {"func": join.func}})
    assert [content.text for content in await again.invoke(first="a")] == ["a?"]
    assert str(again) == "FunctionTool(name=join, description=Joins.)"


@pytest.mark.requirement("TL1", "AP1")
async def test_attributes_set_on_a_tool_take_effect() -> None:
    @tool
    def remove() -> str:
        return "gone"

    assert not remove.definition.needs_approval
    remove.approval_mode, remove.name, remove.description = "always_require", "delete", "Deletes."
    agent, client = agent_of([call("delete")], [remove])
    response = await run(agent, False)
    assert [request.type for request in response.user_input_requests] == ["function_approval_request"]
    offered: Any = (client.requests[0][1].get("tools") or [None])[0]
    assert (offered.definition.name, offered.definition.description) == ("delete", "Deletes.")
    for name, value in (("approval_mode", "sometimes"), ("name", "no name")):
        with pytest.raises(ValueError, match=value):
            setattr(remove, name, value)


async def test_result_parser_may_be_none() -> None:
    @tool(result_parser=SKIP_PARSING)
    def look() -> set[int]:
        return {1}

    assert await look.invoke() == {1}
    assert await FunctionTool(look.func).invoke(skip_parsing=True) == {1}


def test_results_that_are_objects_are_read_as_objects() -> None:
    given = ([City(name="Oslo")], Place("Oslo"), None)
    assert [FunctionTool.parse_result(value)[0].text for value in given] == ['[{"name": "Oslo"}]', '{"city": "Oslo"}', ""]


@both_ways
@pytest.mark.requirement("C14", "MW11")
async def test_middleware_can_catch_the_exception_of_a_function(stream: bool) -> None:
    def slow() -> str:
        raise TimeoutError("30 s")

    @function_middleware
    async def patient(context: FunctionInvocationContext, call_next: CallNext) -> None:
        try:
            await call_next()
        except TimeoutError as error:
            context.result = f"Try again later ({error})."

    agent, _ = agent_of([call("slow"), "ok"], [slow], middleware=[patient])
    assert results_of(await run(agent, stream)) == ["Try again later (30 s)."]


@both_ways
@pytest.mark.requirement("TL7", "TY3")
async def test_exception_text_reaches_the_model_only_if_enabled(stream: bool) -> None:
    def broken() -> str:
        raise RuntimeError("the disk is on fire")

    for detailed, text in ((False, "Error: Function failed."), (True, "Error: Function failed. Exception: the disk is on fire")):
        agent, client = agent_of([call("broken"), "sorry"], [broken], loop={"include_detailed_errors": detailed})
        [result] = [c for m in (await run(agent, stream)).messages for c in m.contents if c.type == "function_result"]
        assert (result.result, result.exception) == (text, "the disk is on fire")
        assert client.requests[1][0][-1].contents[0].result == text


def test_part_of_an_answer_becomes_a_part_of_a_run() -> None:
    part = ChatResponseUpdate([Content.from_text("a")], "assistant", "r", finish_reason="stop", message_id="m")
    made = map_chat_to_agent_update(part, "bob")
    assert (made.text, made.author_name, made.response_id, made.message_id, made.finish_reason) == ("a", "bob", "r", "m", "stop")
    assert made.raw_representation is part


@both_ways
@pytest.mark.requirement("TY2", "TY8")
async def test_raw_representation_is_last_answer_or_all_stream_parts(stream: bool) -> None:
    agent, _ = agent_of([call("join", {"first": "a"}), "end"], [join])
    raw: Any = (await run(agent, stream)).raw_representation
    assert [part.text for part in raw if part.text] == ["end"] if stream else raw.text == "end"

    class Numbered(ScriptedChatClient):
        async def _updates(self, messages: Any, *, stream: bool, options: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
            async for update in super()._updates(messages, stream=stream, options=options):
                update.raw_representation = len(self.requests)
                yield update

    answer = Numbered([call("join", {"first": "a"}), "end"]).get_response("go", stream=stream, options={"tools": [join]})
    whole: ChatResponse = await (answer.get_final_response() if isinstance(answer, ResponseStream) else answer)
    assert whole.raw_representation == ([1, 2] if stream else 2)


@pytest.mark.requirement("TY9", "TL10")
async def test_options_are_checked_for_custom_clients() -> None:
    assert await validate_chat_options({"temperature": 1, "tools": join}) == {"temperature": 1.0, "tools": [join]}
    assert await validate_tools([join, {"type": "web_search"}]) == [join, {"type": "web_search"}]
    assert validate_tool_mode("required") == {"mode": "required"}
    for wrong in ({"temperature": 3}, {"top_p": -1}, {"frequency_penalty": 3}, {"presence_penalty": -3}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await validate_chat_options(wrong)
    wrong_mode: Any = {"mode": "auto", "allowed_tools": "look"}
    with pytest.raises(ValueError, match="allowed_tools"):
        validate_tool_mode(wrong_mode)


@both_ways
@pytest.mark.requirement("AG4")
async def test_tools_of_a_run_are_merged_without_duplicates(stream: bool) -> None:
    class Source:
        id = "notes"

        async def tools(self) -> list[Any]:
            return [FunctionTool(lambda: "noted", name="note")]

        def subscribe(self, on_change: Any) -> None:
            """Its tools never change."""

    class Provider(ContextProvider):
        async def before_run(self, *, agent: Any, session: Any, context: SessionContext, state: Any) -> None:
            context.extend_tools(self.source_id, [FunctionTool(lambda: "found", name=names.pop())])

    names = ["join", "find"]
    calls = [call("note", id="c1"), call("find", id="c2"), call("join", {"first": "a"}, "c3"), call("mine", id="c4")]
    agent, client = agent_of([calls, "ok"], [join, Source()], context_providers=[Provider("p")])
    own = FunctionTool(lambda: "own", name="mine")
    response = await run(agent, stream, tools=[own], options={"temperature": 0.5})
    assert results_of(response) == ["noted", "found", "a?", "own"]
    assert sorted(offered.name for offered in client.requests[0][1].get("tools") or ()) == ["find", "join", "mine", "note"]
    with pytest.raises(ValueError, match="'join'"):
        await run(agent, stream)
