"""The connected client's own model: requests, their limits, and converted answers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import CallContext, ChatOptions, Content, FunctionTool, Message
from gateway.chat.sampling_client import NO_TOOLS, SamplingChatClient
from gateway.errors import ModelError
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallPorts
from gateway.tools.ports import ClientProfile, NoCaller

ANSWER = {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "m", "stopReason": "endTurn"}


class Client(NoCaller):
    """A client that gives the same answer to every request and records requests."""

    def __init__(self, answer: dict[str, Any] = ANSWER) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def ask(self, request: dict[str, Any], key: str = "") -> dict[str, Any]:
        assert request["method"] == "sampling/createMessage"
        self.asked.append(request["params"])
        return self.answer


def chat(client: Client, *, tools: bool = False) -> SamplingChatClient:
    capabilities: dict[str, Any] = {"sampling": {"tools": {}} if tools else {}}
    return SamplingChatClient(CallContext(CallFacts(client=ClientProfile(capabilities=capabilities)), CallPorts(caller=client)))


def look(place: str) -> str:
    """Looks somewhere."""
    return place


OPTIONS: ChatOptions = {"tools": [FunctionTool(look)], "instructions": "Be brief."}


@pytest.mark.requirement(41)
async def test_options_are_mapped_and_max_tokens_is_always_set() -> None:
    client = Client()
    response = await chat(client).get_response("hi", options={"instructions": "Be brief.", "temperature": 0.1, "stop": ["END"]})
    assert (response.text, response.model) == ("ok", "m")
    [params] = client.asked
    assert (params["systemPrompt"], params["temperature"], params["stopSequences"]) == ("Be brief.", 0.1, ["END"])
    assert params["maxTokens"] > 0


@pytest.mark.requirement(39)
async def test_request_for_more_tokens_is_cut_to_the_cap() -> None:
    client = Client()
    await chat(client).get_response("hi", options={"max_tokens": 10_000})
    await chat(client).get_response("hi", options={"max_tokens": 100})
    assert [params["maxTokens"] for params in client.asked] == [4096, 100]


@pytest.mark.requirement(36)
async def test_twenty_sixth_sampling_request_of_a_run_is_rejected() -> None:
    client = Client()
    run = chat(client)
    for _ in range(25):
        await run.get_response("hi")
    with pytest.raises(ModelError, match="25"):
        await run.get_response("hi")
    assert len(client.asked) == 25


async def test_client_without_sampling_tools_gets_a_request_without_tools() -> None:
    client = Client()
    await chat(client).get_response("hi", options=OPTIONS)
    [params] = client.asked
    assert "tools" not in params
    assert NO_TOOLS in params["systemPrompt"]


@pytest.mark.requirement(43)
async def test_client_with_sampling_tools_gets_tools_and_returns_calls() -> None:
    content = [{"type": "text", "text": "looking"}, {"type": "tool_use", "id": "t1", "name": "look", "input": {"place": "attic"}}]
    client = Client({**ANSWER, "content": content, "stopReason": "toolUse"})
    response = await chat(client, tools=True).get_response("hi", options={**OPTIONS, "loop": {"enabled": False}})
    [params] = client.asked
    assert [tool["name"] for tool in params["tools"]] == ["look"]
    [call] = [content for content in response.messages[0].contents if content.type == "function_call"]
    assert (call.call_id, call.name, call.parse_arguments()) == ("t1", "look", {"place": "attic"})


async def test_tool_round_is_sent_back_as_use_and_result() -> None:
    client = Client()
    conversation = [
        Message("user", "look"),
        Message("assistant", [Content.from_function_call("t1", "look", {"place": "attic"})]),
        Message("tool", [Content.from_function_result("t1", "dust")]),
    ]
    await chat(client, tools=True).get_response(conversation, options=OPTIONS)
    [params] = client.asked
    assert [message["role"] for message in params["messages"]] == ["user", "assistant", "user"]
    assert params["messages"][2]["content"]["toolUseId"] == "t1"


@pytest.mark.requirement(42, 44)
async def test_empty_response_is_an_error_and_missing_model_name_unknown() -> None:
    with pytest.raises(ModelError, match="empty"):
        await chat(Client({**ANSWER, "content": []})).get_response("hi")
    nameless = {key: value for key, value in ANSWER.items() if key != "model"}
    assert (await chat(Client(nameless)).get_response("hi")).model == "unknown"


async def test_client_without_sampling_is_an_error_that_states_it() -> None:
    with pytest.raises(ModelError, match="client's model"):
        await SamplingChatClient(CallContext()).get_response("hi")


@pytest.mark.requirement(41)
async def test_images_and_audio_cross_both_ways_and_other_files_by_name() -> None:
    audio: dict[str, Any] = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
    client = Client({**ANSWER, "content": [{"type": "text", "text": "Listen:"}, audio]})
    seen = Message("user", ["Look:", Content.from_data(b"png", "image/png"), Content.from_data(b"%PDF", "application/pdf")])
    shot = Content.from_function_result("c1", [Content.from_text("shot"), Content.from_data(b"jpg", "image/jpeg")])
    call = Message("assistant", [Content.from_function_call("c1", "look", {"place": "attic"})])
    response = await chat(client, tools=True).get_response([seen, call, Message("tool", [shot])], options=OPTIONS)
    [params] = client.asked
    blocks = params["messages"][0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "text"]
    assert blocks[1] == {"type": "image", "data": "cG5n", "mimeType": "image/png"} and "pdf" in blocks[2]["text"]
    result = params["messages"][2]["content"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert [content.media_type for content in response.messages[0].contents] == [None, "audio/wav"]
