"""`scripted_upstream` over HTTP: many servers in one process, each on a port of its own, with faults that only HTTP has.

`die` closes the port and forgets every session until the fault ends; `once` reopens the port at once, as a restart does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fakes.scripted_upstream import ODD, Answer, Ask, Doing, Hold, Message, Point, Say, Scripted, encoded, refusal

GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.IncompleteRead, OSError)
STREAMED = frozenset({"progress", "ask", "answered", "cancel"})
"""Steps whose response is an event stream, because their faults happen between two events."""

LOOK_SECONDS = 0.02
OVERSIZED = 1 << 30
STATUS = {200: "OK", 202: "Accepted", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error", 503: "Busy"}


REFUSED: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "type": (200, b"<html>Welcome</html>", {}),
    "lost": (404, b"", {}),
    "error": (500, b"oops", {}),
    "busy": (503, b"", {"Retry-After": "1"}),
}
"""Status, body and headers of the fault kinds whose response is not an MCP message."""


class Reply:
    """The answer to one HTTP request."""

    def __init__(self, stream: anyio.abc.SocketStream, *, streamed: bool) -> None:
        self.stream = stream
        self.streamed = streamed
        self.session = ""
        self.started = False
        self.over = False
        """Whether the connection must be closed after this response."""

    async def head(self, status: int, kind: str, length: int | None, more: dict[str, str] | None = None) -> None:
        self.started = True
        fields = {"Content-Type": kind, **(more or {}), **({"mcp-session-id": self.session} if self.session else {})}
        fields |= {"Connection": "close"} if length is None else {"Content-Length": str(length)}
        self.over = length is None
        lines = [f"HTTP/1.1 {status} {STATUS[status]}", *(f"{name}: {value}" for name, value in fields.items())]
        await self.stream.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def whole(self, status: int, body: bytes, kind: str = "application/json", more: dict[str, str] | None = None) -> None:
        """Send a complete response. If the response has already started, only end it."""
        if self.started:
            self.over = True
            return
        await self.head(status, kind, len(body), more)
        await self.stream.send(body)

    async def event(self, data: bytes) -> None:
        if not self.started:
            await self.head(200, "text/event-stream", None)
        await self.stream.send(b"data: " + data + b"\n\n")

    async def say(self, data: bytes) -> None:
        """Send a message as an event if the response is streamed, and as the whole body otherwise."""
        if self.started or self.streamed:
            await self.event(data)
        else:
            await self.whole(200, data)


class Site:
    """One server on a port of its own, with its sessions and running requests."""

    def __init__(self, server: Scripted, port: int) -> None:
        self.server = server
        self.port = port
        self.ready = anyio.Event()
        self.sessions: set[str] = set()
        self.made = 0
        self.life = anyio.CancelScope()
        self.asked: dict[str, tuple[anyio.Event, list[Message]]] = {}
        self.running: dict[tuple[str, Any], anyio.CancelScope] = {}

    async def run(self) -> None:
        """Serve until a fault stops the server, wait until the fault ends, and serve again."""
        while True:
            with anyio.CancelScope() as self.life:
                listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port)
                self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
                self.ready.set()
                async with listener:
                    await listener.serve(self.connection)
            self.sessions.clear()
            while self.server.fault.exists():
                await anyio.sleep(LOOK_SECONDS)

    async def connection(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(*GONE):
                received = BufferedByteReceiveStream(stream)
                while True:
                    head = (await received.receive_until(b"\r\n\r\n", 65_536)).decode().split("\r\n")
                    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                    body = await received.receive_exactly(int(fields.get("content-length", "0")))
                    reply = Reply(stream, streamed=self.server.step in STREAMED)
                    await self.handle(head[0].split()[0], fields.get("mcp-session-id", ""), body, reply)
                    if reply.over:
                        return

    async def handle(self, verb: str, session: str, body: bytes, reply: Reply) -> None:
        if session and session not in self.sessions:
            await reply.whole(404, b"", "text/plain")
        elif verb == "POST":
            await self.post(json.loads(body), session, reply)
        elif self.server.modern:
            await reply.whole(405, b"", "text/plain")
        elif verb == "GET":
            if self.server.fails_at("listen"):
                await self.fail(None, reply)
            else:
                await reply.head(200, "text/event-stream", None)
                await self.hold(Hold({}), reply)
        elif self.server.fails_at("delete"):
            await self.fail(None, reply)
        else:
            self.sessions.discard(session)
            await reply.whole(200, b"", "text/plain")

    async def post(self, message: Message, session: str, reply: Reply) -> None:
        method: str = message.get("method", "")
        if not method:
            event, box = self.asked.pop(message["id"], (anyio.Event(), []))
            box.append(message)
            event.set()
            await reply.whole(202, b"", "text/plain")
            return
        if method == "initialize":
            self.made += 1
            reply.session = f"session-{self.made}"
            self.sessions.add(reply.session)
        if "id" not in message:
            await self.go_on(self.server.handle(message), reply)
            if method == "notifications/cancelled":
                scope = self.running.get((session, message["params"].get("requestId")))
                if scope is not None:
                    scope.cancel()
            await reply.whole(202, b"", "text/plain")
            return
        await self.watched(message, session, reply)

    async def watched(self, message: Message, session: str, reply: Reply) -> None:
        """Answer a request; stop when it is cancelled or, if its response is streamed, when the client disconnects."""
        key = (session, message["id"])
        left = False
        streamed = reply.streamed = message["method"] == "subscriptions/listen" or (reply.streamed and message["method"] == "tools/call")
        async with anyio.create_task_group() as tasks:
            self.running[key] = tasks.cancel_scope

            async def look() -> None:
                nonlocal left
                with suppress(*GONE):
                    await reply.stream.receive()
                left = True
                tasks.cancel_scope.cancel()

            if streamed:
                await reply.head(200, "text/event-stream", None) if self.server.step == "cancel" else None
                tasks.start_soon(look)
            with suppress(*GONE):
                await self.go_on(self.server.handle(message), reply)
            tasks.cancel_scope.cancel()
        self.running.pop(key, None)
        reply.over = reply.over or streamed or not reply.started
        if left and self.server.modern and self.server.fails_at("cancel"):
            await self.fail(None, reply)

    async def go_on(self, doing: Doing, reply: Reply) -> None:
        value: Any = None
        while True:
            try:
                step = doing.send(value)
            except StopIteration:
                return
            value = None
            match step:
                case Point():
                    if self.server.fails_at(step.step):
                        await self.fail(step.answer, reply)
                        return
                case Ask():
                    name = f"ask-{len(self.asked)}-{anyio.current_time()}"
                    event, box = self.asked[name] = anyio.Event(), []
                    await reply.event(encoded({**step.message, "id": name}))
                    await event.wait()
                    value = box[0]
                case Hold():
                    await self.hold(step, reply)
                case Say():
                    if reply.streamed:
                        await reply.event(encoded(step.message))
                case Answer():
                    await reply.say(encoded(step.message))

    async def hold(self, hold: Hold, reply: Reply) -> None:
        """Wait until the request is cancelled; notify a listener once that the tool list changed."""
        if hold.acknowledged is None:
            await anyio.sleep_forever()
            return
        if hold.acknowledged:
            await reply.event(encoded(hold.acknowledged))
        while not self.server.changed.exists():
            await anyio.sleep(LOOK_SECONDS)
        meta = {"_meta": hold.acknowledged["params"]["_meta"]} if hold.acknowledged else {}
        await reply.event(encoded({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}))
        await anyio.sleep_forever()

    async def fail(self, answer: Message | None, reply: Reply) -> None:
        """Carry out the configured fault in place of `answer`."""
        body, kind = encoded(answer), self.server.kind
        if kind in REFUSED:
            if kind == "lost":
                self.sessions.clear()
            status, text, more = REFUSED[kind]
            await reply.whole(status, text, "text/html", more)
            reply.over = reply.over or reply.streamed
            return
        match kind:
            case "die" | "once":
                if kind == "once":
                    self.server.fault.unlink()
                self.life.cancel()
                await anyio.sleep_forever()
            case "half":
                await self.start(reply, len(body))
                await reply.stream.send(body[: len(body) // 2])
                reply.over = True
            case "drip" | "oversized":
                await self.start(reply, len(body) if kind == "drip" else OVERSIZED)
                for byte in body or b" " * 100:
                    await reply.stream.send(bytes([byte]))
                    await anyio.sleep(0.3 if kind == "drip" else 0)
                await self.until_over(reply)
            case "hang":
                with anyio.CancelScope(shield=True):  # the fault lasts even if the client cancels the request
                    await self.until_over(reply)
            case "twice":
                await reply.event(body)
                await reply.event(body)
            case _:
                await reply.say(ODD.get(kind) or refusal(answer))
        reply.over = reply.over or reply.streamed

    async def start(self, reply: Reply, length: int) -> None:
        if not reply.started:
            await reply.head(200, "application/json", length)

    async def until_over(self, reply: Reply) -> None:
        while self.server.fault.exists():
            await anyio.sleep(LOOK_SECONDS)
        reply.over = True


async def _serve(sites: list[Site]) -> None:
    async with anyio.create_task_group() as tasks:
        for site in sites:
            tasks.start_soon(site.run)
            await site.ready.wait()
        ports = " ".join(str(site.port) for site in sites)
        sys.stdout.write(f"listening {ports}\n")
        sys.stdout.flush()


def serve(rows: Sequence[tuple[str, str, str, str]], port: int) -> None:
    """Serve one server per row (folder, step, kind, era) until the process ends. Port 0 selects a free port."""

    async def run() -> None:
        await _serve([Site(Scripted(Path(folder), step, kind, modern=era == "modern"), port) for folder, step, kind, era in rows])

    anyio.run(run)
