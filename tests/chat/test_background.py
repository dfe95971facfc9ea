"""Background responses: start, poll, stream, resume after a break, cancel and delete."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway import OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.long_running import to_status
from gateway.chat.openai_options import OpenAIChatOptions
from gateway.errors import ModelError
from gateway.types.responses import ChatResponseUpdate
from tests.chat.asking import STREAMED, WHOLE, ask
from tests.fakes.openai_server import ScriptedServer

BACKGROUND: OpenAIChatOptions = {"background": True}


async def updates_of(client: OpenAIChatClient, options: Any, *, until: str | None = None) -> list[ChatResponseUpdate]:
    """Return the parts of a streamed response up to the part with the text `until`."""
    found: list[ChatResponseUpdate] = []
    stream = client.get_response("go", stream=True, options=options)
    with anyio.fail_after(20):
        async for update in stream:
            found.append(update)
            if until is not None and update.text == until:
                await stream.aclose()
                break
    return found


@pytest.mark.requirement("LR1", "LR2", "LR3", "LR6")
async def test_background_response_is_polled_until_its_token_is_gone(
    responses: OpenAIChatClient, server: ScriptedServer
) -> None:
    await server.play({"text": "at last", "polls": 1})
    started = await ask(responses, WHOLE, options=BACKGROUND)
    assert started.continuation_token == {"response_id": "resp_1"}
    assert (started.text, started.additional_properties["status"]) == ("", "queued")
    waiting = await ask(responses, WHOLE, [], {"continuation_token": started.continuation_token})
    assert waiting.continuation_token == started.continuation_token
    assert waiting.additional_properties["status"] == "in_progress"
    done = await ask(responses, WHOLE, [], {"continuation_token": waiting.continuation_token})
    assert (done.text, done.continuation_token, done.additional_properties["status"]) == ("at last", None, "completed")
    first, *polls = await server.requests()
    assert (first["body"]["background"], first["body"]["store"]) == (True, True)
    assert [request["method"] for request in polls] == ["GET", "GET"]


@pytest.mark.requirement("LR5")
async def test_interrupted_stream_resumes_at_its_position(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "one two three four"})
    before = await updates_of(responses, BACKGROUND, until=" two")
    token = before[-1].continuation_token
    after = await updates_of(responses, {"continuation_token": token})
    assert "".join(update.text for update in [*before, *after]) == "one two three four"
    assert after[-1].continuation_token is None


@pytest.mark.requirement("LR5")
@pytest.mark.parametrize("drop_after", [0, 3, 4, 6])
async def test_broken_stream_is_resumed_without_the_caller_noticing(
    responses: OpenAIChatClient, server: ScriptedServer, drop_after: int
) -> None:
    await server.play({"text": "one two three", "tool_calls": [{"id": "c1", "name": "look"}], "drop_after": drop_after})
    response = await ask(responses, STREAMED, options=BACKGROUND)
    assert response.text == "one two three"
    assert [c.call_id for c in response.messages[0].contents if c.type == "function_call"] == ["c1"]
    _, resumed = await server.requests()
    assert resumed["query"] == f"stream=true&starting_after={drop_after}"


@pytest.mark.requirement("LR5")
async def test_update_repeats_the_place_before_a_call_until_it_is_complete(
    responses: OpenAIChatClient, server: ScriptedServer
) -> None:
    await server.play({"text": "hm", "tool_calls": [{"id": "c1", "name": "look"}, {"id": "c2", "name": "look"}]})
    updates = await updates_of(responses, BACKGROUND)
    places = [(u.contents[0].type, (u.continuation_token or {}).get("sequence_number")) for u in updates if u.contents]
    assert places == [("text", 2), ("function_call", 7), ("function_call", 11), ("usage", None)]


@pytest.mark.requirement("LR3", "LR7")
async def test_cancelling_before_the_end_cancels_and_later_returns_the_end(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "a", "polls": 5}, {"text": "b", "polls": 0})
    running = await ask(responses, WHOLE, options=BACKGROUND)
    assert running.continuation_token is not None
    stopped = await responses.cancel_response(running.continuation_token)
    assert stopped is not None
    assert (stopped.additional_properties["status"], stopped.continuation_token, stopped.text) == ("cancelled", None, "")
    finished = await responses.cancel_response({"response_id": "resp_3"}) if await ask(responses, WHOLE, options=BACKGROUND) else None
    assert finished is not None
    assert (finished.additional_properties["status"], finished.text) == ("completed", "b")


@pytest.mark.requirement("LR7")
async def test_leaving_a_poll_does_not_stop_the_provider(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "one two", "polls": 1})
    with anyio.CancelScope() as scope:
        async for _ in responses.get_response("go", stream=True, options=BACKGROUND):
            scope.cancel()
    assert [request.get("method", "POST") for request in await server.requests()] == ["POST"]


@pytest.mark.requirement("LR3")
async def test_response_can_be_deleted_and_an_unknown_one_is_an_error(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "a"})
    started = await ask(responses, WHOLE, options=BACKGROUND)
    assert await responses.delete_response(started.continuation_token or {}) is True
    for call in (responses.cancel_response, responses.delete_response):
        with pytest.raises(ModelError, match="does not have response 'resp_9'"):
            await call({"response_id": "resp_9"})


@pytest.mark.requirement("LR1", "LR3")
async def test_client_without_background_work_ignores_the_option(
    completions: OpenAIChatCompletionClient, server: ScriptedServer
) -> None:
    await server.play({"text": "at once"})
    response = await ask(completions, WHOLE, options=BACKGROUND)
    assert (response.text, response.continuation_token) == ("at once", None)
    assert "background" not in (await server.requests())[0]["body"]
    assert await completions.cancel_response({"response_id": "x"}) is None
    assert await completions.delete_response({"response_id": "x"}) is None
    with pytest.raises(ModelError, match="continuation token"):
        await ask(completions, WHOLE, options={"continuation_token": {"response_id": "x"}})


@pytest.mark.requirement("LR2")
@pytest.mark.parametrize("token", [{}, {"response_id": ""}, {"response_id": "../models"}, "resp_1"])
async def test_token_of_somebody_else_is_refused(responses: OpenAIChatClient, token: Any) -> None:
    with pytest.raises(ModelError, match="continuation token"):
        await ask(responses, WHOLE, [], {"continuation_token": token})


@pytest.mark.requirement("LR6")
@pytest.mark.parametrize(
    ("label", "status"),
    [
        ("in-progress", "in_progress"),
        ("canceled", "cancelled"),
        ("auth-required", "auth_required"),
        (None, "unknown"),
        ("dreaming", "dreaming"),
    ],
)
def test_known_statuses_are_unified_and_unknown_ones_kept(label: str | None, status: str) -> None:
    assert to_status(label) == status
