"""2025 sessions on the fast path look the same to a client as on the SDK path, also during and after a move to the SDK path."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from gateway.auth.known_callers import Callers
from gateway.auth.principal import LOCAL
from gateway.catalog import CatalogEntry
from gateway.config.models import HttpSettings, LimitSettings
from gateway.config.policies import SourcePolicy
from gateway.gate.pipeline import GateServices
from gateway.policy.quotas import caller_quotas
from gateway.server.gateway_server import GatewayServer
from gateway.server.http_app import build_http_app
from gateway.server.in_flight import HAND_OVER_SECONDS
from gateway.server.sdk_path.lazy_application import Probes
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import InputRequired
from tests.fakes.wired import lifespan, served
from tests.server.both_paths import ASK, SCHEMA, TEXT, Echo, Remote
from tests.server.test_changes import ToldCatalog

pytestmark = pytest.mark.timeout(60)

VERSION = "2025-11-25"
BOTH = "application/json, text/event-stream"
CAPABILITIES: dict[str, Any] = {"elicitation": {}, "roots": {"listChanged": True}}


class Door:
    """One gateway, over HTTP."""

    def __init__(self, folder: Path, direct_path: Any) -> None:
        self.echo, self.other, self.own = Echo("echo", SCHEMA), Echo("other", SCHEMA), Echo("own", SCHEMA)
        entries = [
            CatalogEntry(Remote("up", [self.echo, self.other]), SourcePolicy(), ""),
            CatalogEntry(Remote("function", [self.own]), SourcePolicy(), "", is_local=True),
        ]
        self.catalog = ToldCatalog(entries, GateServices(EventStream()), name_budget=64, settled=anyio.lowlevel.checkpoint)
        facts: dict[str, Any] = {"name": "t", "version": "1", "own_id": "me", "page_size": 10, "ask_timeout_seconds": 60}
        self.server = GatewayServer(self.catalog, **facts, instructions=lambda who: f"for {who.id}", state_key=bytes(32))
        self.keys = KeyStore(folder / "keys.json")
        self.settings = HttpSettings(direct_path=direct_path, max_request_bytes=50_000)
        self.rebuild()
        self.http: httpx2.AsyncClient
        self.url = ""

    def rebuild(self) -> None:
        """Compose the application again, after a change of the server."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 80}
        probes = Probes(lambda: True, lambda challenge: "")
        self.app = build_http_app(self.server, self.settings, Callers(self.keys), **where, probes=probes)

    async def post(self, message: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        given = {"accept": BOTH, "content-type": "application/json", **(headers or {})}
        return await self.http.post(self.url, content=body, headers=given)


@asynccontextmanager
async def standing(folder: Path, direct_path: str) -> AsyncGenerator[Door]:
    await anyio.Path(folder).mkdir(exist_ok=True)
    door = Door(folder, direct_path)
    await door.catalog.refresh()
    with anyio.fail_after(50):
        async with door.server, lifespan(door.app), served(door.app, door.app.take) as port, httpx2.AsyncClient(timeout=20) as door.http:
            door.url = f"http://127.0.0.1:{port}/mcp"
            yield door


def hello(**changes: Any) -> dict[str, Any]:
    params = {"protocolVersion": VERSION, "capabilities": CAPABILITIES, "clientInfo": {"name": "c", "version": "1"}, **changes}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def messages(answer: httpx2.Response) -> list[Any]:
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [json.loads(answer.text)] if answer.text else []
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def told(answer: httpx2.Response) -> Any:
    """Return the parts of a response that a client reads: status, presence of a session id, and messages. JSON and SSE give the same."""
    return answer.status_code, "mcp-session-id" in answer.headers, messages(answer)


class Session:
    """A 2025 session of a client."""

    def __init__(self, door: Door, wire_id: str) -> None:
        self.door = door
        self.headers = {"mcp-session-id": wire_id, "mcp-protocol-version": VERSION}

    async def send(self, method: str, params: Any = None, *, number: Any = 1, **headers: str) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": number, "method": method, **({} if params is None else {"params": params})}
        return await self.door.post(message, {**self.headers, **headers})

    async def is_on_fast_path(self) -> bool:
        """Return whether the fast path serves the session: it responds to `ping` with JSON, the SDK with an event stream."""
        return (await self.send("ping")).headers["content-type"] == "application/json"


async def opened(door: Door, **changes: Any) -> Session:
    answer = await door.post(hello(**changes))
    session = Session(door, answer.headers["mcp-session-id"])
    assert (await door.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session.headers)).status_code == 202
    return session


