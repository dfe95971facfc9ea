"""A chat client without an agent runs tools, compacts conversations and applies middleware like an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway import (
    BaseChatClient,
    ChatContext,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    ScriptedChatClient,
    SlidingWindowStrategy,
    chat_middleware,
    function_middleware,
    tool,
)
from tests.chat.asking import both_ways

ran: list[int] = []


@tool
def double(number: int) -> int:
    """Doubles a number."""
    ran.append(number)
    return number * 2


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def call(number: int = 4, id: str = "c1") -> Content:
    return Content.from_function_call(id, "double", {"number": number})


async def answer(client: Any, stream: bool, messages: Any = "go", **how: Any) -> ChatResponse:
    if stream:
        return await client.get_response(messages, stream=True, **how).get_final_response()
    response: ChatResponse = await client.get_response(messages, **how)
    return response


def kinds(response: ChatResponse) -> list[tuple[str, list[str]]]:
    return [(str(message.role), [content.type for content in message.contents]) for message in response.messages]


@both_ways
@pytest.mark.requirement("TL3", "CL4")
async def test_client_runs_the_tools_of_its_options_until_the_model_ends(stream: bool) -> None:
    client = ScriptedChatClient([[call(4, "c1"), call(5, "c2")], "eight and ten"])
    response = await answer(client, stream, options={"tools": [double]})
    assert (response.text, sorted(ran)) == ("eight and ten", [4, 5])
    assert kinds(response) == [("assistant", ["function_call"] * 2), ("tool", ["function_result"] * 2), ("assistant", ["text"])]
    assert [len(messages) for messages, _ in client.requests] == [1, 3]


@both_ways
@pytest.mark.requirement("TL2", "TL4", "C11")
async def test_limits_of_a_call_override_those_of_the_client(stream: bool) -> None:
    client = ScriptedChatClient([call(1), call(2), call(3), "enough"])
    client.function_invocation_configuration["max_iterations"] = 2
    assert (await answer(client, stream, options={"tools": [double], "loop": {"max_iterations": 3}})).text == "enough"
    assert (ran, client.requests[-1][1].get("tool_choice")) == ([1, 2, 3], "none")
    client = ScriptedChatClient([call()])
    client.function_invocation_configuration["enabled"] = False
    assert kinds(await answer(client, stream, options={"tools": [double]})) == [("assistant", ["function_call"])]
    assert ran == [1, 2, 3]


@pytest.mark.requirement("TL2")
def test_limits_have_defaults_and_unknown_limits_are_rejected() -> None:
    class Client(BaseChatClient):
        pass

    with pytest.raises(ValueError, match="max_rounds"):
        Client(function_invocation_configuration={"max_rounds": 3})
    assert Client().function_invocation_configuration == {
        "enabled": True,
        "max_iterations": 40,
        "max_function_calls": None,
        "max_duration_seconds": None,
        "max_consecutive_errors_per_request": 3,
        "allow_concurrent_invocation": True,
        "terminate_on_unknown_calls": False,
        "additional_tools": [],
        "include_detailed_errors": False,
        "return_tool_results": False,
    }


@both_ways
@pytest.mark.requirement("AP1", "AP2", "AP3")
async def test_call_that_needs_approval_runs_after_the_answer(stream: bool) -> None:
    guarded = FunctionTool(double.func, name="double", approval_mode="always_require")
    client = ScriptedChatClient([call(), "eight"])
    asked = await answer(client, stream, options={"tools": [guarded]})
    [request] = [content for message in asked.messages for content in message.contents if content.type == "function_approval_request"]
    assert ran == []
    told = [Message("user", ["go"]), *asked.messages, Message("user", [request.to_function_approval_response(approved=True)])]
    assert (await answer(client, stream, told, options={"tools": [guarded]})).messages[-1].text == "eight"
    assert ran == [4]


@both_ways
@pytest.mark.requirement("TL1", "TL11")
async def test_calls_of_tools_without_code_come_back(stream: bool) -> None:
    declared = FunctionTool[..., Any](name="double", description="Doubles.", schema={"type": "object", "properties": {"number": {}}})
    response = await answer(ScriptedChatClient([call()]), stream, options={"tools": [declared]})
    assert kinds(response) == [("assistant", ["function_call"])]


@both_ways
@pytest.mark.requirement("TL14", "MW4", "MW6")
async def test_middleware_and_values_of_a_call_reach_its_tools(stream: bool) -> None:
    log: list[Any] = []

    @function_middleware
    async def around_tools(context: FunctionInvocationContext, call_next: Any) -> None:
        log.append(context.kwargs)
        await call_next()

    @chat_middleware
    async def around_models(context: ChatContext, call_next: Any) -> None:
        log.append("model")
        await call_next()

    client = ScriptedChatClient([call(), "eight"])
    how = {"middleware": [around_tools, around_models], "function_invocation_kwargs": {"user": "ann"}}
    await answer(client, stream, options={"tools": [double]}, **how)
    assert log == ["model", {"user": "ann"}, "model"]


@both_ways
@pytest.mark.requirement("CL4")
async def test_agent_over_a_client_runs_each_tool_once(stream: bool) -> None:
    class Layered(FunctionInvocationLayer, ScriptedChatClient):
        """A client composed like agent-framework's clients."""

        asked = 0

        def get_response(self, *args: Any, **how: Any) -> Any:
            self.asked += 1
            return super().get_response(*args, **how)

    client = Layered([call(), "eight"])
    agent = client.as_agent(tools=[double])
    response = await (agent.run("go", stream=True).get_final_response() if stream else agent.run("go"))
    assert (response.text, ran, client.asked) == ("eight", [4], 2)


