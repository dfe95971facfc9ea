"""Plain requests in a 2025 session over HTTP, which bypass the SDK transport that opened the session."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from gateway.auth.principal import Principal
from gateway.config.models import HttpServer
from gateway.errors import OutcomeUnknown, Rejected, SessionGone
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from gateway.upstream.carriers.carrier import FIRST_REQUEST_ID
from gateway.upstream.carriers.http_carrier import HttpOrSdkCarrier
from gateway.upstream.server_session import Envelope, Session, open_session
from gateway.upstream.stdio import ChildLog
from gateway.upstream.transport import open_transport
from tests.fakes.wired import served

Message = dict[str, Any]
Posted = tuple[dict[str, str], Message]
SECONDS = 20
NOTE: Message = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "on the way"}}
PRIMER = b"id: 5\nretry: 100\ndata:\n\n"


class Saying:
    """The answer to one HTTP request."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self, status: int, kind: str = "text/event-stream", *more: tuple[bytes, bytes]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode()), *more]})

    async def part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def event(self, said: Message) -> None:
        await self.part(b"data: %s\n\n" % json.dumps(said).encode())

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})

    async def whole(self, status: int, said: Message | bytes = b"", *more: tuple[bytes, bytes]) -> None:
        await self.begin(status, "text/plain" if isinstance(said, bytes) else "application/json", *more)
        await self.end(said if isinstance(said, bytes) else json.dumps(said).encode())


class Server:
    """An HTTP server whose response to a call depends on the tool's name."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.resumed: list[dict[str, str]] = []
        self.replies: dict[str, Message] = {}
        self.replied = anyio.Event()
        self.taken_back = anyio.Event()
        self.owed: Message = {}
        self.cookies: list[tuple[bytes, bytes]] = []
        self.patience = 0
        """Number of `Last-Event-ID` requests that the server answers without the rest of the stream."""

    def of(self, method: str) -> list[Posted]:
        return [(headers, message) for headers, message in self.posted if message.get("method") == method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, saying = {name.decode(): value.decode() for name, value in scope["headers"]}, Saying(send)
        if "last-event-id" in headers:
            self.resumed.append(headers)
            await saying.begin(200)
            if len(self.resumed) > self.patience:
                await saying.event(self.owed)
            await saying.end(b": nothing yet\n\n")
        elif scope["method"] != "POST":
            await saying.whole(405 if scope["method"] == "GET" else 200)
        else:
            await self._post(headers, json.loads((await receive())["body"]), saying)

    async def _post(self, headers: dict[str, str], message: Message, saying: Saying) -> None:
        self.posted.append((headers, message))
        if "method" not in message:
            self.replies[message["id"]] = message
            self.replied.set()
        elif message["method"] == "notifications/cancelled":
            self.taken_back.set()
        if "method" not in message or "id" not in message:
            await saying.whole(202)
            return
        name = message["params"].get("name", "handshake")
        answer: Message = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [], "said": name}}
        await getattr(self, name)(answer, saying)

    async def handshake(self, answer: Message, saying: Saying) -> None:
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        await saying.whole(200, answer, (b"mcp-session-id", b"s1"), *self.cookies)

    async def plain(self, answer: Message, saying: Saying) -> None:
        await saying.whole(200, answer, *self.cookies)

    async def gone(self, answer: Message, saying: Saying) -> None:
        await saying.whole(404)

    async def unknown(self, answer: Message, saying: Saying) -> None:
        await saying.whole(400, b"Bad Request: No valid session ID provided")

    async def unidentified(self, answer: Message, saying: Saying) -> None:
        error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
        await saying.whole(400, {"jsonrpc": "2.0", "id": None, "error": error})

    async def judged(self, answer: Message, saying: Saying) -> None:
        del answer["result"]
        await saying.whole(400, {**answer, "error": {"code": -32602, "message": "argument sessionId is wrong"}})

    async def refused(self, answer: Message, saying: Saying) -> None:
        del answer["result"]
        await saying.whole(400, {**answer, "error": {"code": -32602, "message": "no such"}})

    async def noted(self, answer: Message, saying: Saying) -> None:
        await saying.begin(200)
        for said in (NOTE, NOTE, answer):
            await saying.event(said)
        await saying.end()

    async def asks(self, answer: Message, saying: Saying) -> None:
        await saying.begin(200)
        for key in ("q1", "q2"):
            await saying.event({"jsonrpc": "2.0", "id": key, "method": "elicitation/create", "params": {"message": key}})
        while len(self.replies) < 2:
            await self.replied.wait()
            self.replied = anyio.Event()
        answer["result"]["said"] = [self.replies[key]["result"]["content"] for key in ("q1", "q2")]
        await saying.event(answer)
        await saying.end()

    async def hangs(self, answer: Message, saying: Saying) -> None:
        await saying.begin(200)
        await saying.event(NOTE)
        await self.taken_back.wait()

    async def polled(self, answer: Message, saying: Saying) -> None:
        self.owed = answer
        await saying.begin(200)
        await saying.end(PRIMER)

    async def broken(self, answer: Message, saying: Saying) -> None:
        self.owed = answer
        await saying.begin(200)
        await saying.part(PRIMER)
        raise ConnectionError("cut off")

    async def forgotten(self, answer: Message, saying: Saying) -> None:
        await saying.begin(200)
        await saying.end(b": no event\n\n")


class Owner:
    """Answers requests of the server, and records each request and notification with its call."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, CallContext | None]] = []
        self.asked: list[tuple[Any, CallContext | None]] = []

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        message = request["params"]["message"]
        self.asked.append((message, ctx))
        return {"action": "accept", "content": {"for": message}}

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        self.heard.append((params.get("data"), ctx))


