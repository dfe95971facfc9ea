"""The event store behind resumable legacy streams."""

from __future__ import annotations

from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification

from gateway.server.replay import MAX_EVENTS_PER_STREAM, MAX_STREAMS, ReplayStore


def note(name: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=name)


async def replayed(store: ReplayStore, after: str) -> tuple[str | None, list[str]]:
    seen: list[str] = []

    async def take(event: EventMessage) -> None:
        assert isinstance(event.message, JSONRPCNotification)
        seen.append(event.message.method)

    return await store.replay_events_after(after, take), seen


async def test_what_came_after_an_event_is_sent_again_on_its_own_stream_only() -> None:
    store = ReplayStore()
    first = await store.store_event("s1", None)
    await store.store_event("s2", note("other"))
    await store.store_event("s1", note("a"))
    await store.store_event("s1", note("b"))
    assert await replayed(store, first) == ("s1", ["a", "b"])


async def test_an_unknown_or_malformed_event_id_resumes_nothing() -> None:
    store = ReplayStore()
    last = await store.store_event("s1", note("a"))
    for bad in ("", "x", "x.1", last.split(".")[0] + ".99", last.split(".")[0] + ".-1", last.split(".")[0] + ".9999999999999999"):
        assert await replayed(store, bad) == (None, [])


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
