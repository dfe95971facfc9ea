"""A client over stdio reads the same responses whether the fast path or the SDK answers its requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.stdio import stdio_server

from gateway.server.dispatch import LineDispatch
from gateway.server.in_flight import HAND_OVER_SECONDS
from gateway.tools.base import InputRequired
from tests.server.both_paths import ASK, ENVELOPE, META, OUTCOMES, TEXT, Setup
from tests.server.test_changes import ToldCatalog
from tests.server.test_plain_answers import METHODS, ODD, ask

LEGACY = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
HANDSHAKE: dict[str, Any] = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": LEGACY}
READY: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
OLD: dict[str, Any] = {"jsonrpc": "2.0", "id": "old", "method": "tools/list"}


def call(number: Any, name: str = "echo", arguments: Any = None, **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"text": "a"} if arguments is None else arguments, "_meta": {**ENVELOPE, **meta}}
    return {**ask("tools/call", number), "params": params}


def lines_of(messages: Sequence[Any]) -> list[bytes]:
    return [message if isinstance(message, bytes) else json.dumps(message).encode() for message in messages]


class Paper:
    """Records the messages that a server writes, and waits until a given number has been written."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._wake = anyio.Event()

    async def write(self, data: bytes | str) -> None:
        self.said.append(json.loads(data))
        self._wake.set()

    async def flush(self) -> None:
        """Do nothing, because nothing is buffered."""

    async def until(self, count: int) -> None:
        while len(self.said) < count:
            self._wake = anyio.Event()
            await self._wake.wait()


async def without(setup: Setup, lines: Sequence[bytes], answers: int) -> list[Any]:
    """Return the messages that `LineDispatch` sends to the client, which serves a request on the fast path if possible."""
    paper = Paper()
    async with setup.server, anyio.create_task_group() as tasks:
        talk = LineDispatch(setup.server, paper.write, tasks)
        for line in lines:
            await talk.take(line)
        await paper.until(answers)
        await talk.end()
        tasks.cancel_scope.cancel()
    return paper.said


async def by_sdk(setup: Setup, lines: Sequence[bytes], answers: int) -> list[Any]:
    """Return the messages that the SDK sends if it handles every line without the fast path."""
    paper = Paper()
    send, receive = anyio.create_memory_object_stream[str]()
    files = cast("anyio.AsyncFile[str]", _Text(receive)), cast("anyio.AsyncFile[str]", paper)
    async with receive, setup.server, anyio.create_task_group() as tasks:
        mcp = setup.server.mcp

        async def serve() -> None:
            async with stdio_server(*files) as (read, write):
                await mcp.run(read, write, mcp.create_initialization_options())

        tasks.start_soon(serve)
        for line in lines:
            await send.send(line.decode(errors="replace"))
        await paper.until(answers)
        await send.aclose()
    return paper.said


class _Text:
    def __init__(self, lines: MemoryObjectReceiveStream[str]) -> None:
        self._lines = lines

    def __aiter__(self) -> MemoryObjectReceiveStream[str]:
        return self._lines


async def same(folder: Path, messages: Sequence[Any], answers: int, set_up: Callable[[Setup], None] = lambda _: None) -> list[Any]:
    """Send the messages on the SDK path and on the fast path, and compare the responses regardless of their order."""
    lines = lines_of(messages)
    told: list[list[str]] = []
    said: list[Any] = []
    with anyio.fail_after(20):
        for talk in (by_sdk, without):
            setup = Setup(folder)
            set_up(setup)
            await setup.catalog.refresh()
            said = await talk(setup, lines, answers)
            for message in said:
                result: dict[str, Any] = message.get("result") or {}
                result.update((key, "sealed") for key in ("requestState", "taskId") if key in result)
            told.append(sorted(json.dumps(message, sort_keys=True) for message in said))
    assert told[0] == told[1]
    return said


