"""Both OpenAI clients against a real scripted server; one test covers both APIs."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import openai
import pytest

from gateway import ChatOptions, Content, FunctionTool, Message, OpenAIChatClient
from gateway.chat.model_retry import RetryPolicy
from gateway.chat.openai_base import OpenAIClientBase
from gateway.chat.openai_errors import to_model_error
from gateway.errors import ModelError
from tests.chat.asking import KEY, STREAMED, WHOLE, ask, both_ways
from tests.fakes.openai_server import ScriptedServer


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@both_ways
@pytest.mark.requirement("CL1")
async def test_answer_has_its_text_usage_model_and_finish_reason(client: OpenAIClientBase, server: ScriptedServer, stream: bool) -> None:
    await server.play({"text": "hello {last_user}, well met", "input_tokens": 5, "output_tokens": 3})
    response = await ask(client, stream, "joe")
    assert response.text == "hello joe, well met"
    assert response.finish_reason == "stop"
    assert response.model == "model-a"
    usage = response.usage_details or {}
    assert [usage[f"{kind}_token_count"] for kind in ("input", "output", "total")] == [5, 3, 8]
    [request] = await server.requests()
    assert request["authorization"] == f"Bearer {KEY}"
    assert request["body"].get("stream", False) is stream


@pytest.mark.requirement("CL1")
async def test_stream_sends_the_request_with_the_first_read(
    client: OpenAIClientBase, server: ScriptedServer
) -> None:
    await server.play({"text": "one two three"})
    stream = client.get_response("count", stream=True)
    assert await server.requests() == []
    with anyio.fail_after(20):
        parts = [update.text async for update in stream]
    assert [part for part in parts if part] == ["one", " two", " three"]


@both_ways
async def test_parallel_tool_calls_arrive_whole_and_in_order(client: OpenAIClientBase, server: ScriptedServer, stream: bool) -> None:
    calls = [{"id": "c1", "name": "weather", "arguments": {"city": "Köln"}}, {"id": "c2", "name": "weather", "arguments": {"city": "Rom"}}]
    await server.play({"text": "Let me look.", "tool_calls": calls})
    response = await ask(client, stream, options={"tools": [FunctionTool(weather)]})
    [message] = response.messages
    found = [(c.call_id, c.name, c.parse_arguments()) for c in message.contents if c.type == "function_call"]
    assert found == [("c1", "weather", {"city": "Köln"}), ("c2", "weather", {"city": "Rom"})]
    assert message.text == "Let me look."


async def test_tool_is_declared_and_its_result_is_sent_back(
    client: OpenAIClientBase, server: ScriptedServer
) -> None:
    await server.play({"text": "{last_tool}; tools: {tools}"})
    conversation = [
        Message("user", "weather?"),
        Message("assistant", [Content.from_function_call("c1", "weather", arguments='{"city": "Rom"}')]),
        Message("tool", [Content.from_function_result("c1", result={"sky": "blue"})]),
    ]
    response = await ask(client, STREAMED, conversation, {"tools": [FunctionTool(weather)], "instructions": "Be brief."})
    assert response.text == '{"sky": "blue"}; tools: weather'
    [request] = await server.requests()
    assert "Be brief." in str(request["body"])
    [declared] = request["body"]["tools"]
    function = declared.get("function", declared)
    assert function["description"] == "The weather in a city."
    assert function["parameters"]["required"] == ["city"]


async def test_options_reach_the_provider_under_its_own_names(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"text": "ok"})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    options: ChatOptions = {"temperature": 0.5, "max_tokens": 100, "model": "model-b", "response_format": schema}
    await ask(client, WHOLE, options=options)
    [request] = await server.requests()
    body = request["body"]
    assert (body["temperature"], body["model"]) == (0.5, "model-b")
    assert body.get("max_output_tokens", body.get("max_tokens")) == 100
    if isinstance(client, OpenAIChatClient):
        assert body["text"]["format"]["schema"] == schema
        assert body["store"] is False
    else:
        assert body["response_format"]["json_schema"]["schema"] == schema


@both_ways
async def test_response_cut_by_the_token_limit_is_marked(client: OpenAIClientBase, server: ScriptedServer, stream: bool) -> None:
    await server.play({"text": "the beginning", "fault": "length"})
    assert (await ask(client, stream)).finish_reason == "length"


@both_ways
@pytest.mark.parametrize(
    ("script", "status", "retryable", "says"),
    [
        ({"apiKey": "another"}, 401, False, "OPENAI_API_KEY"),
        ({"models": ["model-z"]}, 404, False, "OPENAI_MODEL"),
        ({"turns": [{"status": 429, "retry_after": 0, "repeat": True}]}, 429, True, "too many requests"),
        ({"turns": [{"status": 500, "retry_after": 0, "repeat": True}]}, 500, True, "500"),
        ({"turns": [{"status": 400, "message": "no such parameter"}]}, 400, False, "no such parameter"),
    ],
    ids=["401", "404", "429", "500", "400"],
)
async def test_rejection_names_the_remedy_and_never_the_key(
    client: OpenAIClientBase, server: ScriptedServer, stream: bool, script: dict[str, Any], status: int, retryable: bool, says: str
) -> None:
    await server.play(*script.get("turns", ()), **{k: v for k, v in script.items() if k != "turns"})
    with pytest.raises(ModelError) as caught:
        await ask(client, stream)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert says in str(caught.value)
    assert KEY not in str(caught.value) and "LEAKED" not in str(caught.value)


@both_ways
async def test_short_refusal_is_retried(client: OpenAIClientBase, server: ScriptedServer, stream: bool) -> None:
    await server.play({"status": 429, "retry_after": 0}, {"status": 503, "retry_after": 0}, {"text": "here"})
    assert (await ask(client, stream)).text == "here"
    assert len(await server.requests()) == 3


@pytest.mark.parametrize("fault", ["drop", "malformed", "failed"])
async def test_broken_stream_names_the_model_and_keeps_earlier_parts(
    client: OpenAIClientBase, server: ScriptedServer, fault: str
) -> None:
    await server.play({"text": "half an answer", "fault": fault})
    parts: list[str] = []
    with anyio.fail_after(20), pytest.raises(ModelError) as caught:
        async for update in client.get_response("hi", stream=True):
            parts.append(update.text)  # noqa: PERF401  # the parts before the error are the point
    assert "".join(parts) == "half an answer"
    assert "model-a" in str(caught.value)
    assert caught.value.retryable


async def test_whole_answer_that_is_not_json_is_an_error(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"fault": "malformed"})
    with pytest.raises(ModelError, match="model-a"):
        await ask(client, WHOLE)


@both_ways
async def test_silence_ends_with_the_timeout(server: ScriptedServer, client: OpenAIClientBase, stream: bool) -> None:
    await server.play({"text": "soon", "fault": "hang", "repeat": True})
    impatient = type(client)("model-a", api_key=KEY, base_url=server.base_url, timeout_seconds=0.2, retry=RetryPolicy(base_seconds=0.0))
    try:
        with pytest.raises(ModelError) as caught:
            await ask(impatient, stream)
    finally:
        await impatient.aclose()
    assert caught.value.retryable
    assert "did not answer within 0.2 s" in str(caught.value)


def test_connect_timeout_names_the_endpoint() -> None:
    timeout = openai.APITimeoutError(request=httpx2.Request("POST", "http://model.example/v1"))
    timeout.__cause__ = httpx2.ConnectTimeout("")
    assert "http://model.example/v1 cannot be reached" in str(to_model_error(timeout, model="a", base_url="http://model.example/v1"))


async def test_endpoint_without_a_listener_is_named(client: OpenAIClientBase) -> None:
    lost = type(client)("model-a", api_key=KEY, base_url="http://user:pass@127.0.0.1:9/v1", timeout_seconds=5)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9.*cannot be reached") as caught:
        await ask(lost, WHOLE)
    assert "pass@" not in str(caught.value)
    await lost.aclose()


async def test_leaving_a_stream_early_frees_the_connection(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"text": "a b c", "fault": "hang"}, {"text": "next"})
    stream = client.get_response("hi", stream=True)
    with anyio.fail_after(20):
        assert (await anext(aiter(stream))).text in ("", "a")
        await stream.aclose()
        assert (await ask(client, STREAMED)).text == "next"


@pytest.mark.parametrize("image", ["data:image/png;base64,aGk=", "https://example.com/a.png"])
async def test_image_is_sent_as_one(client: OpenAIClientBase, server: ScriptedServer, image: str) -> None:
    await server.play({"text": "a cat"})
    await ask(client, WHOLE, [Message("user", ["what is this?", {"type": "uri", "uri": image, "media_type": "image/png"}])])
    [request] = await server.requests()
    assert image in str(request["body"])
