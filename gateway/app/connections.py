"""What one HTTP connection may cost: how long its request may take to arrive and its answer to be read, and how many there may be.

When the gateway stops, calls may finish and streams that only wait for news are ended at once, since they never would.

A peer that sends its request byte by byte, or stops reading its answer, holds a socket, a task and buffers for nothing.
uvicorn closes idle connections but waits for ever in these two cases; here a timer is set only while a request is
incomplete or the peer's window is full, so that an honest call, which arrives in one piece, sets none. The parser is h11's,
wherever uvicorn would choose httptools, behind which a peer that sends on without reading is not cut.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from asyncio import BaseTransport, TimerHandle, Transport  # noqa: TID251  # what uvicorn's protocols are made of
    from collections.abc import Iterable

    from gateway.config.models import HttpSettings

DESCRIPTORS_KEPT_BACK = 0.5
"""Share of the process's open files that connections may not use: servers, files and the database need theirs."""

_TIMED_OUT = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 34\r\n\r\n"
    b"The request did not arrive in time"
)


def connection_limit(settings: HttpSettings, open_files: int | None = None) -> int:
    """How many connections are served at once; one more is answered 503.

    `open_files` is the limit of this process, by default asked from the system; a low one lowers the configured bound.
    """
    limit = _open_files() if open_files is None else open_files
    return settings.max_connections if limit is None else max(1, min(settings.max_connections, int(limit * (1 - DESCRIPTORS_KEPT_BACK))))


def waits_for_news(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is a stream without an end of its own: the listening GET of 2025, `subscriptions/listen` of 2026."""
    found = dict(headers)
    return found.get(b"mcp-method") == b"subscriptions/listen" or (method == "GET" and b"text/event-stream" in found.get(b"accept", b""))


def _open_files() -> int | None:
    """How many files this process may have open; None: as many as it likes."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def patient_protocol(settings: HttpSettings) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with the deadlines of `settings`, to be given to its `Config` as `http`."""

    class PatientProtocol(_Patient):
        head_seconds = settings.head_seconds
        body_seconds = settings.body_seconds
        unread_seconds = settings.unread_seconds

    return PatientProtocol


class _Patient(H11Protocol):
    """Ends a connection whose request does not arrive, or whose answer is not read, in time."""

    head_seconds: float
    """From the connection or the first byte of a later request until its headers are whole; then 408."""
    body_seconds: float
    """From the headers until the body is whole; then 408 if nothing was answered yet."""
    unread_seconds: float
    """How long an answer may wait for its reader; then the connection is cut."""

    _arrival: TimerHandle | None = None
    _awaits_body = False
    _unread: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._arrival = self.loop.call_later(self.head_seconds, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_arrival()
        self._stop_unread()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # or what a reset connection held stays until its time to be idle is over

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if not cycle or cycle.response_complete:  # no cycle before the first request
            awaits_body, seconds = False, self.head_seconds
        elif cycle.more_body:
            awaits_body, seconds = True, self.body_seconds
        else:
            if self._arrival is not None:
                self._stop_arrival()
            return
        if self._arrival is None or awaits_body is not self._awaits_body:
            self._stop_arrival()
            self._awaits_body = awaits_body
            self._arrival = self.loop.call_later(seconds, self._too_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def shutdown(self) -> None:
        """The gateway stops: take no further request, let a call finish, end a stream that waits for news."""
        cycle = self.cycle
        if cycle and not cycle.response_complete and waits_for_news(cycle.scope["method"], self.headers):
            self.transport.close()
        else:
            super().shutdown()

    def _too_late(self) -> None:
        self._arrival = None
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if not cycle or cycle.response_complete or not cycle.response_started:
            self.transport.write(_TIMED_OUT)
        self.transport.close()

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