@asynccontextmanager
async def joined(
    owner: Owner | None = None, *, is_baked: bool = False, server: Server | None = None
) -> AsyncGenerator[tuple[Server, Session]]:
    """A session with a server. If `is_baked`, the server sets a cookie from the beginning."""
    server = server or Server()
    server.cookies += [(b"set-cookie", b"node=7; Path=/")] if is_baked else []
    with anyio.fail_after(SECONDS):
        async with served(server) as port:
            entry = HttpServer(type="http", url=f"http://127.0.0.1:{port}/mcp", headers={"x-key": "k"})
            async with (
                open_transport("up", entry, ChildLog()) as carrier,
                open_session("up", carrier, owner or Owner(), client={"name": "test", "version": "1"}) as session,
            ):
                await session.negotiate("legacy", {"elicitation": {}})
                assert isinstance(carrier, HttpOrSdkCarrier)
                while not is_baked and carrier.in_session is None:
                    await anyio.sleep(0.01)
                yield server, session


def context(**facts: Any) -> CallContext:
    return CallContext(CallFacts(principal=Principal("local"), client=ClientProfile(capabilities={"elicitation": {}}), **facts))


async def call(session: Session, name: str, ctx: CallContext | None = None) -> Any:
    return (await session.request("tools/call", {"name": name}, Envelope(ctx or context())))["said"]


async def test_call_uses_the_session_that_the_sdk_opened() -> None:
    async with joined() as (server, session):
        assert [await call(session, "plain") for _ in range(3)] == ["plain"] * 3
        assert [message["method"] for _, message in server.posted][:2] == ["initialize", "notifications/initialized"]
        assert [message["id"] for _, message in server.of("tools/call")] == [FIRST_REQUEST_ID, FIRST_REQUEST_ID + 1, FIRST_REQUEST_ID + 2]
        for headers, message in server.of("tools/call"):
            assert (headers["mcp-session-id"], headers["mcp-protocol-version"], headers["x-key"]) == ("s1", "2025-11-25", "k")
            assert "mcp-method" not in headers and message["params"] == {"name": "plain"}
        with pytest.raises(Rejected, match="no such"):
            await call(session, "refused")


