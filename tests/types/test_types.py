"""Messages, contents and responses: round trips and folding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, Content, Message, ResponseStream
from gateway.types.annotations import add_usage
from gateway.types.call_arguments import read_arguments
from gateway.types.responses import last_text


@pytest.mark.requirement("TY1")
def test_strings_and_dicts_among_contents_become_contents() -> None:
    message = Message("user", ["hi", {"type": "text", "text": "you"}, Content.from_text("!")])
    assert message.text == "hi you !"
    assert [content.type for content in message.contents] == ["text"] * 3


@pytest.mark.requirement("TY2", "C12")
def test_unknown_kind_survives_a_round_trip() -> None:
    wire = {"type": "hologram", "beams": [1, {"deep": True}], "additional_properties": {"x": 1}}
    message = Message("assistant", [wire], author_name="me", message_id="m", additional_properties={"k": "v"})
    again = Message.from_dict(json.loads(json.dumps(message.to_dict())))
    assert again == message
    assert again.contents[0].to_dict() == wire


@pytest.mark.requirement("TY3")
def test_function_result_hides_its_exception_from_the_model() -> None:
    content = Content.from_function_result("c1", "Error: Function failed.", "RuntimeError('secret')")
    assert (content.call_id, content.result, content.exception) == ("c1", "Error: Function failed.", "RuntimeError('secret')")


@pytest.mark.parametrize(("written", "read"), [("", {}), ('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1})])
def test_call_arguments_are_read_as_an_object(written: str, read: dict[str, int]) -> None:
    assert Content.from_function_call("c", "f", written).parse_arguments() == read


@pytest.mark.parametrize("written", ["[1]", "{", "null"])
def test_arguments_that_are_not_an_object_are_shown_raw(written: str) -> None:
    raw = written if written == "{" else json.loads(written)
    assert Content.from_function_call("c", "f", written).parse_arguments() == {"raw": raw}
    with pytest.raises(ValueError):
        read_arguments(written)


@pytest.mark.requirement("TY4")
def test_chat_updates_fold_into_one_response() -> None:
    response = ChatResponse.from_updates(
        [
            ChatResponseUpdate([Content.from_text("one")], "assistant", "r1", "m"),
            ChatResponseUpdate([Content.from_text(" two"), Content.from_usage({"input_token_count": 2})]),
            ChatResponseUpdate([Content.from_function_call("c", "f", "{}")], finish_reason="tool_calls"),
        ]
    )
    [message] = response.messages
    assert [content.type for content in message.contents] == ["text", "function_call"]
    assert (response.text, response.response_id, response.model, response.finish_reason) == ("one two", "r1", "m", "tool_calls")
    assert response.usage_details == {"input_token_count": 2}


@pytest.mark.requirement("TY8", "TY12", "C23")
def test_agent_updates_fold_into_messages_and_usage_adds_up() -> None:
    usage = Content.from_usage({"total_token_count": 5})
    updates = [
        AgentResponseUpdate([Content.from_text("let me"), usage], "assistant", message_id="1"),
        AgentResponseUpdate([Content.from_function_result("c", "5")], "tool", message_id="1-tools"),
        AgentResponseUpdate([Content.from_text("it is")], "assistant", message_id="2"),
        AgentResponseUpdate([Content.from_text(" 5"), usage], "assistant", message_id="2", finish_reason="stop"),
    ]
    response = AgentResponse.from_updates(updates)
    said = [(message.role, message.text) for message in response.messages]
    assert said == [("assistant", "let me"), ("tool", ""), ("assistant", "it is 5")]
    assert response.usage_details == {"total_token_count": 10}
    assert (response.text, last_text(response.messages)) == ("let meit is 5", "it is 5")
    assert updates[2].text == "it is"


@pytest.mark.requirement("TY5")
def test_agent_response_goes_through_json() -> None:
    more: Any = {"created_at": "2026-01-01T00:00:00Z", "continuation_token": {"task": 1}}
    response = AgentResponse([Message("assistant", "hi")], "r", "a", "stop", {"total_token_count": 1}, {"n": 1}, {"k": "v"}, **more)
    data = json.loads(response.to_json())
    assert (data["type"], data["value"]) == ("agent_response", {"n": 1})
    again = AgentResponse.from_json(json.dumps(data))
    assert again.to_dict() == data
    assert (again.text, again.response_id, again.agent_id, again.finish_reason) == ("hi", "r", "a", "stop")
    assert (again.created_at, again.continuation_token, again.usage_details) == (*more.values(), {"total_token_count": 1})
    assert (again.value, again.additional_properties, again.response_format) == ({"n": 1}, {"k": "v"}, None)


@pytest.mark.requirement("TY4")
def test_chat_response_goes_through_json_and_comes_in_parts() -> None:
    own: Any = {"conversation_id": "v", "created_at": "t", "continuation_token": {"id": "r"}, "additional_properties": {"k": 1}}
    response = ChatResponse([Message("assistant", "hi")], "r", "m", "stop", {"total_token_count": 1}, **own)
    data = json.loads(json.dumps(response.to_dict()))
    assert data.items() >= {**own, "type": "chat_response", "response_id": "r", "model": "m", "finish_reason": "stop"}.items()
    assert ChatResponse.from_dict(data) == response
    parts = [ChatResponseUpdate.from_json(part.to_json()) for part in response.to_updates()]
    folded = ChatResponse.from_updates(parts).to_dict()
    assert {**folded, "messages": []} == {**data, "messages": []}
    assert folded["messages"][0]["contents"] == data["messages"][0]["contents"]


def test_usage_that_only_one_side_has_is_kept() -> None:
    assert add_usage(None, None) is None
    assert add_usage({"a": 1}, None) == {"a": 1}
    assert add_usage({"a": 1, "b": 2}, {"a": 1}) == {"a": 2, "b": 2}


@pytest.mark.requirement("CL3")
async def test_stream_yields_its_parts_and_then_the_whole() -> None:
    async def numbers():
        for number in (1, 2, 3):
            yield number

    stream = ResponseStream(numbers(), lambda parts: sum(parts))
    assert await anext(aiter(stream)) == 1
    assert await stream.get_final_response() == 6
    assert await stream.get_final_response() == 6


def test_parts_of_a_folded_response_fold_again_unchanged() -> None:
    first = ChatResponse.from_updates([ChatResponseUpdate([Content.from_text(part)]) for part in "ab"])
    first.messages[0].contents.append(Content.from_text("!"))
    assert [ChatResponse.from_updates(first.to_updates()).text for _ in range(2)] == ["ab!", "ab!"]
    assert first.text == "ab !"