@pytest.mark.parametrize("method", METHODS)
async def test_plain_stdio_request_gets_the_same_response_without_the_sdk(tmp_path: Path, method: str) -> None:
    [said] = await same(tmp_path, [ask(method, "é")], 1)
    assert said["result"]["_meta"][f"{META}serverInfo"] == {"name": "t", "version": "1"}
    setup = Setup(tmp_path)
    await setup.catalog.refresh()
    assert [said] == await without(setup, lines_of([ask(method, "é")]), 1)
    assert not setup.server.has_sdk


def old(number: Any, name: str = "echo", **meta: Any) -> dict[str, Any]:
    """A 2025 call."""
    asked = {"name": name, "arguments": {"text": "a"}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": asked}


def hello(**params: Any) -> dict[str, Any]:
    return {**HANDSHAKE, "params": {**LEGACY, **params}}


def ping(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


def level(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "logging/setLevel", "params": {"level": "debug"}}


LISTS: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": f"l{number}", "method": method}
    for number, method in enumerate(("prompts/list", "resources/list", "resources/templates/list"))
]
ODD_REQUESTS: list[dict[str, Any]] = [
    {**OLD, "id": "a", "params": {"_meta": {"progressToken": 1}}},
    {**OLD, "id": "b", "params": {"_meta": {"progressToken": [1]}}},
    {**OLD, "id": "c", "params": {"cursor": "nonsense"}},
    {**OLD, "id": "d", "params": {"_meta": 1}},
    {**OLD, "id": "e", "params": {"_meta": ENVELOPE}},
    {**OLD, "id": "f", "params": []},  # not answered: it is not JSON-RPC
    {**ping("g"), "params": {"_meta": {"x": 1}}},
    {**level("h"), "params": {"level": "loud"}},
    {**level("hh"), "params": {"level": []}},
    {**ping("i"), "method": "no/such"},
    {**ping("j"), "method": "resources/read", "params": {"uri": "x://y"}},
    {**ping("k"), "extra": 1},
    {**old("l", "none")},
    {**old("m"), "params": {"name": "echo", "arguments": {"text": 1}}},
    {**old("n"), "params": {"name": "echo"}},
]

CALL = call(9)
HALF = {"_meta": {f"{META}protocolVersion": "2026-07-28"}}

NO_VERSION: Any = {f"{META}protocolVersion": ["2026-07-28"]}

SCRIPTS: dict[str, tuple[list[Any], int]] = {
    "questions, then a call": ([ask("tools/list"), CALL, ask("server/discover", 2)], 3),
    "a call first": ([CALL, ask("tools/list", 2), ask("tools/list", 3)], 3),
    "a handshake after a question": ([ask("server/discover"), HANDSHAKE, ask("tools/list", 2)], 3),
    "a question after a handshake": ([HANDSHAKE, READY, OLD, ask("tools/list", 2)], 3),
    "a question between": ([HANDSHAKE, ask("tools/list", 2), OLD], 3),
    "a half envelope first": ([{**OLD, "params": HALF}, ask("tools/list", 2), HANDSHAKE], 3),
    "noise first": ([b"no json", b"", READY, ask("tools/list", 2), HANDSHAKE], 2),
    "taken back too late": ([ask("tools/list"), {**READY, "method": "notifications/cancelled", "params": {"requestId": 77}}, CALL], 2),
    "unknown methods": ([ask("what/ever"), ask("tools/list", 2), {**OLD, "method": "x/y"}], 3),
    "calls of all kinds": ([call(n, name) for n, name in enumerate(("echo", "mirrored", "asking", "own", "none", "echo"))], 6),
    "calls that are refused": ([call("a", arguments={"text": "evil"}), call("b", arguments={"text": 1}), call("c", arguments=[])], 3),
    "calls with wishes": ([call(1, progressToken="p"), call(2, **{f"{META}logLevel": "debug"}), call(3, traceparent="x")], 3),
    "calls of unhashable versions": ([call(1, **NO_VERSION), call(2, **NO_VERSION), call(3)], 3),
    "one number for two": ([call(1), {**READY, "method": "notifications/cancelled", "params": {"requestId": 77}}, call("1", "own")], 2),
    "a 2025 session": ([HANDSHAKE, READY, OLD, old(1), ping(2), level(3), old(4, "asking"), old(5, "own"), *LISTS], 10),
    "a 2025 session without the notification": ([HANDSHAKE, old(1), OLD], 3),
    "requests before the handshake": ([ping(1), HANDSHAKE, READY, OLD, old(2)], 4),
    "a call before the handshake": ([old(1), HANDSHAKE, OLD], 3),
    "a notification before the handshake": ([READY, HANDSHAKE, OLD], 2),
    "two handshakes": ([HANDSHAKE, READY, OLD, {**HANDSHAKE, "id": "again"}, {**OLD, "id": 3}], 4),
    "a handshake of an unknown version": ([hello(protocolVersion="2099-01-01"), READY, OLD], 2),
    "a handshake of 2024": ([hello(protocolVersion="2024-11-05"), READY, OLD, old(1)], 3),
    "a handshake of 2026": ([hello(protocolVersion="2026-07-28"), READY, OLD], 2),
    "a malformed handshake": ([hello(capabilities=1), HANDSHAKE, READY, OLD], 3),
    "capabilities": ([hello(capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}), READY, OLD, old(1)], 3),
    "noise in a session": ([HANDSHAKE, READY, b"no json", b"", b"[]", OLD, {"jsonrpc": "2.0", "id": 7, "result": {}}, old(1)], 3),
    "a batch in a session": ([hello(protocolVersion="2025-03-26"), READY, [{**OLD, "id": 1}, {**OLD, "id": 2}], OLD], 2),
    "odd requests in a session": ([HANDSHAKE, READY, *ODD_REQUESTS], len(ODD_REQUESTS)),
    "calls with wishes in a session": ([HANDSHAKE, READY, old(1, progressToken="p"), old(2, traceparent="x"), old(3, **ENVELOPE)], 4),
    "cancelled too late": ([HANDSHAKE, READY, OLD, {**READY, "method": "notifications/cancelled", "params": {"requestId": 77}}, old(1)], 3),
    "a method that is a list": ([HANDSHAKE, READY, {**READY, "method": []}, OLD], 2),
    "roots changed": ([HANDSHAKE, READY, {**READY, "method": "notifications/roots/list_changed"}, OLD], 2),
    "a batch": ([b"[]", [ask("tools/list")], ask("tools/list", 2)], 1),
}


