"""A server's sampling request answered by a chat client: the model's input and the converted answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import Content, ScriptedChatClient
from gateway.chat.sampling_requests import answer_sampling
from gateway.errors import ModelError

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": {"type": "text", "text": "Capital of France?"}}], "maxTokens": 100}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Looks outside", "inputSchema": {"type": "object", "properties": {"at": {}}}}


@pytest.mark.requirement(41)
async def test_only_the_fields_of_the_request_reach_the_model() -> None:
    client = ScriptedChatClient(["Paris"])
    await answer_sampling(
        client,
        {**ASKED, "systemPrompt": "", "temperature": 0, "stopSequences": ["!"], "tools": [WEATHER], "toolChoice": {"mode": "required"}},
    )
    [(messages, options)] = client.requests
    tools = [tool.definition for tool in options.pop("tools", ())]
    assert [(m.role, m.text) for m in messages] == [("user", "Capital of France?")]
    assert options == {"max_tokens": 100, "instructions": "", "temperature": 0.0, "stop": ["!"], "tool_choice": "required"}
    assert [(t.name, t.description, t.input_schema) for t in tools] == [("weather", "Looks outside", WEATHER["inputSchema"])]


@pytest.mark.requirement(41)
async def test_options_that_the_request_leaves_out_are_left_out() -> None:
    client = ScriptedChatClient(["Paris"])
    await answer_sampling(client, ASKED)
    assert client.requests[0][1] == {"max_tokens": 100}


@pytest.mark.requirement(43)
async def test_the_first_text_or_image_is_the_answer() -> None:
    answer = await answer_sampling(ScriptedChatClient(["Paris"]), ASKED)
    assert answer == {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "scripted"}
    picture = await answer_sampling(ScriptedChatClient([[Content.from_data("aGk=", "image/png")]]), ASKED)
    assert picture["content"] == {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.mark.requirement(43)
async def test_tool_calls_become_tool_use() -> None:
    client = ScriptedChatClient([[Content.from_function_call("c1", "weather", '{"at": "Oslo"}')]])
    answer = await answer_sampling(client, {**ASKED, "tools": [WEATHER]})
    assert answer["content"] == [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"at": "Oslo"}}]
    assert answer["stopReason"] == "toolUse"


@pytest.mark.requirement(43)
async def test_tool_results_of_the_conversation_reach_the_model() -> None:
    client = ScriptedChatClient(["Take a coat."])
    used: dict[str, Any] = {"role": "assistant", "content": {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}}
    result = {"type": "tool_result", "toolUseId": "c1", "content": [{"type": "text", "text": "cold"}]}
    await answer_sampling(client, {**ASKED, "messages": [used, {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]})
    messages = client.requests[0][0]
    assert [m.role for m in messages] == ["assistant", "tool", "user"]
    assert messages[1].contents[0].result == "cold"


@pytest.mark.requirement(42)
@pytest.mark.parametrize("reply", [ModelError("overloaded"), "", [Content.from_text_reasoning("hm")]])
async def test_failing_or_empty_model_is_a_model_error(reply: Any) -> None:
    with pytest.raises(ModelError):
        await answer_sampling(ScriptedChatClient([reply]), ASKED)


@pytest.mark.requirement(44)
async def test_model_without_a_name_is_called_unknown() -> None:
    answer = await answer_sampling(ScriptedChatClient(["Paris"], model=""), ASKED)
    assert answer["model"] == "unknown"
