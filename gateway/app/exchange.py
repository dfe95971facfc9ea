"""`Exchange`: one HTTP request on a connection and its answer, as an ASGI application sees them; `Begun`: one that a short cut answers.

Belongs to `http1`, which reads and writes; plain asyncio as there.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.auth.principal import LOCAL, Principal
from gateway.server.clients import PRINCIPAL_SCOPE_KEY

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from gateway.server.head import Admission, Head

HIGH_WATER_BYTES = 262_144
"""Of a body that the application has not taken yet; reading pauses here."""

_JOINED_BYTES = 65_536
"""A body up to this is copied behind its head; a larger one is handed over as it is."""

_JSON_HEAD = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n%b%b"
"""Of an answer of the short cut: with the lines that every answer has, its length, and what else is to be said."""

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
"""First lines of answers, line break included."""

_DISCONNECT: Message = {"type": "http.disconnect"}


def refusal(status: int, text: bytes, *fields: bytes) -> bytes:
    """Return a whole answer after which the connection ends."""
    lines = [b"connection: close", b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(text), *fields, b"\r\n"]
    return STATUS_LINES[status] + b"\r\n".join(lines) + text


class Line(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    drained: asyncio.Event | None
    """Done when the peer has read on; `None` while it does."""
    common_count: int
    """How many `common_fields` there are."""

    def common_fields(self) -> bytes:
        """The header lines of every answer."""
        ...

    def write(self, data: bytes) -> None:
        """Send."""
        ...

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send one after the other."""
        ...

    def write_soon(self, data: bytes) -> None:
        """Send at the end of this turn of the loop."""
        ...

    async def room(self, size: int) -> None:
        """Wait until the peer has read on, to send `size` bytes then."""
        ...

    def read_on(self) -> None:
        """There is room for more."""
        ...

    def answered(self, exchange: Exchange) -> None:
        """Its answer is complete."""
        ...

    def settled(self, exchange: Exchange) -> None:
        """What the short cut began for it has led to something."""
        ...


class Begun(Protocol):
    """A request that the short cut took."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it was ended before its time."""
        ...

    def cancel(self, msg: object = None) -> None:
        """End it before its time, as a server that stops does with tasks."""
        ...

    def left(self) -> None:
        """Its client is gone, which may end it."""
        ...

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called once, when `answer` can tell."""
        ...

    def answer(self) -> tuple[bytes, Sequence[bytes | memoryview]] | None:
        """The 2025 session that the answer is of, if it is of one, and its JSON in parts; `None` where the longer path must go on."""
        ...

    def forget(self) -> None:
        """It is over."""
        ...

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The longer path: an application for this request alone."""
        ...


Take = Callable[["Head", bytes], Begun | None]
"""Begins to answer a request that came whole, of which it is given head and body, without a task for the request itself.

`None` leaves it to the application.
"""


