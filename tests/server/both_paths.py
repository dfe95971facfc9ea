"""A gateway that serves each call on the fast path and on the SDK path, and functions that compare what a client gets from both."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
from starlette.types import ASGIApp, Receive

from gateway.auth.api_keys import KeyStore
from gateway.auth.known_callers import Callers
from gateway.catalog import Catalog, CatalogEntry
from gateway.config.models import HttpSettings
from gateway.config.policies import SourcePolicy
from gateway.errors import InputUnavailable, NotFound, OutcomeUnknown, PolicyDenied, Rejected, ToolFailed
from gateway.gate.pipeline import GateServices
from gateway.server.dispatch import HttpDispatch
from gateway.server.gateway_server import GatewayServer
from gateway.server.head import Head
from gateway.server.http_app import build_http_app
from gateway.server.key_gate import KeyGate
from gateway.server.origins import accepted_origins
from gateway.server.sdk_path.lazy_application import Probes
from gateway.server.session_table import SessionTable
from gateway.tools.base import Complete, InputRequired, OnChange, TaskStarted, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel
from tests.fakes.recorded_events import RecordedEvents
from tests.fakes.wired import Counting, Kept, Wired, lifespan, served

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 20}, "n": {}, "héé": {}}}
MIRRORED: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string", "x-mcp-header": "Text"}}}
VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
ENVELOPE: dict[str, Any] = {
    f"{META}protocolVersion": VERSION,
    f"{META}clientCapabilities": {},
    f"{META}clientInfo": {"name": "t", "version": "1"},
}
TEXT: dict[str, Any] = {"type": "text", "text": "hi"}
FORM: dict[str, Any] = {"type": "object", "properties": {}}
Lines = Mapping[str, str] | Sequence[tuple[str, str]]
ASK: dict[str, Any] = {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": FORM}}

OUTCOMES: list[Any] = [
    {"content": [TEXT]},
    {"content": [TEXT, {"type": "image", "data": "aa==", "mimeType": "image/png"}], "isError": True},
    {"content": [], "structuredContent": {"a": None, "b": [1.0, 10**30, None, {"é": "\u2028"}], "c": -0.0, "d": 1e308}},
    {"content": [TEXT], "structuredContent": [1], "isError": False, "_meta": {"x/y": {"z": None}}},
    {"structuredContent": 0},
    {"content": [TEXT], "_meta": {"x/y": None, "z": 1}},
    {"content": [{**TEXT, "odd": 1}], "more": 1},
    {"content": [{**TEXT, "annotations": {"priority": 0.5}, "_meta": {"a": None}}]},
    {"content": [{"type": "text"}]},
    {"content": [{"type": "new", "text": "x"}]},
    {"content": "text", "isError": 1},
    {"content": [TEXT], "isError": None, "structuredContent": None},
    {"content": [{"type": "resource_link", "uri": "data://x", "name": "x"}]},
    {"content": [{"type": "text", "text": "half \ud800"}]},
    {"content": [TEXT], "structuredContent": {"half \udc00": float("inf")}},
    {"content": [{"type": "text", "text": "hid\u202eden"}]},
    {"content": [{"type": "text", "text": "x" * 5_000}]},
    InputRequired({"who": ASK}, "state"),
    InputRequired({}, None),
    TaskStarted({"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttlMs": None}),
    Rejected("no", server="up", code=-32602, data={"a": 1}),
    Rejected("no", server="up", code=-5),
    OutcomeUnknown("gone", server="up"),
    NotFound("tool", "echo"),
    ToolFailed("it failed"),
    PolicyDenied("no", rule="r", subject="s"),
    InputUnavailable("cannot", capability="sampling"),
    RuntimeError("the password is hunter2"),
]


class Echo:
    """A tool of a remote server whose next call behaves as the test sets it."""

    def __init__(self, name: str, schema: dict[str, Any], *, may_request_input: bool = False) -> None:
        self.definition = ToolDefinition(name=name, input_schema=schema, may_request_input=may_request_input)
        self.told: Any = OUTCOMES[0]
        self.seconds = 0.0
        self.says: tuple[LogLevel, ...] = ()
        self.calls, self.cancelled = list[Any](), anyio.Event()

    async def call(self, arguments: Any, ctx: CallContext) -> ToolOutcome:
        answers = (ctx.facts.input_responses, ctx.facts.request_state, ctx.facts.takes_tasks, ctx.facts.ask_timeout_seconds)
        self.calls.append((arguments, ctx.facts.principal.id, ctx.facts.client, dict(ctx.facts.meta), *answers))
        for level in self.says:
            await ctx.log(level, "something", None)
        try:
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # the time that a server needs to receive the cancellation
                await anyio.sleep(0.02)
            self.cancelled.set()
            raise
        if isinstance(self.told, Exception):
            raise self.told
        told = copy.deepcopy(self.told)
        return Complete(cast("Any", told)) if isinstance(told, dict) else told


class Remote:
    """A source that serves the given tools."""

    def __init__(self, id: str, tools: Sequence[Tool]) -> None:
        self.id = id
        self._tools = tools

    async def tools(self) -> Sequence[Tool]:
        return self._tools

    def subscribe(self, on_change: OnChange) -> None:
        """Do nothing, because the lists never change."""


class Setup:
    """One gateway with four entry points, of which three use the fast path."""

    wired: Wired
    kept: Kept
    taken = turn = 0

    def __init__(self, folder: Path) -> None:
        self.echo, self.mirrored, self.own = Echo("echo", SCHEMA), Echo("mirrored", MIRRORED), Echo("own", SCHEMA)
        self.asking, self.more = Echo("asking", SCHEMA, may_request_input=True), Echo("more", SCHEMA)
        self.events = RecordedEvents()
        policy = SourcePolicy.model_validate({"arguments": {"echo": {"text": {"not": {"const": "evil"}}}}, "maxResultBytes": 4096})
        entries = [
            CatalogEntry(Remote("up", [self.echo, self.mirrored, self.asking, self.more]), policy, ""),
            CatalogEntry(Remote("function", [self.own]), SourcePolicy(), "", is_local=True),
        ]
        self.catalog = Catalog(entries, GateServices(self.events), name_budget=64, settled=anyio.lowlevel.checkpoint)
        facts: dict[str, Any] = {"name": "t", "version": "1", "own_id": "me", "page_size": 10, "ask_timeout_seconds": 60}
        self.server = GatewayServer(self.catalog, **facts, instructions=lambda caller: f"for {caller.scopes}", state_key=bytes(32))
        self.keys = keys = KeyStore(folder / "keys.json")
        settings = HttpSettings(direct_path="off", max_request_bytes=50_000)
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 80}
        self.longer = build_http_app(self.server, settings, Callers(keys), **where, probes=Probes(lambda: True, lambda challenge: ""))
        self.behind = Counting(self.longer)
        limits: dict[str, Any] = {"path": settings.path, "max_request_bytes": settings.max_request_bytes}
        direct = HttpDispatch(cast("Any", self.behind), self.server, SessionTable(), **limits)
        places = accepted_origins(**where, more_hosts=[], more_origins=[])
        self.direct = KeyGate(direct, Callers(keys), places, settings, self.server.usages, requires_key=False, fast_path=direct)

    def take(self, head: Head, body: bytes) -> Any:
        """Offer a request to the fast path, and count the requests that the fast path accepts."""
        begun = self.direct.take(head, body)
        self.taken += begun is not None
        return begun


@asynccontextmanager
async def standing(folder: Path) -> AsyncGenerator[Setup]:
    setup = Setup(folder)
    await setup.catalog.refresh()
    with anyio.fail_after(80):
        async with setup.server, lifespan(setup.longer), served(setup.direct, setup.take) as port:
            setup.wired, setup.kept = Wired(port), Kept(port)
            yield setup
            await setup.kept.aclose()


@dataclass
class Reply:
    """The response that a client receives."""

    status: int = 0
    kind: str = ""
    body: bytes = b""
    session: str = ""


async def never() -> Any:
    await anyio.sleep_forever()


async def post(
    app: ASGIApp,
    lines: Sequence[tuple[str, str]],
    body: bytes,
    *,
    leaving: Receive = never,
    method: str = "POST",
    hearing: Callable[[Any], None] | None = None,
) -> Reply:
    """Send one ASGI request. The client disconnects when `leaving` returns; `hearing` receives elicitation requests."""
    named = [*lines, *([] if any(n == "host" for n, _ in lines) else [("host", "127.0.0.1")]), ("content-length", str(len(body)))]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": "/mcp", "raw_path": b"/mcp", "query_string": b"", "root_path": ""}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    scope["headers"] = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in named]
    parts, reply = [body[len(body) // 2 :], body[: len(body) // 2]], Reply()

    async def receive() -> Any:
        if not parts:
            return await leaving()
        part = parts.pop()
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            head = dict(message["headers"])
            reply.kind, reply.session = head.get(b"content-type", b"").decode(), head.get(b"mcp-session-id", b"").decode()
        else:
            reply.body += message.get("body", b"")
            if hearing is not None and b'"elicitation/create"' in message.get("body", b""):
                hearing(messages(reply)[-1])

    await app(scope, receive, send)
    return reply


def request(arguments: Any = None, meta: Mapping[str, Any] | None = None, *, name: str = "echo", number: Any = 1) -> dict[str, Any]:
    params = {"name": name, "arguments": {"text": "a"} if arguments is None else arguments, "_meta": {**ENVELOPE, **(meta or {})}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def heads(name: str = "echo") -> dict[str, str]:
    return {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": name,
    }


def told(reply: Reply) -> Any:
    """Return a reply's status, type and message without random values. In a session JSON and SSE count as the same type."""
    kind = "a message" if reply.session else reply.kind
    try:
        [message] = messages(reply)
    except ValueError:
        return reply.status, kind, b"" if reply.kind.startswith("text/event-stream") else reply.body
    result: dict[str, Any] = message.get("result") or {}
    result.update((key, "sealed") for key in ("requestState", "taskId") if key in result)
    return reply.status, kind, message


