"""A server with the transport of 2024-11-05: all callers share one stream, and a failed call does not affect other calls."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.fakes.inside import Inside, gateway_inside
from tests.fakes.running import free_port
from tests.fakes.sse_upstream import OldServer, old_server
from tests.interaction.ways import Way, connected

MODERN = Way("http", "modern", "old")
TOO_MUCH = 68_000_000
"""A size in bytes above the gateway's limit."""


@pytest.fixture
def old() -> Generator[OldServer]:
    with old_server() as server:
        yield server


@pytest.fixture
def gateway(old: OldServer, tmp_path: Path) -> Generator[Inside]:
    with gateway_inside(tmp_path, config_for(old.url)) as inside:
        yield inside


def config_for(url: str) -> dict[str, Any]:
    return {"mcpServers": {"old": {"type": "sse", "url": url}}, "policies": {"old": {"timeoutSeconds": 10, "connectTimeoutSeconds": 5}}}


def why_down(inside: Inside) -> str:
    """Return the server's error from the status page."""
    answer = httpx2.get(inside.url.replace("/mcp", "/status.json"))
    return answer.json()["sources"][0]["error"]


async def called(client: Any, how: str, **more: Any) -> tuple[bool, str]:
    """Make a call, and return whether its result is an error and the result's text."""
    answer = await client.call_tool("old__do", {"how": how, **more})
    return answer.is_error, answer.content[0].text


FAILING = {
    "large": (TOO_MUCH, "larger than the limit of 67108864 bytes"),
    "last-id": (TOO_MUCH, "larger than the limit of 67108864 bytes"),
    "lines": (TOO_MUCH, "larger than the limit of 67108864 bytes"),
    "garbage": (1, "with something that is not MCP"),
    "turned-away": (1, "with something that is not MCP"),
    "unheard": (1, "broke"),
}


@pytest.mark.parametrize("how", FAILING)
@pytest.mark.fault(19, 20)
async def test_failing_call_does_not_affect_others(old: OldServer, gateway: Inside, how: str) -> None:
    size, words = FAILING[how]
    slow: list[tuple[bool, str]] = []
    failed: list[tuple[bool, str]] = []
    async with connected(MODERN, gateway.url) as (client, _), connected(MODERN, gateway.url) as (other, _):

        async def wait() -> None:
            slow.append(await called(other, "slow"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            failed.append(await called(client, how, bytes=size))
            assert await called(client, "well") == (False, "x")
            old.may_go_on.set()
    assert failed[0][0] and words in failed[0][1]
    assert slow == [(False, "x")]
    assert old.opened == 1


async def test_response_with_its_id_as_text_ends_the_call(gateway: Inside) -> None:
    async with connected(MODERN, gateway.url) as (client, _):
        with anyio.fail_after(5):
            assert await called(client, "text-id") == (False, "x")


@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
async def test_large_response_is_received(gateway: Inside, size: int) -> None:
    async with connected(MODERN, gateway.url) as (client, _):
        assert await called(client, "large", bytes=size) == (False, "x" * size)
        assert await called(client, "lines", bytes=size) == (False, "x" * size)


@pytest.mark.parametrize(("status", "words"), [(429, "accepts no requests for"), (401, "answered 401"), (403, "answered 403")])
@pytest.mark.fault(21)
async def test_rejected_call_states_the_reason(old: OldServer, gateway: Inside, status: int, words: str) -> None:
    old.status = status
    async with connected(MODERN, gateway.url) as (client, _):
        failed, text = await called(client, "turned-away")
    assert failed and words in text, text
    assert old.runs == []


async def test_session_the_server_forgot_is_reopened_and_the_call_sent(old: OldServer, gateway: Inside) -> None:
    async with connected(MODERN, gateway.url) as (client, _):
        with anyio.fail_after(10):
            assert await called(client, "forgotten") == (False, "x")
    assert old.runs == ["forgotten"]
    assert old.opened == 2


@pytest.mark.fault(18)
async def test_ended_stream_fails_its_calls_and_is_reopened(old: OldServer, gateway: Inside) -> None:
    async with connected(MODERN, gateway.url) as (client, _):
        with anyio.fail_after(10):
            failed, text = await called(client, "stream-ends")
            assert failed and "the call may have run" in text, text
            while (await called(client, "well"))[0]:
                await anyio.sleep(0.05)
    assert old.runs.count("stream-ends") == 1


async def test_call_whose_post_never_completes_is_answered(gateway: Inside) -> None:
    async with connected(MODERN, gateway.url) as (client, _):
        with anyio.fail_after(4):
            assert await called(client, "unended") == (False, "x")


async def test_server_may_move_its_stream_and_messages_within_its_origin(old: OldServer, tmp_path: Path) -> None:
    old.endpoint = "/moved-messages"
    with gateway_inside(tmp_path, config_for(old.url.replace("/sse", "/moved"))) as inside:
        async with connected(MODERN, inside.url) as (client, _):
            assert await called(client, "well") == (False, "x")


@pytest.mark.attack(3)
def test_messages_are_sent_to_no_other_origin(old: OldServer, tmp_path: Path) -> None:
    with old_server() as other:
        old.endpoint = other.url.replace("/sse", "/messages")
        with gateway_inside(tmp_path, config_for(old.url)) as inside:
            assert "at another origin" in why_down(inside)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/page", "'text/html' instead of an event stream"),
        ("/status/401", "answered 401; set its credentials"),
        ("/status/405", 'answered 405; does it have the newer transport .*"http"'),
        ("/status/500", "answered 500$"),
        ("/status/503", "accepts no requests for"),
    ],
)
def test_response_that_is_not_an_event_stream_is_named(old: OldServer, tmp_path: Path, path: str, words: str) -> None:
    with gateway_inside(tmp_path, config_for(old.url.replace("/sse", path))) as inside:
        assert re.search(words, why_down(inside))


def test_unreachable_sse_server_is_named(tmp_path: Path) -> None:
    with gateway_inside(tmp_path, config_for(f"http://127.0.0.1:{free_port()}/sse")) as inside:
        assert "cannot connect" in why_down(inside)
