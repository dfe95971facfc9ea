"""Contents of Chat Completions responses besides text, and requests that contain such contents."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import Content, FunctionTool, Message, OpenAIChatCompletionClient
from tests.chat.asking import STREAMED, WHOLE, ask, both_ways
from tests.fakes.openai_server import ScriptedServer

PNG = "iVBORw0KGgo="


def look(place: str) -> str:
    """Looks."""
    return place


async def sent(client: OpenAIChatCompletionClient, server: ScriptedServer, messages: list[Message], **options: Any) -> dict[str, Any]:
    """Return the request for a conversation."""
    await server.play({"text": "ok"})
    await ask(client, WHOLE, messages, options)
    [request] = await server.requests()
    return request["body"]


@both_ways
@pytest.mark.requirement("CL8", "TY12")
async def test_reasoning_refusals_and_cached_tokens_arrive(
    completions: OpenAIChatCompletionClient, server: ScriptedServer, stream: bool
) -> None:
    deltas = [{"reasoning_content": "h"}, {"reasoning_content": "m"}, {"refusal": "no"}]
    said = {"deltas": deltas} if stream else {"message": {"reasoning_content": "hm", "refusal": "no"}}
    await server.play({**said, "text": "", "cached_tokens": 3, "reasoning_tokens": 2})
    response = await ask(completions, stream)
    reasoning, refusal = response.messages[0].contents
    assert (reasoning.type, reasoning.text) == ("text_reasoning", "hm")
    assert (refusal.text, refusal.additional_properties["refusal"]) == ("no", True)
    usage = response.usage_details or {}
    assert (usage["cache_read_input_token_count"], usage["reasoning_output_token_count"]) == (3, 2)


@pytest.mark.requirement("CL8")
async def test_required_reasoning_is_returned_to_the_server(completions: OpenAIChatCompletionClient, server: ScriptedServer) -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    await server.play({"text": "a", "message": {"reasoning_details": details}})
    response = await ask(completions, WHOLE)
    body = await sent(completions, server, [*response.messages, Message("user", "go on")])
    assert body["messages"][0] == {"role": "assistant", "content": "a", "reasoning_details": details}


@pytest.mark.requirement("CL8")
async def test_citations_of_a_web_search_arrive(completions: OpenAIChatCompletionClient, server: ScriptedServer) -> None:
    citation = {"url": "https://example.com/a", "title": "A", "start_index": 0, "end_index": 1}
    await server.play({"text": "a", "message": {"annotations": [{"type": "url_citation", "url_citation": citation}]}})
    [text] = (await ask(completions, WHOLE)).messages[0].contents
    [annotation] = list(text.annotations or ())
    assert (annotation.get("url"), annotation.get("title")) == ("https://example.com/a", "A")


@pytest.mark.requirement("CL8")
async def test_audio_arrives_as_audio(completions: OpenAIChatCompletionClient, server: ScriptedServer) -> None:
    await server.play({"message": {"audio": {"id": "a1", "data": "UklGRg==", "transcript": "hello"}}})
    [audio] = (await ask(completions, WHOLE)).messages[0].contents
    assert (audio.media_type, audio.additional_properties["transcript"]) == ("audio/wav", "hello")


@pytest.mark.requirement("CL8")
async def test_parallel_calls_all_numbered_zero_stay_apart(
    completions: OpenAIChatCompletionClient, server: ScriptedServer
) -> None:
    calls = [{"index": 0, "id": f"c{n}", "function": {"name": "look", "arguments": f'{{"place": "{n}"}}'}} for n in (1, 2, 3)]
    await server.play({"deltas": [{"tool_calls": [call]} for call in calls]})
    response = await ask(completions, STREAMED, options={"tools": [FunctionTool(look)]})
    assert [(c.call_id, c.parse_arguments()) for c in response.messages[0].contents] == [(f"c{n}", {"place": str(n)}) for n in (1, 2, 3)]


@both_ways
@pytest.mark.requirement("CL8")
async def test_log_probabilities_are_among_the_additional_properties(
    completions: OpenAIChatCompletionClient, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"text": "a", "logprobs": {"content": [{"token": "a", "logprob": -0.1}]}})
    response = await ask(completions, stream, options={"logprobs": True})
    assert response.additional_properties["logprobs"] == {"content": [{"token": "a", "logprob": -0.1}]}


@pytest.mark.requirement("CL8")
async def test_images_audio_and_files_keep_their_type(completions: OpenAIChatCompletionClient, server: ScriptedServer) -> None:
    contents = [
        "look",
        Content.from_data(PNG, "image/png", additional_properties={"detail": "low"}),
        Content.from_data("SUQz", "audio/mpeg"),
        Content.from_data("JVBERg==", "application/pdf", additional_properties={"filename": "a.pdf"}),
        Content.from_hosted_file("file-1"),
        Content.from_uri("https://example.com/b.pdf", "application/pdf"),
    ]
    body = await sent(completions, server, [Message("user", contents, author_name="Ann B.")])
    [message] = body["messages"]
    assert message["name"] == "Ann_B_"
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "input_audio", "file", "file", "text"]
    assert message["content"][1]["image_url"]["detail"] == "low"
    assert message["content"][2]["input_audio"] == {"data": "SUQz", "format": "mp3"}


@pytest.mark.requirement("CL8")
async def test_image_that_a_tool_gave_follows_the_results_as_a_message(
    completions: OpenAIChatCompletionClient, server: ScriptedServer
) -> None:
    image = Content.from_function_result("c1", items=[Content.from_data(PNG, "image/png")])
    results = Message("tool", [image, Content.from_function_result("c2", "text")])
    calls = Message("assistant", [Content.from_function_call(f"c{n}", "look", "{}") for n in (1, 2)])
    body = await sent(completions, server, [calls, results])
    assert [message["role"] for message in body["messages"]] == ["assistant", "tool", "tool", "user"]
    assert body["messages"][3]["content"][1]["type"] == "image_url"


@pytest.mark.requirement("CL6", "CL7")
async def test_web_search_goes_out_as_an_option_of_its_own(completions: OpenAIChatCompletionClient, server: ScriptedServer) -> None:
    search = completions.get_web_search_tool(web_search_options={"search_context_size": "low"})
    body = await sent(completions, server, [Message("user", "hi")], tools=[search])
    assert body["web_search_options"] == {"search_context_size": "low"}
    assert "tools" not in body
