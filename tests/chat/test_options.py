"""Options: common ones renamed for each provider, others unchanged, invalid ones rejected."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from gateway import FunctionTool, OpenAIChatClient
from gateway.chat.openai_base import OpenAIClientBase
from gateway.errors import ChatClientInvalidRequestException
from tests.chat.asking import WHOLE, ask
from tests.fakes.openai_server import ScriptedServer


def look(place: str) -> str:
    """Looks."""
    return place


class Answer(BaseModel):
    """An answer."""

    text: str
    sure: bool


async def body_of(client: OpenAIClientBase, server: ScriptedServer, **options: Any) -> dict[str, Any]:
    await server.play({"text": '{"text": "a", "sure": true}'})
    await ask(client, WHOLE, options=options)
    [request] = await server.requests()
    return request["body"]


@pytest.mark.requirement("TY9")
async def test_common_options_are_translated_and_unsupported_omitted(client: OpenAIClientBase, server: ScriptedServer) -> None:
    common = {"top_p": 0.5, "max_tokens": 9, "user": "u", "metadata": {"a": "b"}, "seed": 7, "stop": ["x"], "presence_penalty": 0.1}
    common |= {"frequency_penalty": 0.2, "logit_bias": {"50256": -100}}
    body = await body_of(client, server, **common, allow_multiple_tool_calls=False, tools=[look], temperature=None)
    assert (body["top_p"], body["user"], body["metadata"], body["parallel_tool_calls"]) == (0.5, "u", {"a": "b"}, False)
    assert "temperature" not in body
    if isinstance(client, OpenAIChatClient):
        assert body["max_output_tokens"] == 9
        assert not {"seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "max_tokens"} & body.keys()
    else:
        assert (body["frequency_penalty"], body["logit_bias"]) == (0.2, {"50256": -100})
        assert (body["max_tokens"], body["seed"], body["stop"], body["presence_penalty"]) == (9, 7, ["x"], 0.1)


@pytest.mark.requirement("TY9", "AG7")
async def test_provider_options_are_passed_through(client: OpenAIClientBase, server: ScriptedServer) -> None:
    extra = {"additional_properties": {"some.Feature": {"deep": 1}}}
    body = await body_of(client, server, service_tier="flex", prompt_cache_key="k", newest_option={"a": 1}, **extra)
    assert (body["service_tier"], body["prompt_cache_key"], body["newest_option"]) == ("flex", "k", {"a": 1})
    assert "Feature" not in str(body)


@pytest.mark.requirement("TY9")
async def test_verbosity_is_where_the_api_has_it(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    assert (await body_of(responses, server, verbosity="low"))["text"] == {"verbosity": "low"}


@pytest.mark.requirement("TL10")
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_tool_choice_is_sent_with_tools_and_only_with_them(client: OpenAIClientBase, server: ScriptedServer, choice: str) -> None:
    assert (await body_of(client, server, tools=[FunctionTool(look)], tool_choice=choice))["tool_choice"] == choice
    assert "tool_choice" not in await body_of(client, server, tool_choice=choice)


@pytest.mark.requirement("TL10")
async def test_required_function_and_a_choice_among_tools_are_named(client: OpenAIClientBase, server: ScriptedServer) -> None:
    named = await body_of(client, server, tools=[look], tool_choice={"mode": "required", "required_function_name": "look"})
    some = await body_of(client, server, tools=[look], tool_choice={"mode": "auto", "allowed_tools": ["look"]})
    if isinstance(client, OpenAIChatClient):
        assert named["tool_choice"] == {"type": "function", "name": "look"}
        assert some["tool_choice"] == {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    else:
        assert named["tool_choice"] == {"type": "function", "function": {"name": "look"}}
        assert some["tool_choice"]["allowed_tools"]["tools"] == [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.requirement("SO1")
@pytest.mark.parametrize(
    ("given", "strict"),
    [
        (Answer, True),
        ({"type": "object", "properties": {"text": {"type": "string"}}}, None),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "array", "items": {"type": "integer"}}, True),
        ({"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False}}, False),
    ],
    ids=["model", "open schema", "closed schema", "array", "the API's form"],
)
async def test_response_format_is_sent_unchanged(
    client: OpenAIClientBase, server: ScriptedServer, given: Any, strict: bool | None
) -> None:
    body = await body_of(client, server, response_format=given)
    is_responses = isinstance(client, OpenAIChatClient)
    sent = body["text"]["format"] if is_responses else body["response_format"]["json_schema"]
    assert sent.get("strict") is strict
    if isinstance(given, dict):
        assert sent["schema"] == (given["json_schema"]["schema"] if "json_schema" in given else given)
    else:
        assert (sent["name"], sent["schema"]["additionalProperties"], sent["schema"]["required"]) == ("Answer", False, ["text", "sure"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tools": [look], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [look], "tool_choice": {"mode": "auto", "required_function_name": "look"}}, "required"),
        ({"tools": [42]}, "42"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"json": True}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "schema"),
    ],
)
async def test_contradictory_options_are_rejected_before_sending(
    client: OpenAIClientBase, server: ScriptedServer, options: Any, says: str
) -> None:
    await server.play({"text": "never"})
    with pytest.raises(ChatClientInvalidRequestException, match=says):
        await ask(client, WHOLE, options=options)
    assert await server.requests() == []


async def test_empty_conversation_is_refused(client: OpenAIClientBase) -> None:
    with pytest.raises(ChatClientInvalidRequestException, match="nothing to send"):
        await ask(client, WHOLE, [])