@pytest.mark.parametrize("script", SCRIPTS)
async def test_stdio_messages_in_any_order_get_the_same_responses(tmp_path: Path, script: str) -> None:
    messages, answers = SCRIPTS[script]
    await same(tmp_path, messages, answers)


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_unusual_requests_get_equal_responses(tmp_path: Path, method: str) -> None:
    metas = (f"{META}logLevel", f"{META}protocolVersion", f"{META}clientCapabilities", f"{META}clientInfo", "dev.moongate/via", "x/y")
    odd = [{"_meta": {**ENVELOPE, key: value}} for key in metas for value in (*ODD, "2025-11-25", "2026-07-28")]
    odd += [{"_meta": ENVELOPE, key: value} for key in ("cursor", "odd") for value in ODD]
    odd += [{"_meta": value} for value in ODD]
    bodies = [{**ask(method, f"n{number}"), "params": params} for number, params in enumerate(odd)]
    await same(tmp_path, [ask(method), *bodies], 1 + len(bodies))


HALVES = [outcome for outcome in OUTCOMES if "\\ud" in repr(outcome)]


@pytest.mark.parametrize("number", [number for number, outcome in enumerate(OUTCOMES) if outcome not in HALVES])
async def test_each_outcome_of_a_call_reads_alike(tmp_path: Path, number: int) -> None:
    def set_up(setup: Setup) -> None:
        setup.echo.told = OUTCOMES[number]

    await same(tmp_path, [call(1), ask("tools/list", 2)], 2, set_up)
    await same(tmp_path, [HANDSHAKE, READY, old(1)], 2, set_up)