def messages(reply: Reply) -> list[Any]:
    """Return the messages in a response."""
    if not reply.kind.startswith("text/event-stream"):
        return [json.loads(reply.body)]
    lines = [line.removeprefix(b"data:").strip() for line in reply.body.split(b"\r\n") if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line]


def is_json(body: bytes) -> bool:
    """Whether it can be written again."""
    with suppress(ValueError, RecursionError):
        return bool(json.dumps(json.loads(body), allow_nan=False))
    return False


def happened(events: RecordedEvents, since: int) -> list[Any]:
    """Return the events since index `since`, without durations."""
    recorded = events.recent()[since:]
    return [(e.kind, e.source, e.name, e.principal, {k: v for k, v in e.fields.items() if k != "milliseconds"}) for e in recorded]


async def same(setup: Setup, headers: Lines, body: bytes, *, direct: bool | None = None, door: ASGIApp | None = None) -> Any:
    """Send a message on both paths and compare the results; `direct` is whether the fast path must serve the first request.

    The entry points of the fast path are used in turn, unless `direct` or `door` is given.
    """
    lines = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    seen: list[Any] = []
    tools = (setup.echo, setup.mirrored, setup.asking, setup.own, setup.more)
    doors = (setup.direct, setup.wired, setup.kept, setup.kept)
    setup.turn += 1
    for app in (*(doors[:3] if direct is not None else (door or doors[setup.turn % 4],)), setup.longer):
        before, begun = setup.behind.count, len(setup.events.recent())
        for tool in tools:
            tool.calls.clear()
        reply = await post(app, lines, body)
        seen.append((told(reply), [list(tool.calls) for tool in tools], happened(setup.events, begun)))
        if app is not setup.longer and direct is not None:
            assert (setup.behind.count == before) is direct, (body, reply)
    *others, last = (json.dumps(what, sort_keys=True, default=repr, indent=1) for what in seen)
    for other in others:
        assert other == last, body
    return seen[0][0]


