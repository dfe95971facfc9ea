"""The direct path against the SDK's: the same messages go to both, and nobody can tell which one answered.

The direct path has two doors: as an application, and as the short cut of the connection that reads the request, be it its first or not.
"""

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
import pytest
from starlette.types import ASGIApp, Receive

from gateway.auth.api_keys import KeyStore
from gateway.catalog import Catalog, CatalogEntry
from gateway.config.models import HttpSettings
from gateway.config.policies import SourcePolicy
from gateway.errors import AskUnavailable, NotFound, OutcomeUnknown, PolicyDenied, Rejected, ToolFailed
from gateway.gate.pipeline import GateServices
from gateway.server.dispatch import HttpDispatch
from gateway.server.gateway_server import GatewayServer
from gateway.server.head import Head
from gateway.server.http_app import build_http_app
from gateway.server.in_flight import HAND_OVER_SECONDS
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
    AskUnavailable("cannot", capability="sampling"),
    RuntimeError("the password is hunter2"),
]


class Echo:
    """A tool of a remote server whose next call behaves as the test sets it."""

    def __init__(self, name: str, schema: dict[str, Any], *, may_ask: bool = False) -> None:
        self.definition = ToolDefinition(name=name, input_schema=schema, may_ask=may_ask)
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
            with anyio.CancelScope(shield=True):  # the time in which a server would receive the cancellation
                await anyio.sleep(0.02)
            self.cancelled.set()
            raise
        if isinstance(self.told, Exception):
            raise self.told
        told = copy.deepcopy(self.told)
        return Complete(cast("Any", told)) if isinstance(told, dict) else told


class Remote:
    """A source with tools of its own."""

    def __init__(self, id: str, tools: Sequence[Tool]) -> None:
        self.id = id
        self._tools = tools

    async def tools(self) -> Sequence[Tool]:
        return self._tools

    def subscribe(self, on_change: OnChange) -> None:
        """Nothing changes here."""


class Setup:
    """One gateway with four doors."""

    wired: Wired
    kept: Kept
    taken = turn = 0

    def __init__(self, folder: Path) -> None:
        self.echo, self.mirrored, self.own = Echo("echo", SCHEMA), Echo("mirrored", MIRRORED), Echo("own", SCHEMA)
        self.asking, self.more = Echo("asking", SCHEMA, may_ask=True), Echo("more", SCHEMA)
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
        self.longer = build_http_app(self.server, settings, keys, **where, probes=Probes(lambda: True, lambda challenge: ""))
        self.behind = Counting(self.longer)
        limits: dict[str, Any] = {"path": settings.path, "max_request_bytes": settings.max_request_bytes}
        direct = HttpDispatch(cast("Any", self.behind), self.server, SessionTable(), **limits)
        places = accepted_origins(**where, more_hosts=[], more_origins=[])
        self.direct = KeyGate(direct, keys, places, settings, self.server.usages, requires_key=False, fast_path=direct)

    def take(self, head: Head, body: bytes) -> Any:
        """The short cut, counted where it leads to something."""
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
    """What a client gets."""

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
    """One request as a server hands it over; the client leaves when `leaving` says so. `hearing` gets a question on the way."""
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
    """What a client reads: status, type, and the message without what is random in it; in a session both types say the same."""
    kind = "a message" if reply.session else reply.kind
    try:
        [message] = messages(reply)
    except ValueError:
        return reply.status, kind, b"" if reply.kind.startswith("text/event-stream") else reply.body
    result: dict[str, Any] = message.get("result") or {}
    result.update((key, "sealed") for key in ("requestState", "taskId") if key in result)
    return reply.status, kind, message


def messages(reply: Reply) -> list[Any]:
    """The messages in an answer."""
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
    """What was recorded, without times."""
    recorded = events.recent()[since:]
    return [(e.kind, e.source, e.name, e.principal, {k: v for k, v in e.fields.items() if k != "milliseconds"}) for e in recorded]


