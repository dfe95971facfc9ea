"""The pipe to a child process: plain calls that bypass the SDK's dispatcher, with real processes that run a given script."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.models import StdioServer
from gateway.errors import OutcomeUnknown, Rejected, RequestFailure, TooLarge
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel
from gateway.upstream.carriers.carrier import OutgoingRequest
from gateway.upstream.carriers.pipe_carrier import PipeCarrier
from gateway.upstream.pipe import MAX_UNREAD, ChildLog
from gateway.upstream.server_messages import MAX_OPEN_REQUESTS, MAX_PENDING_NOTIFICATIONS
from gateway.upstream.server_session import Envelope, open_session
from gateway.upstream.stdio import open_stdio

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the SDK's client is used there")

START = """
import json, os, sys
def say(**message):
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
def hear():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()
def done(message, text, **more):
    say(id=message["id"], result={"content": [], "said": text}, **more)
"""
SECONDS = 20


class Heard:
    """The owner of a session, which records its requests and notifications in order."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        raise AssertionError(request)

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        self.log.append(str(params.get("data")))


@asynccontextmanager
async def child(script: str, log: list[str] | Heard | None = None, *, max_line_bytes: int = 1 << 20) -> AsyncGenerator[PipeCarrier]:
    """Start a child process that runs this script, open a session with it, and yield the session's carrier."""
    entry = StdioServer(command=sys.executable, args=["-S", "-c", START + script])
    owner = log if isinstance(log, Heard) else Heard([] if log is None else log)
    with anyio.fail_after(SECONDS):
        async with open_stdio("up", entry, ChildLog(), max_line_bytes=max_line_bytes) as carrier:
            async with open_session("up", carrier, owner, client={"name": "test", "version": "1"}) as session:
                assert session.carrier is carrier and isinstance(carrier, PipeCarrier)
                yield carrier


async def ask(carrier: PipeCarrier, text: str, found: dict[str, Any] | None = None) -> Any:
    """Make one call and return the `said` value of its result, or the code or type of its error."""
    try:
        said: Any = (await carrier.request(OutgoingRequest("tools/call", {"text": text}, None, (), is_modern=True)))["said"]
    except RequestFailure as error:
        said = error.code if isinstance(error, Rejected) else type(error)
    if found is not None:
        found[text] = said
    return said


async def test_responses_match_requests_in_any_order_and_id_type() -> None:
    script = """
heard = [hear() for _ in range(3)]
say(id=999, result={})
say(id=None, error={"code": -32700, "message": "what?"})
for message in reversed(heard):
    done({"id": str(message["id"])}, message["params"]["text"])
    done(message, "again")
done(hear(), "after")
"""
    found: dict[str, Any] = {}
    async with child(script) as carrier:
        async with anyio.create_task_group() as tasks:
            for text in "abc":
                tasks.start_soon(ask, carrier, text, found)
        assert found == {"a": "a", "b": "b", "c": "c"}
        assert await ask(carrier, "d") == "after"


async def test_each_request_declares_the_log_level_of_its_own_caller() -> None:
    script = """
while True:
    message = hear()
    done(message, message["params"]["_meta"].get("io.modelcontextprotocol/logLevel"))
"""
    levels: list[LogLevel | None] = ["info", "info", None, "debug", None, None, "info", "info"]
    entry, given = StdioServer(command=sys.executable, args=["-S", "-c", START + script]), {"x/y": 1}
    with anyio.fail_after(SECONDS):
        async with open_stdio("up", entry, ChildLog(), max_line_bytes=1 << 20) as carrier:
            async with open_session("up", carrier, Heard([]), client={"name": "test", "version": "1"}) as session:
                said = [(await session.request("tools/call", {}, Envelope(meta=given, log_level=level)))["said"] for level in levels]
    assert said == levels


async def test_messages_before_a_response_are_handled_before_it() -> None:
    script = """
while True:
    message = hear()
    for n in range(200):
        say(method="notifications/message", params={"level": "info", "data": f"{message['params']['text']} {n}"})
    done(message, "done")
"""
    log: list[str] = []
    async with child(script, log) as carrier:
        for turn in range(3):
            assert await ask(carrier, str(turn)) == "done"
            log.append("answered")
    assert log == [entry for turn in range(3) for entry in (*(f"{turn} {n}" for n in range(200)), "answered")]


async def test_lines_that_are_not_responses_are_skipped_and_fail_no_call() -> None:
    script = """
message = hear()
os.write(1, b"Listening...\\n\\n[1]\\n" + bytes([0, 255]) + b"\\n{\\"id\\": 1\\n")
for odd in (b"02", b'"\\1"', b'"\\377"'):
    os.write(1, b'{"jsonrpc" "2.0", "id": %s}\\n' % odd)
say(id=message["id"] + 1)
say(id=message["id"], method="ping")
answered = hear()["id"]
assert answered == message["id"]
say(id=message["id"], method=["ping"])
done(message, "yes")
message = hear()
say(id=message["id"], error={"code": -32099, "message": "no"})
hear()
"""
    async with child(script) as carrier:
        assert await ask(carrier, "a") == "yes"
        assert await ask(carrier, "b") == -32099