class Telling(BaseChatClient):
    """A client that answers with the number of messages and the values that it received."""

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: ChatOptions, **own: Any) -> Any:
        async def whole() -> ChatResponse:
            return ChatResponse([Message("assistant", [f"{len(messages)} {own}"])])

        return whole()


@both_ways
@pytest.mark.requirement("CP1", "SE22")
async def test_compaction_of_a_call_replaces_the_clients(stream: bool) -> None:
    conversation = [Message(role, [text]) for text in "abcd" for role in ("user", "assistant")]
    client = Telling(compaction_strategy=SlidingWindowStrategy(keep_last_groups=3))
    assert (await answer(client, stream, conversation)).text == "3 {}"
    assert (await answer(client, stream, conversation, compaction_strategy=SlidingWindowStrategy(keep_last_groups=1))).text == "1 {}"
    assert [message.additional_properties for message in conversation] == [{}] * 8
    assert (await client.as_agent().run(conversation)).text == "3 {}"


@both_ways
@pytest.mark.requirement("MW3")
async def test_client_kwargs_of_a_run_pass_middleware_to_the_client(stream: bool) -> None:
    async def sign(context: ChatContext, call_next: Any) -> None:
        context.kwargs["signed"] = True
        await call_next()

    agent = Telling().as_agent(middleware=[sign])
    run: Any = agent.run("hi", stream=stream, client_kwargs={"region": "eu"})
    response = await (run.get_final_response() if stream else run)
    assert response.text == "1 {'region': 'eu', 'signed': True}"


@pytest.mark.requirement("MW3")
async def test_result_hook_sees_changed_parts_and_replaces_the_whole() -> None:
    @chat_middleware
    async def shout(context: ChatContext, call_next: Any) -> None:
        await call_next()
        context.stream_transform_hooks.append(lambda part: ChatResponseUpdate([Content.from_text(part.text.upper())], part.role))
        context.stream_result_hooks.append(lambda whole: ChatResponse([Message("assistant", [f"<{whole.text}>"])], "other"))

    stream = ScriptedChatClient([["a", "b"]]).get_response("hi", stream=True, middleware=[shout])
    assert [part.text async for part in stream] == ["A", "B"]
    whole = await stream.get_final_response()
    assert (whole.text, whole.response_id) == ("<AB>", "other")