@pytest.mark.parametrize("outcome", HALVES)
async def test_half_a_character_does_not_end_the_conversation(tmp_path: Path, outcome: Any) -> None:
    setup = Setup(tmp_path)
    setup.echo.told = outcome
    await setup.catalog.refresh()
    with anyio.fail_after(10):
        said = await without(setup, lines_of([call(1), ask("tools/list", 2), call(3, "own")]), 3)
    assert {message["id"] for message in said if "result" in message} >= {2, 3}


async def test_plain_stdio_call_skips_the_sdk_and_slow_call_runs_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    await setup.catalog.refresh()
    [said] = await without(setup, lines_of([call("x")]), 1)
    assert (said["id"], said["result"]["content"], setup.server.has_sdk) == ("x", [TEXT], False)
    setup = Setup(tmp_path)
    setup.echo.seconds = HAND_OVER_SECONDS + 0.05
    await setup.catalog.refresh()
    [said] = await without(setup, lines_of([call("x")]), 1)
    assert (said["id"], said["result"]["content"], setup.server.has_sdk, len(setup.echo.calls)) == ("x", [TEXT], True, 1)


@pytest.mark.parametrize(
    ("way", "room"), [("taken back", 1), ("the client leaves", 1), ("the gateway stops", 1), ("the gateway stops while it waits", 0)]
)
async def test_call_of_a_disconnected_client_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, room: int) -> None:
    monkeypatch.setattr("gateway.server.dispatch.MAX_PLAIN", room)
    monkeypatch.setattr("gateway.server.dispatch.END_SECONDS", 2.0)
    setup, paper = Setup(tmp_path), Paper()
    setup.echo.seconds = 60
    await setup.catalog.refresh()
    with anyio.fail_after(10):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            tasks.start_soon(talk.take, json.dumps(call("x")).encode())
            while not setup.echo.calls:  # wait until the call has reached the tool, because a call that did not start is not cancelled
                await anyio.lowlevel.checkpoint()
            if way == "taken back":
                await talk.take(json.dumps({**READY, "method": "notifications/cancelled", "params": {"requestId": "x"}}).encode())
            elif way == "the client leaves":
                await talk.end()
            else:
                tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.fail_after(5):
                await setup.echo.cancelled.wait()
            await talk.end()
            tasks.cancel_scope.cancel()
    assert len(setup.echo.calls) == 1
    assert all("error" in message for message in paper.said)


async def test_cancelled_request_is_not_answered(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    await setup.catalog.refresh()
    asked, paper = anyio.Event(), Paper()

    async def ready() -> None:
        asked.set()
        await anyio.sleep_forever()

    setup.catalog.ready = ready
    with anyio.fail_after(10):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            await talk.take(json.dumps(ask("tools/list", 5)).encode())
            await asked.wait()
            await talk.take(json.dumps({**READY, "method": "notifications/cancelled", "params": {"requestId": 5}}).encode())
            await talk.take(json.dumps(ask("server/discover", 6)).encode())
            await talk.end()
    assert [message["id"] for message in paper.said] == [6]


async def test_plain_2025_session_needs_no_sdk(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    await setup.catalog.refresh()
    wishes: dict[str, Any] = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}}}
    tokened = {**OLD, "id": 9, "params": {"_meta": {"progressToken": 4}}}
    script = [hello(capabilities=wishes), READY, OLD, *LISTS, tokened, ping(2), level(3), old(4)]
    with anyio.fail_after(20):
        said = await without(setup, lines_of(script), 9)
    assert {message["id"] for message in said if "result" in message} == {"hello", "old", "l0", "l1", "l2", 9, 2, 3, 4}
    assert not setup.server.has_sdk