@pytest.mark.parametrize("parts", [1, 40])
async def test_response_that_is_too_long_fails_its_own_call_only(parts: int) -> None:
    script = f"""
for at_end in (False, True):
    message = hear()
    answer = {{"jsonrpc": "2.0", "result": {{"said": "x" * 1_000_000}}, "id": message["id"]}}
    line = json.dumps(answer if at_end else dict(sorted(answer.items()))).encode() + b"\\n"
    size = len(line) // {parts} + 1
    while line:
        line = line[os.write(1, line[:size]):]
done(hear(), "short")
"""
    async with child(script, max_line_bytes=100_000) as carrier:
        assert [await ask(carrier, text) for text in "abc"] == [TooLarge, TooLarge, "short"]


async def test_cancelled_call_ends_at_the_server_and_late_response_drops() -> None:
    script = """
first = hear()
say(method="notifications/message", params={"level": "info", "data": "began"})
cancelled = hear()
done(first, "late")
done(hear(), [cancelled["method"], cancelled["params"]["requestId"] == first["id"]])
"""
    log: list[str] = []
    async with child(script, log) as carrier:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, carrier, "a")
            while not log:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert await ask(carrier, "b") == ["notifications/cancelled", True]


async def test_child_that_does_not_read_blocks_only_its_callers(tmp_path: Path) -> None:
    script = f"""
import time
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.01)
seen = []
while True:
    message = hear()
    if message.get("method") != "tools/call":
        continue
    seen.append(message["params"]["text"][:3])
    done(message, seen)
"""
    async with child(script) as carrier:
        for n in range(3):  # the pipe and the transport buffer accept the first call, and the other calls wait
            with anyio.move_on_after(0.05 if n else 0.2):
                await ask(carrier, f"{n:03}" + "x" * 4_000_000)
        (tmp_path / "go").touch()
        assert await ask(carrier, "end") == ["000", "end"]


async def test_calls_end_with_the_child_and_new_calls_fail() -> None:
    found: dict[str, Any] = {}
    async with child("hear(); hear()") as carrier:
        async with anyio.create_task_group() as tasks:
            for text in "ab":
                tasks.start_soon(ask, carrier, text, found)
        assert found == {"a": OutcomeUnknown, "b": OutcomeUnknown}
        assert await ask(carrier, "c") == OutcomeUnknown


async def test_child_that_writes_faster_than_handled_is_not_read(tmp_path: Path) -> None:
    script = f"""
for n in range(3_000):
    say(method="x", params={{"n": n, "text": "x" * 100}})
open({str(tmp_path / "all")!r}, "w")
hear()
"""
    entry = StdioServer(command=sys.executable, args=["-S", "-c", START + script])
    with anyio.fail_after(SECONDS):
        async with open_stdio("up", entry, ChildLog(), max_line_bytes=1 << 20) as carrier:
            assert isinstance(carrier, PipeCarrier)
            heard: list[int] = []
            async with anyio.create_task_group() as tasks:

                async def receive(message: JsonObject) -> None:
                    heard.append(message["params"]["n"])
                    if len(heard) == 1:
                        await anyio.sleep(0.1)  # enough time for the child to write everything if the gateway read all of it
                        assert not (tmp_path / "all").exists()
                    if len(heard) == 3_000:
                        tasks.cancel_scope.cancel()

                await carrier._pipe.pass_on_forever(receive)  # pyright: ignore[reportPrivateUsage]
    assert heard == list(range(3_000))


class Stuck(Heard):
    """Handles no request or notification to its end before the test ends."""

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        self.log.append("asked")
        await anyio.sleep_forever()
        return {}

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        self.log.append(method)
        await anyio.sleep_forever()


async def test_child_that_floods_requests_is_rejected_and_blocks_no_call() -> None:
    script = f"""
message = hear()
for n in range({MAX_OPEN_REQUESTS} + 100):
    say(id=n, method="roots/list")
done(message, "asked")
heard = [hear() for _ in range(101)]
[message] = [message for message in heard if "method" in message]
done(message, [message["error"]["code"] for message in heard if "error" in message])
"""
    owner = Stuck([])
    async with child(script, owner) as carrier:
        assert await ask(carrier, "a") == "asked"
        assert await ask(carrier, "b") == [-32603] * 100
        assert owner.log == ["asked"] * MAX_OPEN_REQUESTS


async def test_child_that_does_not_read_gets_no_buffered_responses() -> None:
    script = """
message = hear()
for n in range(2_000):
    say(id=f"{n:01000}", method="ping")
done(message, "asked")
answers = 0
message = hear()
while "method" not in message:
    answers += 1
    message = hear()
done(message, answers)
"""
    async with child(script) as carrier:
        assert await ask(carrier, "a") == "asked"
        assert len(anyio.get_running_tasks()) < MAX_UNREAD + 20
        assert MAX_UNREAD < await ask(carrier, "b") < 2_000


async def test_unread_logs_are_dropped_and_change_notifications_kept() -> None:
    script = f"""
message = hear()
for n in range({MAX_PENDING_NOTIFICATIONS} + 100):
    say(method="notifications/message", params={{"level": "info", "data": n}})
say(method="notifications/tools/list_changed")
done(message, "said")
"""
    owner = Stuck([])
    async with child(script, owner) as carrier:
        assert await ask(carrier, "a") == "said"
        assert owner.log == ["notifications/message"] * MAX_PENDING_NOTIFICATIONS + ["notifications/tools/list_changed"]


async def test_cancellation_with_a_malformed_id_fails_no_call() -> None:
    script = """
while True:
    message = hear()
    for said in ([], {}, None, 1.5, True):
        say(method="notifications/cancelled", params={"requestId": said})
    done(message, "yes")
"""
    async with child(script) as carrier:
        assert [await ask(carrier, text) for text in "ab"] == ["yes", "yes"]