class ListenStreams:
    """The listening GET of a session."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.text = ""
        self._parts = answer.aiter_text()

    async def until(self, wanted: str) -> str:
        """Read the stream until it contains `wanted`, and return all text so far."""
        while wanted not in self.text:
            self.text += await anext(self._parts)
        return self.text


@asynccontextmanager
async def listening(session: Session, **headers: str) -> AsyncGenerator[ListenStreams]:
    given = {**session.headers, "accept": "text/event-stream", **headers}
    async with httpx2.AsyncClient(timeout=20) as http, http.stream("GET", session.door.url, headers=given) as answer:
        yield ListenStreams(answer)


ODD: Any = [{"sampling": 1}, {"roots": {"listChanged": "yes"}}, {"experimental": {"a": 1}}, [], None, {"tasks": []}]
ICON = {"src": "https://a.example/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}
ODD_ICONS: Any = [[1], {}, [{"src": 1}], [{**ICON, "theme": "odd"}], [{**ICON, "sizes": "any"}]]
ICONS: Any = [[], [ICON], [{"src": "x"}, {"src": "y", "odd": 1}], None, *ODD_ICONS]
INFOS: Any = [{"title": "C"}, {"title": 1}, *({"icons": icons} for icons in ICONS), {"odd": 1}, {"name": 1}]
HOSTS: Any = [
    {"roots": {}, "elicitation": {}},
    {"experimental": {"codex/auth-change": {}}, "elicitation": {"form": {}, "url": {}}},
    {"elicitation": {"form": {}}, "roots": {"listChanged": False}, "extensions": {"io.modelcontextprotocol/ui": {}}},
    {"roots": {"listChanged": True}},
    {"roots": {"listChanged": True}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "tasks": {"list": {}}},
]
"""Client capabilities that Claude Code, Codex, Cursor, Gemini CLI and VS Code declare."""
HELLOS: list[Any] = [
    hello(),
    *(hello(protocolVersion=version) for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2026-07-28", "1999-01-01", "", 1, None)),
    hello(capabilities={}),
    *(hello(capabilities=declared) for declared in HOSTS),
    hello(capabilities={"odd": 1, "sampling": {"odd": 1, "tools": {}}, "elicitation": {"form": {"applyDefaults": True}, "url": {}}}),
    hello(capabilities={"sampling": None, "roots": {"listChanged": None}, "experimental": {"a": {"b": None}}}),
    hello(capabilities={"tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}}, "extensions": {"a": {}}}),
    *(hello(capabilities=odd) for odd in ODD),
    *(hello(clientInfo={"name": "c", "version": "1", **more}) for more in INFOS),
    hello(clientInfo={"name": "c"}),
    hello(_meta={"a": 1}),
    *(hello(_meta={"progressToken": token}) for token in ("p", 7, True, None, 1.5)),
    *(hello(_meta=odd) for odd in (None, 1, "odd")),
    hello(odd=1),
    *({**hello(), "id": number} for number in ("x", 10**30, 1.5, True, None)),
    {**hello(), "jsonrpc": "1.0"},
    {**hello(), "odd": 1},
    b"[]",
    b"{",
    b"\xff",
]  # fmt: skip


async def test_handshake_is_the_same_with_and_without_the_sdk(tmp_path: Path) -> None:
    async with standing(tmp_path / "a", "auto") as lean, standing(tmp_path / "b", "off") as longer:
        shortened = 0
        for message in HELLOS:
            both = [await door.post(message) for door in (lean, longer)]
            assert told(both[0]) == told(both[1]), message
            if "mcp-session-id" not in both[0].headers or "result" not in messages(both[0])[0]:
                continue
            shortened += both[0].headers["content-type"] == "application/json"
            seen: list[Any] = []
            for door, answer in zip((lean, longer), both, strict=True):
                version = messages(answer)[0]["result"]["protocolVersion"]
                session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": version}
                await door.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
                await door.post({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}, session)
                profile = door.echo.calls.pop()[2]
                seen.append((profile.protocol_version, profile.name, profile.version, profile.capabilities))
            assert seen[0] == seen[1], message
        assert shortened >= 22


@pytest.mark.parametrize("version", ["2026-07-28", "2025-06-18", "1999-01-01", ""])
async def test_versioned_handshake_is_equal_on_both_paths(tmp_path: Path, version: str) -> None:
    headers = {"mcp-protocol-version": version, "mcp-method": "tools/call"}
    async with standing(tmp_path / "a", "auto") as lean, standing(tmp_path / "b", "off") as longer:
        both = [await door.post(hello(), headers) for door in (lean, longer)]
        assert told(both[0]) == told(both[1])
        is_plain = both[0].status_code == 200 and both[0].headers["content-type"] == "application/json"
        assert is_plain is (version == "2025-06-18")


SENT: list[tuple[str, Any]] = [
    ("ping", None),
    ("ping", {}),
    ("ping", {"_meta": {"a": 1}}),
    ("ping", []),
    ("logging/setLevel", {"level": "error"}),
    ("logging/setLevel", {"level": "loud"}),
    ("logging/setLevel", None),
    ("tools/list", None),
    ("tools/list", {}),
    ("tools/list", {"cursor": "x"}),
    ("resources/list", {}),
    ("resources/templates/list", None),
    ("prompts/list", {}),
    ("prompts/get", {"name": "none"}),
    ("tools/call", {"name": "echo", "arguments": {}}),
    ("tools/call", {"name": "own", "arguments": {}}),
    ("tools/call", {"name": "none", "arguments": {}}),
    ("initialize", hello()["params"]),
    ("odd/method", {}),
    ("logging/setLevel", {"level": []}),
]


@pytest.mark.parametrize("accept", [BOTH, "text/event-stream, application/json;q=0.5", "*/*", "application/json", "text/event-stream"])
async def test_each_request_reads_the_same_with_and_without_the_sdk(tmp_path: Path, accept: str) -> None:
    async with standing(tmp_path / "a", "auto") as lean, standing(tmp_path / "b", "off") as longer:
        for method, params in SENT:
            sessions = [await opened(door) for door in (lean, longer)]
            both = [await session.send(method, copy.deepcopy(params), accept=accept) for session in sessions]
            assert told(both[0]) == told(both[1]), method
            later = [await session.send("ping", number="later") for session in sessions]
            assert told(later[0]) == told(later[1]), method
        for number in (1.5, True, None, "x", 2**70):
            both = [await (await opened(door)).send("ping", number=number, accept=accept) for door in (lean, longer)]
            assert told(both[0]) == told(both[1]), number


async def test_session_of_plain_requests_needs_no_sdk_session(tmp_path: Path) -> None:
    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        async with listening(session) as get:
            assert get.answer.status_code == 200
            for method, params in SENT[:2] + SENT[4:5] + SENT[7:9] + SENT[10:13] + SENT[14:15]:
                assert (await session.send(method, params)).headers["content-type"] == "application/json"
            for method in ("notifications/roots/list_changed", "notifications/cancelled"):
                message = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 99}}
                assert (await door.post(message, session.headers)).status_code == 202
            assert await session.is_on_fast_path()
            assert not door.server.has_sdk


def of_stream(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_listening_client_gets_identical_change_notifications(tmp_path: Path) -> None:
    async with standing(tmp_path / "a", "auto") as lean, standing(tmp_path / "b", "off") as longer:
        heads: list[Any] = []
        heard: list[Any] = []
        for door in (lean, longer):
            session = await opened(door)
            async with listening(session) as get:
                door.catalog.change("prompts")
                await get.until("list_changed")
                lines = [line for line in get.text.splitlines() if not line.startswith(":")]
                heard.append([line.partition(": ")[0] if line.startswith("id") else line for line in lines])
                heads.append({name: value for name, value in get.answer.headers.items() if name not in ("date", "mcp-session-id")})
        assert heard[0] == heard[1] and heads[0] == heads[1]


async def tooled(session: Session) -> None:
    [listed] = messages(await session.send("tools/list", {"_meta": {"io.modelcontextprotocol/odd": 1}}))
    assert {tool["name"] for tool in listed["result"]["tools"]} == {"echo", "other", "own"}


async def watched(session: Session) -> None:
    assert "error" in messages(await session.send("resources/subscribe", {"uri": "none://x"}))[0]


async def reported(session: Session) -> None:
    params = {"name": "echo", "arguments": {}, "_meta": {"progressToken": "p"}}
    assert messages(await session.send("tools/call", params))[-1]["result"]["content"] == [TEXT]


async def own_tool(session: Session) -> None:
    assert messages(await session.send("tools/call", {"name": "own", "arguments": {}}))[-1]["result"]["content"] == [TEXT]


async def logged(session: Session) -> None:
    session.door.other.says = ("warning",)
    heard = messages(await session.send("tools/call", {"name": "other", "arguments": {}}, number=3))
    assert [m.get("method") for m in heard] == ["notifications/message", None]


async def asked(session: Session) -> None:
    session.door.other.told = InputRequired({"who": ASK}, "state")
    given = {**session.headers, "accept": BOTH, "content-type": "application/json"}
    call: Any = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "other", "arguments": {}}}
    async with httpx2.AsyncClient(timeout=20) as http, http.stream("POST", session.door.url, headers=given, json=call) as answer:
        heard = ListenStreams(answer)
        question = of_stream(await heard.until("elicitation/create"))[-1]
        session.door.other.told = {"content": [TEXT]}
        said: Any = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
        assert (await session.door.post(said, session.headers)).status_code == 202
        assert of_stream(await heard.until('"result"'))[-1]["result"]["content"] == [TEXT]


async def odd_notification(session: Session) -> None:
    assert (await session.door.post({"jsonrpc": "2.0", "method": "notifications/odd"}, session.headers)).status_code == 202


async def stray_answer(session: Session) -> None:
    assert (await session.door.post({"jsonrpc": "2.0", "id": 9, "result": {}}, session.headers)).status_code == 202


async def second_stream(session: Session) -> None:
    async with listening(session) as other:
        assert other.answer.status_code == 409


async def other_version(session: Session) -> None:
    assert (await session.send("ping", **{"mcp-protocol-version": "2025-06-18"})).status_code == 200


async def odd_method(session: Session) -> None:
    answer = await session.door.http.put(session.door.url, headers=session.headers)
    assert answer.status_code == 405 and answer.headers["mcp-session-id"] == session.headers["mcp-session-id"]


async def invalid(session: Session) -> None:
    assert (await session.door.post(b"{", session.headers)).status_code == 400


WAYS: list[Callable[[Session], Any]] = [
    tooled, watched, reported, own_tool, logged, asked, odd_notification, stray_answer, second_stream, other_version, odd_method, invalid,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_session_moved_to_sdk_path_keeps_calls_streams_and_state(tmp_path: Path, way: Callable[[Session], Any]) -> None:
    """The session moves while a call is in flight and a stream is open: both continue, and the session keeps its state."""
    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        await session.send("logging/setLevel", {"level": "warning"})
        answers: list[Any] = []
        async with listening(session) as get, anyio.create_task_group() as tasks:

            async def call() -> None:
                answers.extend(messages(await session.send("tools/call", {"name": "echo", "arguments": {}}, number=77)))

            door.catalog.change("prompts")
            await get.until("prompts/list_changed")
            door.echo.seconds = HAND_OVER_SECONDS / 2
            tasks.start_soon(call)
            while not door.echo.calls:
                await anyio.sleep(0.001)
            door.echo.seconds = 0
            async with anyio.create_task_group() as twice:
                twice.start_soon(way, session)
                twice.start_soon(lambda: session.send("resources/list", {"_meta": {"io.modelcontextprotocol/odd": 2}}, number="other"))
            assert not await session.is_on_fast_path()
            door.catalog.change("resources")
            heard = of_stream(await get.until("resources/list_changed"))
            assert [m["method"].split("/")[1] for m in heard] == ["prompts", "resources"]
            door.echo.says = ("info", "error")  # the session keeps its log level
            said = messages(await session.send("tools/call", {"name": "echo", "arguments": {}}, number=78))
            assert [m.get("params", {}).get("level") for m in said] == ["error", None]
        assert [(m["id"], m["result"]["content"]) for m in answers] == [(77, [TEXT])]
        assert len(door.server.clients.all()) == 1
        assert (await door.http.delete(door.url, headers=session.headers)).status_code == 200
        assert (await session.send("ping")).status_code == 404
        assert door.server.clients.all() == []


async def test_notifications_missed_on_a_stream_are_sent_on_reconnect(tmp_path: Path) -> None:
    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        async with listening(session) as get:
            door.catalog.change("prompts")
            await get.until("prompts/list_changed")
            last = next(line[4:] for line in get.text.splitlines() if line.startswith("id: "))
        door.catalog.change("resources")
        while not any(told_ for told_ in [door.server.clients.all()[0].channel] if getattr(told_, "stream", None) is None):
            await anyio.sleep(0.01)
        async with listening(session, **{"last-event-id": last}) as again:
            heard = of_stream(await again.until("resources/list_changed"))
        assert [m["method"] for m in heard] == ["notifications/resources/list_changed"]


async def test_session_is_rejected_for_another_caller(tmp_path: Path) -> None:
    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        lines = {**session.headers, "authorization": f"Bearer {door.keys.add('other').token}"}
        before = await door.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, lines)
        listened = await door.http.get(door.url, headers={**lines, "accept": "text/event-stream"})
        ended = await door.http.delete(door.url, headers=lines)
        assert [answer.status_code for answer in (before, listened, ended)] == [404, 404, 404]
        assert [m["error"]["message"] for m in messages(before)] == ["Session not found"]


async def test_ending_a_session_ends_its_stream(tmp_path: Path) -> None:
    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        async with listening(session) as get:
            assert (await door.http.delete(door.url, headers=session.headers)).status_code == 200
            with pytest.raises(StopAsyncIteration):
                await get.until("never")
        assert (await session.send("ping")).status_code == 404


async def test_idle_session_expires_and_listening_session_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.fast_path.fast_sessions.PULSE_SECONDS", 0.01)
    monkeypatch.setattr("gateway.server.fast_path.fast_sessions.SILENCE_SECONDS", 0.0)
    async with standing(tmp_path, "auto") as door:
        idle, other = await opened(door), await opened(door)
        async with listening(other) as get:
            monkeypatch.setattr("gateway.server.fast_path.fast_sessions.IDLE_SECONDS", 0.0)
            while len(door.server.clients.all()) > 1:
                await anyio.sleep(0.01)
            assert (await idle.send("ping")).status_code == 404
            await get.until(": ping - ")
            assert await other.is_on_fast_path()


async def test_session_idle_longest_is_evicted_for_a_new_one(tmp_path: Path) -> None:
    async with standing(tmp_path, "auto") as door, AsyncExitStack() as stack:
        door.server.usages.bound_by(caller_quotas(LimitSettings(sessions=4), 100, 50_000))
        sdks, lean, used, kept = [await opened(door) for _ in range(4)]
        await sdks.send("prompts/get", {"name": "none"})
        await stack.enter_async_context(listening(kept))
        await used.send("ping")
        assert not await sdks.is_on_fast_path()
        for oldest in (lean, used, sdks):
            newest = await opened(door)
            await newest.send("prompts/get", {"name": "none"})
            assert (await oldest.send("ping")).status_code == 404
        assert await kept.is_on_fast_path() and (await newest.send("ping")).status_code == 200
        streams = [await opened(door) for _ in range(3)]
        for session in streams:
            await stack.enter_async_context(listening(session))
        refused = await door.post(hello())
        assert refused.status_code == 429 and "server.limits.sessionsPerCaller" in refused.text


async def starve(seconds: float) -> None:
    """Make every turn of the event loop take so long."""
    while True:
        time.sleep(seconds)  # noqa: ASYNC251  # the loop must not turn
        await anyio.lowlevel.checkpoint()


@pytest.mark.fault(33)
async def test_starved_gateway_keeps_moving_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is blocked for much longer than the timeout of a move, which must not fail the move."""
    async with standing(tmp_path, "auto") as door, listening(session := await opened(door)) as stream:
        await (await opened(door)).send("prompts/get", {"name": "none"})  # loads the SDK
        assert await session.is_on_fast_path()
        monkeypatch.setattr("gateway.server.fast_path.fast_sessions.MOVE_SECONDS", 0.02)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(starve, 0.02)
            assert (await session.send("prompts/get", {"name": "none"})).status_code == 200
            tasks.cancel_scope.cancel()
        assert not await session.is_on_fast_path()
        door.catalog.change("tools")
        assert "list_changed" in await stream.until("list_changed")


@pytest.mark.fault(33)
async def test_session_that_is_lost_is_logged_and_frees_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def take_over(*given: object) -> bool:
        await anyio.sleep_forever()
        return False

    async with standing(tmp_path, "auto") as door:
        session = await opened(door)
        monkeypatch.setattr("gateway.server.fast_path.fast_sessions.MOVE_SECONDS", 0.2)
        monkeypatch.setattr("gateway.server.sdk_path.resumable_sessions.SessionManager.take_over", take_over)
        assert (await session.send("prompts/get", {"name": "none"})).status_code == 404
        assert f"session lost reason=not-moved session={session.headers['mcp-session-id'][:8]}" in caplog.text
        assert door.server.usages.of(LOCAL).sessions == 0
