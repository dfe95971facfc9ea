"""The event store behind resumable legacy streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCError, JSONRPCNotification

from gateway.server.event_ids import FORGOTTEN, MAX_REQUEST_ID, is_listening, listening_token, replica_of_event, request_of, request_token
from gateway.server.sdk_path.resumable_sessions import MAX_CHARACTERS, MAX_EVENTS_PER_STREAM, MAX_STREAMS, ReplayStore
from tests.fakes.inside import gateway_inside
from tests.fakes.running import upstream_stdio


def note(name: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=name)


async def replayed(store: ReplayStore, after: str) -> tuple[str | None, list[str]]:
    seen: list[str] = []

    async def take(event: EventMessage) -> None:
        message = event.message
        if isinstance(message, JSONRPCError):
            assert message.error.message == FORGOTTEN
            seen.append(f"error {message.id!r}")
        else:
            assert isinstance(message, JSONRPCNotification)
            seen.append(message.method)

    return await store.replay_events_after(after, take), seen


async def test_events_after_an_event_id_are_resent_on_their_stream_only() -> None:
    store = ReplayStore()
    first = await store.store_event("s1", None)
    await store.store_event("s2", note("other"))
    await store.store_event("s1", note("a"))
    await store.store_event("s1", note("b"))
    assert await replayed(store, first) == ("s1", ["a", "b"])


async def test_unknown_or_malformed_event_id_resumes_nothing() -> None:
    store = ReplayStore()
    last = await store.store_event("s1", note("a"))
    for bad in ("", "x", "x.1", last.split(".")[0] + ".99", last.split(".")[0] + ".-1", last.split(".")[0] + ".9999999999999999"):
        assert await replayed(store, bad) == (None, ["error None"]), bad


async def test_old_events_and_old_streams_are_forgotten() -> None:
    store = ReplayStore()
    first = await store.store_event("s0", None)
    for n in range(MAX_EVENTS_PER_STREAM + 5):
        await store.store_event("s0", note(str(n)))
    assert (await replayed(store, first))[0] is None
    for n in range(1, MAX_STREAMS + 1):
        await store.store_event(f"s{n}", None)
    recent = await store.store_event("s0", note("again"))
    assert (await replayed(store, recent))[0] == "s0"


async def test_large_events_are_forgotten_soon() -> None:
    store = ReplayStore()
    first = last = await store.store_event("s0", None)
    for n in range(1, 4):
        params = {"text": ["x" * (MAX_CHARACTERS // 2)]}
        last = await store.store_event(f"s{n}", JSONRPCNotification(jsonrpc="2.0", method="m", params=params))
    assert await replayed(store, first) == (None, ["error None"])
    assert (await replayed(store, last))[0] == "s3"


@pytest.mark.parametrize("request_id", [7, -1, 0, "7", "", "a.b~c", "näme\n", 2**60])
async def test_event_id_names_the_request_whose_response_was_lost(request_id: int | str) -> None:
    store = ReplayStore("0a1b2c3d")
    store.requests[str(request_id)] = request_id
    event = await store.store_event(str(request_id), None)
    assert (event.isascii(), event.isprintable(), " " in event) == (True, True, False)
    assert (replica_of_event(event), is_listening(event)) == ("0a1b2c3d", False)
    found = request_of(event)
    assert (found, type(found)) == (request_id, type(request_id))


@pytest.mark.parametrize("request_id", [None, True, 1.5, "x" * MAX_REQUEST_ID])
def test_event_id_has_no_request_id_that_is_odd_or_too_long(request_id: Any) -> None:
    token = request_token("0a1b2c3d", request_id)
    assert (request_of(f"{token}.1"), is_listening(f"{token}.1")) == (None, False)


FORGED = ["", "a~r", "a~r!.1", "a~rbnVsbA.1", "a~rdHJ1ZQ.1", "a~rW10.1", "a~r" + "A" * 400, listening_token("a") + ".1"]


@pytest.mark.parametrize("event", FORGED, ids=range(len(FORGED)))
def test_event_id_without_a_request_names_none(event: str) -> None:
    assert request_of(event) is None


HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def opened(url: str) -> dict[str, str]:
    """The headers of a new 2025 session."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    answer = httpx2.post(url, headers=HEADERS, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    return {**HEADERS, "mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}


def events_of(url: str, headers: dict[str, str], text: str) -> list[str]:
    """Make a call with request id 7 and return the event ids of its stream."""
    call = {"name": "up__echo", "arguments": {"text": text}, "_meta": {"progressToken": "t"}}
    answer = httpx2.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call})
    assert text in answer.text
    return [line.removeprefix("id: ") for line in answer.text.splitlines() if line.startswith("id: ")]


def heard_after(url: str, headers: dict[str, str], event_id: str, *, until: str = "", seconds: float = 20) -> str:
    """Return what the server sends after an event id on a resumed stream: up to some text, or for a time."""
    heard, asked = "", {**headers, "accept": "text/event-stream", "last-event-id": event_id}
    try:
        with httpx2.stream("GET", url, headers=asked, timeout=seconds) as answer:
            for part in answer.iter_text():
                heard += part
                if until and until in heard:
                    break
    except httpx2.ReadTimeout:
        pass
    return heard


def test_session_is_never_sent_events_of_another(tmp_path: Path) -> None:
    """Streams are named by request ids, which sessions share."""
    with gateway_inside(tmp_path, {"mcpServers": {"up": upstream_stdio()}}) as gateway:
        one, other = opened(gateway.url), opened(gateway.url)
        own = events_of(gateway.url, one, "of the one")
        secret = events_of(gateway.url, other, "of the other")
        assert "of the one" in heard_after(gateway.url, one, own[0], until="of the one")
        assert "of the other" not in heard_after(gateway.url, one, own[0], seconds=1)
        assert "of the other" not in heard_after(gateway.url, one, secret[0], seconds=1)