async def same(setup: Setup, headers: Lines, body: bytes, *, direct: bool | None = None, door: ASGIApp | None = None) -> Any:
    """Send a message by both paths and compare all that shows; `direct` says whether the SDK may see the first.

    The doors of the direct path take turns, unless `direct` or a `door` is given.
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


async def test_each_outcome_of_a_call_reads_the_same_by_both_paths(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        before = setup.behind.count
        for outcome in OUTCOMES:
            setup.echo.told = outcome
            for capabilities in ("{}", f'{{"elicitation": {{}}, "extensions": {{"{META}tasks": {{}}}}}}'):
                meta = {f"{META}clientCapabilities": json.loads(capabilities)}
                await same(setup, heads(), json.dumps(request(None, meta)).encode())
        assert len(OUTCOMES) < setup.behind.count - before < 2 * len(OUTCOMES) - 10


NUMBERS: list[Any] = [None, True, 0, -1, 10**40, 2**64, -0.0, 0.1, 5e-324, 1.7976931348623157e308]
VALUES: list[Any] = [*NUMBERS, "", "é", "\U0001f600", "x" * 30, "evil", [], [None], {}, {"a": {"b": [1]}}]


def bodies(chance: random.Random) -> list[bytes]:
    """Requests with one or more things odd in them, well formed and not."""
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


def fields(chance: random.Random) -> list[list[tuple[str, str]]]:
    """Header lines with one thing odd in them."""
    usual = list(heads().items())
    picked = chance.sample
    made = [[line for line in usual if line[0] != name] for name, _ in usual]
    made += [[*usual, line] for line in usual]
    odd = ["", "x", "application/json", "*/*", "text/event-stream;q=0, application/*", "2025-11-25", "2027-01-01", "tools/list"]
    odd.append("=?base64?ZWNobw==?=")
    made += [[(name, value) if line[0] == name else line for line in usual] for name, _ in usual for value in picked(odd, 5)]
    more = {"mcp-param-text": "a", "origin": "http://localhost", "Origin": "http://evil.example", "mcp-session-id": "x", "X-Odd": "é"}
    made += [[*usual, line] for line in more.items()]
    made.append([(name.upper(), value) for name, value in usual])
    return made


async def test_calls_have_equal_response_effect_and_record_on_both_paths(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with standing(tmp_path) as setup:
        for body in bodies(chance):
            await same(setup, heads(json.loads(body)["params"]["name"]) if b'"own", "arg' in body else heads(), body)
        for name in ("mirrored", "asking", "own", "none"):
            await same(setup, heads(name), json.dumps(request(name=name)).encode(), direct=name == "asking")
        for value in ("roots", "sampling", "elicitation"):
            body = request(None, {f"{META}clientCapabilities": {value: {}}}, name="asking")
            await same(setup, heads("asking"), json.dumps(body).encode(), direct=False)
        for lines in fields(chance):
            await same(setup, lines, json.dumps(request()).encode())


async def test_plain_call_skips_the_sdk_and_passes_the_gate(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        status, _, message = await same(setup, heads(), json.dumps(request(number="seven")).encode(), direct=True)
        assert (status, message["id"], message["result"]["content"], setup.taken) == (200, "seven", [TEXT], 2)
        _, _, refused = await same(setup, heads(), json.dumps(request({"text": "evil"})).encode(), direct=True)
        assert refused["result"]["_meta"]["dev.moongate/rule"] == "arguments.echo.text"
        _, _, wrong = await same(setup, heads(), json.dumps(request({"text": 1})).encode(), direct=True)
        assert wrong["result"]["isError"] is True


async def test_cached_client_facts_distinguish_values_that_compare_equal(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        claims: list[Any] = [True, 1, 1.0, True, False, 0, None, "1", [], {}, [1], [True]]
        for said in (claim for claim in claims for _ in range(2)):
            meta = {f"{META}clientCapabilities": {"roots": {"listChanged": said}}, "x/y": said}
            await same(setup, heads(), json.dumps(request(None, meta)).encode(), direct=True)


async def test_chunked_or_oversized_body_is_read_as_the_sdk_reads_it(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        await same(setup, heads(), json.dumps(request({"n": "x" * 49_000})).encode(), direct=True)
        status, *_ = await same(setup, heads(), json.dumps(request({"n": "x" * 51_000})).encode(), direct=True)
        assert status == 413


async def test_slow_call_runs_once_and_is_answered_by_the_sdk_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = HAND_OVER_SECONDS + 0.5
        status, _, message = await same(setup, heads(), json.dumps(request()).encode(), direct=False)
        assert (status, message["result"]["content"]) == (200, [TEXT])


@pytest.mark.parametrize("after", [0.0, HAND_OVER_SECONDS + 0.1])
async def test_client_disconnect_ends_its_call(tmp_path: Path, after: float) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = 60

        async def leaving() -> Any:
            await anyio.sleep(after)
            return {"type": "http.disconnect"}

        with anyio.fail_after(20):
            reply = await post(setup.direct, list(heads().items()), json.dumps(request()).encode(), leaving=leaving)
        assert reply == Reply()
        assert setup.echo.cancelled.is_set()
        assert len(setup.echo.calls) == 1


async def test_closed_connection_ends_its_call(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        body = json.dumps(request()).encode()
        await same(setup, heads(), body, direct=True)
        setup.echo.seconds = 60
        before = setup.taken
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, setup.wired, list(heads().items()), body)
            while setup.taken == before:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        await setup.echo.cancelled.wait()


async def test_stopping_server_ends_the_calls_it_started(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = 60
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post, setup.direct, list(heads().items()), json.dumps(request()).encode())
                while not setup.echo.calls:
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            await setup.echo.cancelled.wait()


# -- sessions of 2025 ------------------------------------------------------------------------------------------------


SESSION = "2025-11-25"


def old_heads(session: str = "") -> dict[str, str]:
    lines = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return lines | ({"mcp-session-id": session, "mcp-protocol-version": SESSION} if session else {})


def old_request(arguments: Any = None, *, name: str = "echo", number: Any = 1, **params: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": {"text": "a"} if arguments is None else arguments, **params}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": given}


async def open_session(setup: Setup, version: str = SESSION, more: Mapping[str, str] | None = None) -> str:
    """A session that the SDK has served a request of; `more` are headers of its requests."""
    hello: dict[str, Any] = {"protocolVersion": version, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "old", "version": "1"}}
    opening: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    session = (await post(setup.longer, [*old_heads().items(), *(more or {}).items()], json.dumps(opening).encode())).session
    for message in ({"method": "notifications/initialized"}, {"id": "l", "method": "tools/list"}):
        await post(setup.longer, [*old_heads(session).items(), *(more or {}).items()], json.dumps({"jsonrpc": "2.0", **message}).encode())
    return session


async def test_each_outcome_of_a_session_call_reads_the_same_on_both_paths(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        before = setup.behind.count
        for outcome in (o for o in OUTCOMES if not isinstance(o, InputRequired)):
            setup.echo.told = outcome
            await same(setup, old_heads(session), json.dumps(old_request()).encode())
        assert 8 < setup.behind.count - before < len(OUTCOMES) - 6


async def test_session_calls_have_equal_response_and_record_on_both_paths(tmp_path: Path) -> None:
    chance = random.Random(8)
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        given = old_heads(session)
        made = [json.loads(body) for body in bodies(chance) if body.startswith(b'{"jsonrpc') and is_json(body)]
        for message in made[::3]:
            params: Any = message.get("params")
            meta: Any = cast("Any", params).get("_meta") if isinstance(params, dict) else None
            if isinstance(meta, dict) and chance.random() < 0.7:
                params["_meta"] = {key: value for key, value in cast("dict[str, Any]", meta).items() if key not in ENVELOPE}
            if message.get("id") is None and "id" not in message:
                continue  # no request: nothing is answered
            await same(setup, given, json.dumps(message).encode())
        for name, direct in (("asking", True), ("own", False), ("none", False)):
            await same(setup, given, json.dumps(old_request(name=name)).encode(), direct=direct)
        odd = ("", "x", "application/json", "2025-03-26", "2025-06-18", VERSION, "*/*")
        changed = [[(n, value if n == name else v) for n, v in given.items()] for name in given for value in odd]
        for lines in [*changed, *([line for line in given.items() if line[0] != name] for name in given)]:
            await same(setup, lines, json.dumps(old_request()).encode())


async def test_plain_session_call_skips_the_sdk_and_passes_the_gate(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        status, _, message = await same(setup, old_heads(session), json.dumps(old_request(number="x")).encode(), direct=True)
        assert (status, message, setup.taken) == (200, {"jsonrpc": "2.0", "id": "x", "result": {"content": [TEXT]}}, 2)
        body = json.dumps(old_request({"text": "evil"})).encode()
        _, _, refused = await same(setup, old_heads(session), body, direct=True)
        assert refused["result"]["_meta"]["dev.moongate/rule"] == "arguments.echo.text"


async def test_ended_session_is_not_found_by_either_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=True)
        assert (await post(setup.direct, list(old_heads(session).items()), b"", method="DELETE")).status == 200
        status, *_ = await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
        assert status == 404


async def test_slow_session_call_runs_once_and_is_answered_by_the_sdk_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.seconds = HAND_OVER_SECONDS + 0.5
        status, _, message = await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
        assert (status, message["result"]["content"]) == (200, [TEXT])


async def test_logs_of_a_session_call_reach_its_client_before_the_response(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.says = ("debug", "warning")
        body = json.dumps(old_request()).encode()
        for app in (setup.direct, setup.longer):
            reply = await post(app, list(old_heads(session).items()), body)
            heard = [message.get("method") or message["result"]["content"] for message in messages(reply)]
            assert heard == ["notifications/message", [TEXT]]


async def test_session_call_cancelled_at_once_ends(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.seconds = 60
        replies: list[Reply] = []
        lines = list(old_heads(session).items())

        async def call() -> None:
            replies.append(await post(setup.direct, lines, json.dumps(old_request(number=7)).encode()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not setup.echo.calls:
                await anyio.lowlevel.checkpoint()
            taken_back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            assert (await post(setup.direct, lines, json.dumps(taken_back).encode())).status == 202
            await setup.echo.cancelled.wait()
        assert [message["error"]["message"] for message in messages(replies[0])] == ["Request cancelled"]


async def test_another_caller_s_session_is_not_found_by_either_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=True)
        lines = old_heads(session) | {"authorization": f"Bearer {setup.keys.add('other').token}"}
        status, *_ = await same(setup, lines, json.dumps(old_request()).encode(), direct=False)
        assert status == 404


async def test_elicitation_during_a_session_call_reaches_its_client(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        lines = list(old_heads(session).items())
        setup.echo.told = InputRequired({"who": ASK}, "state")

        async def answer(asked: Any) -> None:
            setup.echo.told = OUTCOMES[0]
            said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {}}}
            assert (await post(setup.direct, lines, json.dumps(said).encode())).status == 202

        async with anyio.create_task_group() as tasks:

            def hear(asked: Any) -> None:
                tasks.start_soon(answer, asked)

            question, result = messages(await post(setup.direct, lines, json.dumps(old_request()).encode(), hearing=hear))
            assert (question["method"], result["result"]["content"]) == ("elicitation/create", [TEXT])
        assert [call[4] for call in setup.echo.calls] == [None, {"who": {"action": "accept", "content": {}}}]


async def test_session_unused_on_the_sdk_path_is_checked_by_the_sdk_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.clients.SEEN_SECONDS", 0.0)
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
