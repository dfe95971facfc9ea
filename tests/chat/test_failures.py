"""Failures of an endpoint: error classes, retries and waits."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from gateway import OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.argument_repair import REPAIRED, repair
from gateway.chat.model_retry import BUDGET_CAPACITY, RetryBudget, RetryPolicy, may_retry, retry_after_seconds
from gateway.chat.openai_base import OpenAIClientBase
from gateway.errors import (
    ChatClientContentFilterException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ModelError,
)
from tests.chat.asking import KEY, STREAMED, WHOLE, ask, both_ways
from tests.fakes.openai_server import ScriptedServer

FILTERED = {
    "code": "content_filter",
    "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"violence": {"filtered": True, "severity": "high"}}},
}


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        ({"status": 401}, ChatClientInvalidAuthException),
        ({"status": 403}, ChatClientInvalidAuthException),
        ({"status": 404}, ChatClientInvalidRequestException),
        ({"status": 422}, ChatClientInvalidRequestException),
        ({"status": 400, "error": FILTERED}, ChatClientContentFilterException),
        ({"status": 400}, ChatClientInvalidRequestException),
        ({"status": 429, "error": {"code": "insufficient_quota"}}, ChatClientException),
    ],
    ids=["401", "403", "404", "422", "filter", "400", "quota"],
)
async def test_refusal_has_its_own_class_and_is_not_repeated(
    client: OpenAIClientBase, server: ScriptedServer, turn: dict[str, Any], kind: type[ModelError]
) -> None:
    await server.play(turn)
    with pytest.raises(ModelError) as caught:
        await ask(client, WHOLE)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.retryable) == (turn["status"], False)
    assert len(await server.requests()) == 1
    if isinstance(caught.value, ChatClientContentFilterException):
        assert caught.value.content_filter_result["violence"]["severity"] == "high"


@both_ways
async def test_retry_after_over_a_minute_is_not_waited_for(
    client: OpenAIClientBase, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"status": 429, "retry_after": 3600, "repeat": True})
    with pytest.raises(ModelError) as caught:
        await ask(client, stream)
    assert (caught.value.retry_after_seconds, caught.value.retryable) == (3600, True)
    assert len(await server.requests()) == 1


async def test_server_that_names_a_time_is_waited_for(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"status": 503, "retry_after": 0.3}, {"text": "here"})
    start = time.monotonic()
    assert (await ask(client, WHOLE)).text == "here"
    assert time.monotonic() - start >= 0.3


@pytest.mark.fault(28)
async def test_client_suspends_retries_after_many_failures(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"status": 500, "repeat": True})
    for _ in range(8):
        with pytest.raises(ModelError):
            await ask(client, WHOLE)
    assert len(await server.requests()) == 8 + BUDGET_CAPACITY


@pytest.mark.parametrize("fault", ["drop", "malformed"])
@pytest.mark.fault(28)
async def test_broken_stream_is_not_requested_again(client: OpenAIClientBase, server: ScriptedServer, fault: str) -> None:
    await server.play({"text": "half", "fault": fault}, {"text": "another"})
    with pytest.raises(ModelError):
        await ask(client, STREAMED)
    assert len(await server.requests()) == 1


async def test_unreachable_server_is_retried_and_then_named() -> None:
    once = RetryPolicy(max_retries=1, base_seconds=0)
    client = OpenAIChatCompletionClient("m", api_key=KEY, base_url="http://127.0.0.1:9/v1", retry=once)
    try:
        with anyio.fail_after(20), pytest.raises(ModelError, match="cannot be reached") as caught:
            await client.get_response("hi")
        assert caught.value.retryable
    finally:
        await client.aclose()


def test_repeats_are_spread_and_their_waits_grow_to_a_limit() -> None:
    policy = RetryPolicy(base_seconds=1, cap_seconds=4)
    waits = [[policy.wait_seconds(repeat) for _ in range(200)] for repeat in (1, 2, 3, 9)]
    assert all(max(of_one) <= limit for of_one, limit in zip(waits, (1, 2, 4, 4), strict=True))
    assert all(len(set(of_one)) > 100 for of_one in waits)


def test_budget_is_used_up_and_comes_back_with_answers() -> None:
    budget = RetryBudget()
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(8):
        budget.answered()
    assert [budget.take() for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (None, {}, True),
        (408, {}, True),
        (409, {}, True),
        (429, {}, True),
        (500, {}, True),
        (529, {}, True),
        (400, {}, False),
        (501, {"x-should-retry": "false"}, False),
        (400, {"x-should-retry": "true"}, True),
    ],
)
def test_only_requests_that_may_succeed_are_retried(status: int | None, headers: dict[str, str], expected: bool) -> None:
    assert may_retry(status, headers) is expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_the_time_a_server_names_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers) == seconds


# -- tool-call arguments -----------------------------------------------------------------------------------------


@both_ways
@pytest.mark.fault(28)
async def test_mended_arguments_are_marked_and_logged(
    client: OpenAIClientBase, server: ScriptedServer, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broken = '```json\n{"place": "attic",}\n```'
    await server.play({"tool_calls": [{"id": "c1", "name": "look", "arguments": broken}]})
    [call] = [c for c in (await ask(client, stream)).messages[0].contents if c.type == "function_call"]
    assert call.parse_arguments() == {"place": "attic"}
    assert call.additional_properties[REPAIRED]["original"] == broken
    assert "'look'" in caplog.text and "attic" not in caplog.text


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ('{"a": [1, 2,],}', '{"a": [1, 2]}'),
        ('{"a": "x,}"}', '{"a": "x,}"}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("{'a': True, 'b': None}", '{"a": true, "b": null}'),
        ('```\n{"a": 1}\n```', '{"a": 1}'),
        ('{"a": "two\nlines"}', '{"a": "two\\nlines"}'),
    ],
)
def test_arguments_with_one_reading_are_mended(text: str, mended: str) -> None:
    found = repair(text)
    assert found is not None and found[0] == mended


@pytest.mark.parametrize("text", ['{"a": "cut o', '{"a": 1}{"a": 2}', "[1]", "rm -rf /", "{'a': object()}", '{"a": 1', "{1: 2}"])
def test_arguments_with_more_than_one_reading_stay_as_they_are(text: str) -> None:
    assert repair(text) is None


async def test_unparsable_arguments_arrive_as_written(client: OpenAIClientBase, server: ScriptedServer) -> None:
    await server.play({"tool_calls": [{"id": "c1", "name": "look", "arguments": '{"place": "att'}]})
    [call] = [c for c in (await ask(client, WHOLE)).messages[0].contents if c.type == "function_call"]
    assert call.arguments == '{"place": "att'
    assert call.parse_arguments() == {"raw": '{"place": "att'}


async def test_failure_inside_a_response_gives_the_reason(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "half", "fault": "failed"})
    with pytest.raises(ModelError, match=r"server_error.*The model had an error") as caught:
        await ask(responses, STREAMED)
    assert caught.value.retryable
