"""The event store behind legacy SSE streams: lets a client that lost its connection pick up where it was.

In memory and bounded: streams and bytes beyond the limits are forgotten oldest first, which a client sees as a
stream that cannot be resumed. The modern era has no resumption.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

MAX_STREAMS = 2_000
"""Streams remembered at once."""

MAX_EVENTS_PER_STREAM = 200
"""Events remembered of one stream."""

RETRY_MILLISECONDS = 500
"""What clients are told to wait before they reconnect a legacy stream."""


@dataclass(slots=True)
class _Stream:
    first: int = 1
    events: list[JSONRPCMessage | None] = field(default_factory=lambda: list[JSONRPCMessage | None]())


class ReplayStore(EventStore):
    """Implements the SDK's `EventStore`; event ids are `<stream token>.<number>`."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._tokens: dict[str, str] = {}
        self._names: dict[str, str] = {}

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Remember one event and return its id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream()
            token = secrets.token_urlsafe(9)
            self._tokens[stream_id], self._names[token] = token, stream_id
            if len(self._streams) > MAX_STREAMS:
                self._forget_oldest()
        self._streams.move_to_end(stream_id)
        stream.events.append(message)
        if len(stream.events) > MAX_EVENTS_PER_STREAM:
            del stream.events[0]
            stream.first += 1
        return f"{self._tokens[stream_id]}.{stream.first + len(stream.events) - 1}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came after an event on its stream; `None` where it is no longer known."""
        token, _, number = last_event_id.partition(".")
        name = self._names.get(token)
        stream = self._streams.get(name) if name is not None else None
        if name is None or stream is None or not number.isdecimal() or len(number) > 12:
            return None
        position = int(number)
        if not stream.first - 1 <= position < stream.first + len(stream.events):
            return None
        for index, message in enumerate(stream.events[position - stream.first + 1 :], start=position + 1):
            if message is not None:
                await send_callback(EventMessage(message, f"{token}.{index}"))
        return name

    def _forget_oldest(self) -> None:
        stream_id, _ = self._streams.popitem(last=False)
        del self._names[self._tokens.pop(stream_id)]