class Exchange:
    """One request and its answer; `receive` and `send` are those of ASGI."""

    __slots__ = (
        "_chunked",
        "_head",
        "_is_given",
        "_is_open_ended",
        "_left",
        "_line",
        "_parts",
        "_scope",
        "_size",
        "_waiter",
        "admission",
        "begun",
        "head",
        "is_answered",
        "is_begun",
        "is_gone",
        "is_refused",
        "is_started",
        "is_taken",
        "is_whole",
        "keep_alive",
        "received",
        "wants_continue",
    )

    def __init__(self, line: Line, head: Head, *, keep_alive: bool, wants_continue: bool = False, body: bytes | None = None) -> None:
        """Of a request whose head has come, and may be all of its `body`."""
        self.head = head
        self.keep_alive = keep_alive
        self.is_whole = body is not None
        self.is_begun = self.is_taken = self.is_started = self.is_answered = self.is_gone = self.is_refused = False
        """It was given to the application; to the short cut; its answer has begun; is complete; the peer is gone; its body is dropped."""
        self.admission: Admission | None = None
        """The caller, if the head was judged before the body was complete."""
        self.received = 0
        """Bytes of its body that came in parts."""
        self.begun: Begun | None = None
        """The short cut's, while it answers; it ends with the peer."""
        self._line = line
        self._scope: Scope | None = None
        self.wants_continue = wants_continue
        self._parts: list[bytes] = [] if body is None else [body]
        self._size = 0 if body is None else len(body)
        self._is_given = False
        self._waiter: asyncio.Event | None = None
        self._head: bytes | None = None
        self._left = 0
        self._chunked = self._is_open_ended = False

    @property
    def scope(self) -> Scope:
        """As the application gets it; the short cut does without."""
        if self._scope is None:
            self._scope = self.head.scope()
        return self._scope

    @property
    def caller(self) -> Principal | None:
        """The principal of the request; `None` for pages that need no key, and for refused requests."""
        if self._scope is not None:
            return self._scope.get(PRINCIPAL_SCOPE_KEY)
        if not self.is_taken:
            return None
        return LOCAL if self.head.key is None else self.head.key.principal

    # -- for the connection --------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """More of the body came; whether more may be read."""
        self.received += len(data)
        if self.is_answered or self.is_refused:
            return True
        self._parts.append(data)
        self._size += len(data)
        self.wake()
        return self._size <= HIGH_WATER_BYTES

    def refuse(self) -> None:
        """Drop what came of the body, and what is still to come."""
        self.is_begun = self.is_refused = True
        self._parts, self._size = [], 0

    def settled(self) -> None:
        """What the short cut began has led to something."""
        self._line.settled(self)

    def wake(self) -> None:
        """What `receive` waits for may have come."""
        if self._waiter is not None:
            self._waiter.set()

    def body(self) -> bytes:
        """What came of the body; `receive` gives it all the same."""
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def answer(self, session: bytes, body: Sequence[bytes | memoryview]) -> None:
        """Send what the short cut answers to a POST, as `Begun.answer` gives it, unless the peer is gone."""
        if self.is_gone:
            return
        line = self._line
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        said = b"mcp-session-id: %b\r\n" % session if session else b""
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = _JSON_HEAD % (line.common_fields(), size, said, end)
        self.is_started = True
        if len(body) == 1 and size <= _JOINED_BYTES:
            line.write_soon(head + body[0])
        else:
            line.write_parts((head, *body))
        self.is_answered = True
        self._parts = []  # or a connection keeps its last body until the next
        self.wake()
        line.answered(self)

    # -- for the application -------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """What came of the body; then that the peer left, or has its answer. What the short cut began goes on whoever left."""
        while not self.is_answered and (not self.is_gone or (self.is_taken and not self._is_given)):
            if self._parts or (self.is_whole and not self._is_given):
                parts = self._parts
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                self._parts, self._size, self._is_given = [], 0, self.is_whole
                return {"type": "http.request", "body": body, "more_body": not self.is_whole}
            if self.wants_continue and not self.is_started:
                self.wants_continue = False
                self._line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._line.read_on()
            if self._waiter is None:
                self._waiter = asyncio.Event()
            self._waiter.clear()
            await self._waiter.wait()
        return _DISCONNECT

    async def send(self, message: Message) -> None:
        """The head of the answer, then its parts. A head that tells the length waits for its body."""
        line, body = self._line, message.get("body") or b""
        if line.drained is not None and self.is_started and not self.is_gone:  # a head does not wait, so that its body comes and counts
            await line.room(len(body))
        if self.is_gone:
            return
        if not self.is_started:
            assert message["type"] == "http.response.start", message["type"]
            self._begin(message["status"], message.get("headers") or ())
            return
        assert message["type"] == "http.response.body" and not self.is_answered, message["type"]
        self._write(body, is_last=not message.get("more_body"))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._line.common_fields()]
        length = None
        closes = not self.is_whole  # the rest of its body would be read as the next request
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = closes or b"close" in value.lower()
            elif name == b"transfer-encoding":
                continue  # is ours to say
            lines.append(b"%s: %s\r\n" % (name, value))
        has_body = self.head.method != "HEAD" and status not in (204, 304)
        self._chunked = has_body and length is None and self.head.version == "1.1"
        self._is_open_ended = has_body and length is None and not self._chunked
        self._left = (length or 0) if has_body else 0
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) + self._line.common_count - 1 or head.count(b"\r") != head.count(b"\n") or b"\0" in head:
            raise ValueError("a header of the answer holds a line break")
        self.is_started = True
        self._head = head + b"\r\n"
        if self._chunked or self._is_open_ended:
            self._line.write(self._head)
            self._head = None

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if self._chunked:
            data = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            if is_last:
                data += b"0\r\n\r\n"
            self._line.write(data)
        elif self._is_open_ended:  # HTTP/1.0: it ends with the connection
            self._line.write(body)
        else:
            if self.head.method == "HEAD":
                body = b""
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the answer is not as long as it said")
            head, self._head = self._head, None
            if head is None:
                self._line.write(body)
            elif len(body) <= _JOINED_BYTES:
                self._line.write(head + body)
            else:
                self._line.write_parts((head, body))
        if is_last:
            self.is_answered = True
            self.wake()
            self._line.answered(self)
