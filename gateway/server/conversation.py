"""`Conversation`: one client over lines of text, a message each, as standard input and output carry them.

The fast path answers plain requests and calls of both eras here (`plain`, `direct`, `session_messages`). All other lines go to the SDK's
loop, which starts with the first of them, and so does a call that turns out not to be plain. The first request decides the era of a
connection. If the fast path answered it, the SDK's loop is opened with a request of the same era whose answer is dropped: the client's
own `initialize` for a 2025 session, which the SDK path then shares with the fast path, and else a `server/discover`, so that the SDK
refuses a later handshake. If the SDK received a 2025 request first, it receives all others too.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from pydantic_core import to_json

from gateway.auth.principal import LOCAL
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
)
from gateway.sdk import load
from gateway.server.bodies import problem_of
from gateway.server.build import GatewayServer
from gateway.server.clients import LegacySession
from gateway.server.direct import Begun, DirectPath
from gateway.server.envelopes import Envelopes, decoded
from gateway.server.first_answers import Listed
from gateway.server.handshake import plain_hello
from gateway.server.lean_session import notification
from gateway.server.plain import DISCOVER, Question, plain_question, session_question
from gateway.server.session_messages import INITIALIZED, session_result, take_notification
from gateway.telemetry.instrumentation import is_traced

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

MAX_PLAIN = 256
"""Plain questions and calls under way at once; reading waits where there are more. A slow call is handed on."""

END_SECONDS = 5.0
"""What was asked before the client closed its end is still answered for this long."""

LOAD_SECONDS = 1.0
"""The SDK is imported in the background this long after a 2025 session's first listing, so that the first request that needs it does not
wait for the import. Clients send their first requests together, and a model takes longer to choose a tool."""

Write = Callable[[bytes], Awaitable[None]]
"""Sends whole lines."""


class LineSession:
    """A 2025 session over lines, of which the fast path answered `initialize`. Its channel stays the same when the SDK path joins."""

    def __init__(self, hello: JsonObject, write: Write) -> None:
        """`hello` is the client's `initialize`."""
        self.hello = hello
        self.legacy: LegacySession
        self.is_loading = False
        """The SDK is loaded soon."""
        self._write = write

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification.

        Raises:
            anyio.BrokenResourceError: The client closed its end.
        """
        try:
            await self._write(to_json(notification(method, params)) + b"\n")
        except OSError as error:
            raise anyio.BrokenResourceError from error


class Conversation:
    """`take` gets every line, `end` says that there are no more."""

    def __init__(self, server: GatewayServer, write: Write, tasks: TaskGroup, listed: Listed | None = None) -> None:
        """`tasks` must outlive both. `listed` runs in it once a 2025 session has its first listing."""
        self._listed = listed
        self._server = server
        self._write = write
        self._tasks = tasks
        self._envelopes = Envelopes(lambda: server.has_sdk)
        self._direct = DirectPath(_nowhere, server, path="", max_request_bytes=0)
        self._asked: dict[str, anyio.CancelScope] = {}
        """Questions under way, by id."""
        self._calls: dict[str, Begun] = {}
        """Calls, likewise."""
        self._room = anyio.Semaphore(MAX_PLAIN)
        self._passing = anyio.Lock()
        self._session: LineSession | None = None
        self._lines: MemoryObjectSendStream[str] | None = None
        self._opening = ""
        self._has_taken = self._is_open = False
        """A question was taken; the SDK saw a request, and knows the era."""
        self._mixes = True
        self._over = anyio.Event()

    async def take(self, line: bytes) -> None:
        """Answer a line, or hand it to the SDK. A line that `problem_of` refuses is answered with an error."""
        message = decoded(line)
        if message is None and (problem := problem_of(line)) is not None:
            code, text = problem
            await self._write(to_json({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}) + b"\n")
            return
        if message is not None and self._mixes and not is_traced() and await self._takes(message, line):
            return
        await self._pass_on(message, line)

    async def end(self) -> None:
        """The client closed its end; returns when nothing is to be said any more."""
        with anyio.move_on_after(END_SECONDS):
            for _ in range(MAX_PLAIN):
                await self._room.acquire()
        for scope in list(self._asked.values()):
            scope.cancel()
        if self._lines is not None:
            await self._lines.aclose()
            with anyio.move_on_after(END_SECONDS):  # a client that does not read holds up what is said to it
                await self._over.wait()
        if self._session is not None:
            await self._server.clients.end_lean(self._session.legacy.wire_id)
        handed = self._server.calls.handed
        while handed:
            await handed.popitem()[1].end()

    # -- plain questions -----------------------------------------------------------------------------------------

    async def _takes(self, message: JsonObject, line: bytes) -> bool:
        if message.get("method") == "notifications/cancelled" and "id" not in message:
            return await self._cancel(message.get("params"))
        key = str(message.get("id"))
        if key in self._asked or key in self._calls:
            return False
        if self._session is None and not self._has_taken and self._lines is None and await self._opens_session(message):
            return True
        begun = self._direct.begin_line(message, LOCAL, self._session.legacy if self._session is not None else None)
        if begun is not None:
            self._calls[key] = begun
            self._tasks.start_soon(self._call, begun, message, line)  # which ends it, also where the wait for room is cancelled
            await self._begin()
            return True
        if self._session is not None:
            return await self._takes_in_session(self._session, message, line)
        question = plain_question(message)
        if question is None:
            return False
        meta = cast("JsonMapping", message["params"]["_meta"])
        if meta.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS or self._envelopes.profile_of(meta) is None:
            return False
        await self._ask(question, message, line)
        return True

    async def _opens_session(self, message: JsonObject) -> bool:
        """Answer a plain `initialize`, the first request of a connection."""
        hello = plain_hello(message)
        if hello is None:
            return False
        session = self._session = LineSession(message, self._write)
        session.legacy = self._server.clients.open_lean("", hello, session, LOCAL, idle_seconds=math.inf)
        result = self._server.introduction(hello.version, LOCAL)
        await self._write(to_json({"jsonrpc": "2.0", "id": hello.number, "result": result}) + b"\n")
        return True

    async def _takes_in_session(self, session: LineSession, message: JsonObject, line: bytes) -> bool:
        """As `_takes`, for all but calls."""
        if message.get("id") is None:
            return take_notification(session.legacy, message) and not self._is_open
        question = session_question(message)
        if question is not None:
            session.legacy.is_here = True
            await self._ask(question, message, line)
            return True
        result = session_result(session.legacy, message)
        if result is not None:
            await self._write(to_json({"jsonrpc": "2.0", "id": message["id"], "result": result}) + b"\n")
        return result is not None

    async def _ask(self, question: Question, message: JsonObject, line: bytes) -> None:
        await self._begin()
        scope = self._asked[str(question.number)] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, question, scope, message, line)

    async def _begin(self) -> None:
        self._has_taken = True
        await self._room.acquire()

    async def _cancel(self, params: JsonValue) -> bool:
        """End a question that is taken back, or have the SDK end a call; whether there is nothing else to do about it."""
        number: JsonValue = cast("JsonMapping", params).get("requestId") if isinstance(params, dict) else None
        key = str(number)
        scope, begun = self._asked.get(key), self._calls.get(key)
        if scope is not None:
            scope.cancel()
        if begun is not None:
            await begun.running.taken()
        return scope is not None or self._lines is None

    async def _answer(self, question: Question, scope: anyio.CancelScope, message: JsonObject, line: bytes) -> None:
        body: bytes | None = None
        try:
            with scope:
                try:
                    if self._session is None:
                        body = await self._server.plain.answer(question, LOCAL)
                    else:
                        owner = str(self._session.legacy.profile.session_id)
                        body = await self._server.plain.answer_in_session(question, LOCAL, owner)
                except Exception as error:  # the call-handler boundary: the SDK's path finds it again, and words it
                    logger.debug("a plain question is asked again on the SDK's path: %s", error)
            if scope.cancelled_caught:
                return
            await (self._pass_on(message, line) if body is None else self._write(body + b"\n"))
            if self._session is not None and not self._session.is_loading:
                self._session.is_loading = True
                self._tasks.start_soon(_load_later)
                if self._listed is not None:
                    self._tasks.start_soon(self._listed)
        finally:
            del self._asked[str(question.number)]
            self._room.release()

    async def _call(self, begun: Begun, message: JsonObject, line: bytes) -> None:
        is_handed = False
        try:
            await begun.settled()
            answer = begun.answer()
            if answer is not None:
                await self._write(b"".join((*answer[1], b"\n")))
            else:
                is_handed = True
                self._server.calls.handed[cast("int | str", message["id"])] = begun.running
                await self._pass_on(message, line)
        finally:
            del self._calls[str(message["id"])]
            self._room.release()
            if is_handed:
                begun.forget()
            else:
                with anyio.move_on_after(END_SECONDS, shield=True):
                    await begun.end()

    # -- the SDK's -----------------------------------------------------------------------------------------------

    async def _pass_on(self, message: JsonObject | None, line: bytes) -> None:
        async with self._passing:
            lines = self._lines or await self._start()
            if not self._is_open and (self._has_taken or self._session is not None):
                self._is_open = True
                await self._open(lines)
            elif not self._is_open:
                self._is_open = message is None or _is_request(message)
                self._mixes = not self._is_open or (message is not None and _opens_modern(message))
            await lines.send(line.decode())

    async def _start(self) -> MemoryObjectSendStream[str]:
        sdk = await self._server.load_sdk()
        await load("gateway.server.sdk_lines")
        from gateway.server.sdk_lines import serve_lines

        self._lines, lines = anyio.create_memory_object_stream[str]()

        async def serve() -> None:
            await serve_lines(sdk, lines, self._say)
            self._over.set()

        self._tasks.start_soon(serve)
        return self._lines

    async def _open(self, lines: MemoryObjectSendStream[str]) -> None:
        """Have the SDK know the era of this connection, and its session if it is one of 2025."""
        self._opening = secrets.token_hex(16)
        session = self._session
        if session is not None:
            self._server.clients.move_lean(session.legacy.wire_id, lambda heir: None)
            await lines.send(to_json({**session.hello, "id": self._opening}).decode())
            if session.legacy.is_initialized:
                await lines.send(INITIALIZED.decode())
            return
        meta: JsonObject = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
        await lines.send(to_json({"jsonrpc": "2.0", "id": self._opening, "method": DISCOVER, "params": {"_meta": meta}}).decode())

    async def _say(self, line: bytes) -> None:
        if self._opening and self._opening.encode() in line:
            self._opening = ""
            return
        await self._write(line)


async def _load_later() -> None:
    await anyio.sleep(LOAD_SECONDS)
    await load("gateway.server.sdk_lines")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Nothing comes over HTTP here."""


def _is_request(message: JsonMapping) -> bool:
    number = message.get("id")
    is_numbered = isinstance(number, int | str) and not isinstance(number, bool)
    return is_numbered and message.get("jsonrpc") == "2.0" and isinstance(message.get("method"), str)


def _opens_modern(message: JsonMapping) -> bool:
    """Whether the SDK takes a connection that begins with this request for one of 2026."""
    params = message.get("params")
    meta: JsonValue = cast("JsonMapping", params).get("_meta") if isinstance(params, dict) else None
    return message.get("method") != "initialize" and isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