async def test_session_keeps_its_state_when_the_sdk_path_joins(tmp_path: Path) -> None:
    setup, paper = Setup(tmp_path), Paper()
    changed = partial(ToldCatalog.change, cast("ToldCatalog", setup.catalog))
    await setup.catalog.refresh()
    with anyio.fail_after(20):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            for line in lines_of([HANDSHAKE, READY, level(1)]):
                await talk.take(line)
            [session] = setup.server.clients.all()
            changed("tools")
            await paper.until(3)
            assert not setup.server.has_sdk
            for line in lines_of([ping(2), {**ping(3), "method": "resources/read", "params": {"uri": "x://y"}}]):
                await talk.take(line)
            await paper.until(5)
            assert setup.server.has_sdk
            assert setup.server.clients.all() == [session]
            assert session.log_level == "debug"
            changed("prompts")
            await paper.until(6)
            await talk.end()
            assert not setup.server.clients.all()
            tasks.cancel_scope.cancel()
    methods = [message["method"] for message in paper.said if "method" in message]
    assert methods == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]


async def test_cancelled_2025_call_is_ended_and_not_answered(tmp_path: Path) -> None:
    setup, paper = Setup(tmp_path), Paper()
    setup.echo.seconds = 60
    await setup.catalog.refresh()
    with anyio.fail_after(20):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            for line in lines_of([HANDSHAKE, READY, old(1)]):
                await talk.take(line)
            while not setup.echo.calls:
                await anyio.lowlevel.checkpoint()
            await talk.take(lines_of([{**READY, "method": "notifications/cancelled", "params": {"requestId": 1}}])[0])
            await setup.echo.cancelled.wait()
            await talk.take(lines_of([ping(2)])[0])
            await talk.end()
            tasks.cancel_scope.cancel()
    assert [message["id"] for message in paper.said] == ["hello", 2]


@pytest.mark.parametrize("name", ["echo", "own"])
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_call_that_runs_when_the_input_ends_is_answered(tmp_path: Path, era: str, name: str) -> None:
    setup, paper = Setup(tmp_path), Paper()
    setup.echo.seconds = setup.own.seconds = HAND_OVER_SECONDS + 0.5
    await setup.catalog.refresh()
    said = [call("slow", name)] if era == "2026" else [HANDSHAKE, READY, old("slow", name)]
    with anyio.fail_after(20):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            for line in lines_of(said):
                await talk.take(line)
            await talk.end()
            tasks.cancel_scope.cancel()
    assert (paper.said[-1]["id"], paper.said[-1].get("result", {}).get("content")) == ("slow", [TEXT]), paper.said


@pytest.mark.parametrize("way", ["waits for input", "was cancelled", "listens"])
async def test_request_that_gets_no_answer_does_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("gateway.server.dispatch.END_SECONDS", 1_000.0)
    setup, paper = Setup(tmp_path), Paper()
    await setup.catalog.refresh()
    with anyio.fail_after(10):
        async with setup.server, anyio.create_task_group() as tasks:
            talk = LineDispatch(setup.server, paper.write, tasks)
            if way == "listens":
                filters = {"notifications": {"toolsListChanged": True}}
                await talk.take(json.dumps(ask("subscriptions/listen", 1, **filters)).encode())
            elif way == "waits for input":
                setup.asking.told = InputRequired({"who": ASK}, "state")
                for line in lines_of([hello(capabilities={"elicitation": {}}), READY, old(1, "asking")]):
                    await talk.take(line)
            else:
                setup.own.seconds = 60
                for line in lines_of([HANDSHAKE, READY, old(1, "own")]):
                    await talk.take(line)
                while not setup.own.calls:
                    await anyio.lowlevel.checkpoint()
                await talk.take(lines_of([{**READY, "method": "notifications/cancelled", "params": {"requestId": 1}}])[0])
            if way != "was cancelled":
                await paper.until(2 if way == "waits for input" else 1)
            await talk.end()
            tasks.cancel_scope.cancel()