async def test_server_with_cookies_is_served_by_the_client_that_keeps_them() -> None:
    async with joined(is_baked=True) as (server, session):
        for _ in range(3):
            await call(session, "plain")
            await anyio.sleep(0.05)
        assert all(headers["cookie"] == "node=7" and message["id"] < FIRST_REQUEST_ID for headers, message in server.of("tools/call"))
    async with joined() as (server, session):
        server.cookies.append((b"set-cookie", b"node=8; Path=/"))
        for _ in range(3):
            await call(session, "plain")
        seen = [(headers.get("cookie"), message["id"] < FIRST_REQUEST_ID) for headers, message in server.of("tools/call")]
        assert seen == [(None, False), (None, True), ("node=8", True)]


async def test_messages_in_a_response_stream_belong_to_its_call() -> None:
    owner = Owner()
    async with joined(owner) as (server, session):
        first, second = context(), context()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, session, "hangs", first)
            while not owner.heard:
                await anyio.sleep(0.01)
            assert await call(session, "noted", second) == "noted"
            assert await call(session, "asks", second) == [{"for": "q1"}, {"for": "q2"}]
            tasks.cancel_scope.cancel()
        assert [(said, ctx is first, ctx is second) for said, ctx in owner.heard] == [("on the way", True, False)] + [
            ("on the way", False, True)
        ] * 2
        assert sorted(said for said, _ in owner.asked) == ["q1", "q2"] and all(ctx is second for _, ctx in owner.asked)
        replies = [headers for headers, message in server.posted if "method" not in message]
        assert all((headers["mcp-session-id"], headers["mcp-protocol-version"]) == ("s1", "2025-11-25") for headers in replies)


async def test_abandoned_call_is_cancelled_at_the_server() -> None:
    async with joined() as (server, session):
        with anyio.move_on_after(0.3):
            await call(session, "hangs")
        await server.taken_back.wait()
        ((_, taken_back),) = server.of("notifications/cancelled")
        assert taken_back["params"]["requestId"] == server.of("tools/call")[0][1]["id"]
        assert await call(session, "plain") == "plain"


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("name", ["polled", "broken"])
async def test_response_stream_that_ends_early_is_resumed_if_resumable(name: str, patience: int) -> None:
    async with joined() as (server, session):
        server.patience = patience
        assert await call(session, name) == name
        assert len(server.resumed) == patience + 1
        for headers in server.resumed:
            assert (headers["last-event-id"], headers["mcp-session-id"], headers["x-key"]) == ("5", "s1", "k")
        assert len(server.of("tools/call")) == 1


async def test_response_that_ends_early_and_cannot_be_resumed_is_lost() -> None:
    async with joined() as (server, session):
        with pytest.raises(OutcomeUnknown):
            await call(session, "forgotten")
        assert not server.resumed


async def test_error_with_request_id_keeps_session() -> None:
    async with joined() as (server, session):
        with pytest.raises(Rejected, match="sessionId"):
            await call(session, "judged")
        assert len(server.of("tools/call")) == 1


@pytest.mark.parametrize("name", ["gone", "unknown", "unidentified"])
async def test_session_unknown_to_the_server_is_gone(name: str) -> None:
    async with joined() as (_, session):
        with pytest.raises(SessionGone):
            await call(session, name)
        assert session.closed.is_set()


@pytest.mark.parametrize(("facts", "is_short"), [({}, True), ({"wants_progress": True}, False)])
async def test_call_with_progress_on_another_stream_takes_the_sdk_path(facts: dict[str, Any], is_short: bool) -> None:
    async with joined() as (server, session):
        assert await call(session, "plain", context(**facts)) == "plain"
        ((_, message),) = server.of("tools/call")
        assert (message["id"] >= FIRST_REQUEST_ID) is is_short