NUMBERS: list[Any] = [None, True, 0, -1, 10**40, 2**64, -0.0, 0.1, 5e-324, 1.7976931348623157e308]
VALUES: list[Any] = [*NUMBERS, "", "é", "\U0001f600", "x" * 30, "evil", [], [None], {}, {"a": {"b": [1]}}]


def bodies(chance: random.Random) -> list[bytes]:
    """Return request bodies, well formed and malformed, with one or more unusual parts."""
    given = [request({"text": v, "n": w, "extra": v}) for v in VALUES for w in VALUES[:3]]
    made = [json.dumps(message, ensure_ascii=escaped).encode() for message in given for escaped in (True, False)]
    for key in ("jsonrpc", "id", "method", "params"):
        made += [json.dumps({**request(), key: value}).encode() for value in VALUES]
        made.append(json.dumps({k: v for k, v in request().items() if k != key}).encode())
    for key in ("name", "arguments", "_meta", "inputResponses", "requestState", "task", "odd"):
        made += [json.dumps({**request(), "params": {**request()["params"], key: chance.choice(VALUES)}}).encode() for _ in range(4)]
        made.append(json.dumps({**request(), "params": {k: v for k, v in request()["params"].items() if k != key}}).encode())
    odd = [*ENVELOPE, f"{META}logLevel", f"{META}odd", "progressToken", "traceparent", "x/y", "dev.moongate/via"]
    made += [json.dumps(request(None, {key: chance.choice(VALUES)})).encode() for key in odd for _ in range(4)]
    named = '[{"name": "t"}, {"name": "t", "version": 1}, {"name": "t", "version": "1", "title": null, "odd": 1}, {"version": "1"}]'
    info: list[Any] = json.loads(named)
    made += [json.dumps(request(None, {f"{META}clientInfo": value})).encode() for value in info]
    claimed = '[{"sampling": null}, {"elicitation": {"form": 1}}, {"roots": {"listChanged": true}}, {"odd": 1}, {"extensions": {"a": 1}}]'
    declared: list[Any] = json.loads(claimed)
    made += [json.dumps(request(None, {f"{META}clientCapabilities": value})).encode() for value in declared]
    made += [json.dumps(request(name=name)).encode() for name in ("mirrored", "asking", "own", "none", "")]
    whole = json.dumps(request()).encode()
    made += [whole[:cut] for cut in (0, 1, 30, len(whole) - 1)]
    made += [whole + b" ", whole + b"x", b"[" + whole + b"]", b"null", b"\xff", b"\xef\xbb\xbf" + whole, whole.decode().encode("utf-16")]
    made.append(whole.replace(b'"text"', b'"\\ud83d"'))
    numbers = (b"NaN", b"-Infinity", b"1e400", b"-0", b"1E+2", b"0.30000000000000004", b"9007199254740993.0", b"01", b"1.", b"+1")
    texts = (b'"\xed\xa0\x80"', b'"\\ud83d\\ude00"', b'"\\ud83d"')
    made += [whole.replace(b'"a"', value) for value in (*texts, *numbers, b"1" * 5_000, b"[" * 3_000 + b"]" * 3_000)]
    made.append(whole.replace(b'"name": "echo"', b'"name": "none", "name": "echo"'))
    made.append(whole.replace(b'"name": "echo"', b'"name": "echo", "name": "own"'))
    made.append(whole.replace(b'"id": 1', b'"id": 1, "id": 2, "ID": 3'))
    return made


SESSION = "2025-11-25"


def old_heads(session: str = "") -> dict[str, str]:
    lines = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return lines | ({"mcp-session-id": session, "mcp-protocol-version": SESSION} if session else {})


def old_request(arguments: Any = None, *, name: str = "echo", number: Any = 1, **params: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": {"text": "a"} if arguments is None else arguments, **params}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": given}


async def open_session(setup: Setup, version: str = SESSION, more: Mapping[str, str] | None = None) -> str:
    """Open a 2025 session on the SDK path, send a request in it, and return its id. `more` are headers of the requests."""
    hello: dict[str, Any] = {"protocolVersion": version, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "old", "version": "1"}}
    opening: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    session = (await post(setup.longer, [*old_heads().items(), *(more or {}).items()], json.dumps(opening).encode())).session
    for message in ({"method": "notifications/initialized"}, {"id": "l", "method": "tools/list"}):
        await post(setup.longer, [*old_heads(session).items(), *(more or {}).items()], json.dumps({"jsonrpc": "2.0", **message}).encode())
    return session
