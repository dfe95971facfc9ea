"""Large results of calls inside tasks: what is recorded of them, and what stays in memory."""

from __future__ import annotations

import gc
import json
import math
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.policies import SourcePolicy
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.results import Judged, ResultOrigin, ResultRules
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.result_folder import FolderResults
from gateway.storage.result_store import ResultStore
from gateway.tools.base import Complete, Received, Releasable, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext, DurablePort
from gateway.upstream.large_result_pool import HelperPool
from tests.fakes.recorded_events import RecordedEvents
from tests.tasks.calls import CTX, ended, port, sql, until
from tests.tasks.dying import running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.requirement(97), pytest.mark.fault(20)]

LINES = 'näher 日本語 "quoted" \\ line\n' * 20_000
SHORT: dict[str, Any] = {"max_result_bytes": 2_000}
PICTURE = {"type": "image", "data": "iVBORw0K" * 20_000, "mimeType": "image/png"}


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


ROWS = json.dumps({"rows": [{"id": n, "name": f"row {n}"} for n in range(300)], **{f"key {n}": n for n in range(30)}})

RESULTS: dict[str, list[JsonObject]] = {
    "text": [text(LINES)],
    "many texts": [text(LINES[:900]) for _ in range(60)],
    "two tables": [text(ROWS), text(ROWS)],  # their shortened forms together still exceed the limit
    "hidden text": [text("seen\u202e")],
    "picture": [PICTURE],
}


class Judging:
    """Holds a result, and notes the deadline of its call while the result is judged."""

    def __init__(self, ctx: CallContext) -> None:
        self._clock = ctx.limits.clocks[-1]
        self.deadlines = [self._clock.scope.deadline]

    async def judge(self, rules: ResultRules, store: ResultStore | None, source: ResultOrigin) -> Judged:
        self.deadlines.append(self._clock.scope.deadline)
        return Judged(Complete.text("judged").result)

    async def whole(self) -> Received:
        raise AssertionError

    def release(self) -> None:
        pass


class Claimed:
    """A claim that notes how many steps were on record when it was given back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.recorded: list[int] = []

    def release(self) -> None:
        with closing(sqlite3.connect(self._folder / DATABASE_FILE, timeout=20)) as database:
            self.recorded += database.execute("SELECT COUNT(*) FROM task_steps WHERE is_done = 1").fetchone()


class Large:
    """A tool whose result a helper process holds, as that of a server, or which gives it at once."""

    definition = ToolDefinition("big", "Gives much.", {"type": "object"})

    def __init__(self, content: list[JsonObject], helpers: HelperPool | None = None, claim: Releasable | None = None) -> None:
        self._result: JsonObject = {"content": content}
        self._helpers = helpers
        self._claim = claim
        self.calls = 0

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        self.calls += 1
        if self._helpers is None:
            return Complete(self._result)
        message = json.dumps({"jsonrpc": "2.0", "id": 7, "result": self._result}).encode()
        _, held = await self._helpers.hold([message], self._claim, lambda said: True)
        return Complete({"content": []}, claim=held)


@asynccontextmanager
async def helper_processes() -> AsyncGenerator[HelperPool]:
    made = HelperPool()
    try:
        yield made
    finally:
        await made.aclose()


def gate(folder: Path, tool: Tool, *, keeps: bool = True, events: RecordedEvents | None = None) -> GuardedTool:
    """Return the tool behind a gate that shortens results, and stores the full results unless `keeps` is false."""
    store = FolderResults(folder / "kept", ttl_seconds=60, max_bytes_per_owner=10**8) if keeps else None
    services = GateServices(events or RecordedEvents(), store=store)
    return GuardedTool(tool, ToolRules.build(tool.definition, SourcePolicy(**SHORT)), SourceGate("up", services), exposed_name="up__big")


class Run:
    """A call inside a task: the guarded tool, and then nothing until `goes_on` is set."""

    def __init__(self, guarded: GuardedTool, *, goes_on: bool) -> None:
        self._guarded = guarded
        self._goes_on = goes_on
        self.got: list[JsonObject] = []

    async def __call__(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        outcome = await self._guarded.call({}, ctx)
        assert isinstance(outcome, Complete)
        self.got.append(outcome.result)
        if not self._goes_on:
            await anyio.sleep_forever()
        return outcome


@pytest.mark.parametrize(
    ("kind", "is_held", "keeps"),
    [
        ("text", True, True),
        ("text", True, False),
        ("many texts", False, True),
        ("two tables", True, True),
        ("hidden text", False, True),
        ("picture", True, True),
        ("picture", False, True),
    ],
)
async def test_step_on_record_is_what_the_run_got(kind: str, is_held: bool, keeps: bool, tmp_path: Path) -> None:
    async with helper_processes() as helpers:
        tool = Large(RESULTS[kind], helpers if is_held else None)
        guarded = gate(tmp_path, tool, keeps=keeps)
        first, again = Run(guarded, goes_on=False), Run(guarded, goes_on=True)
        async with running(tmp_path, first) as runner:
            task = await runner.start("up__big", {}, CTX)
            await until(lambda: first.got)
            ((recorded,),) = await sql(tmp_path, "SELECT value FROM task_steps WHERE is_done = 1")
        async with running(tmp_path, again) as runner:
            result = (await ended(runner, await runner.find(task.id, task.principal))).result
    assert json.loads(recorded)["result"] == first.got[0] == again.got[0] == result
    assert tool.calls == 1
    shown = json.dumps(first.got[0])
    if kind == "picture":
        assert first.got == [{"content": [PICTURE]}]
    else:
        assert len(recorded) < 10_000
        assert "\\u202e" not in shown
        assert ("dev.moongate/shortened" in shown, "maxResultBytes" in shown) == (
            (False, False) if kind == "hidden text" else (keeps, not keeps)
        )


@pytest.mark.parametrize(("kind", "recorded"), [("picture", 1), ("text", 0)])
async def test_size_claim_of_a_result_is_released_once_recorded(kind: str, recorded: int, tmp_path: Path) -> None:
    """A shortened result is small, so its claim is given back at once."""
    async with helper_processes() as helpers:
        claim = Claimed(tmp_path)
        run = Run(gate(tmp_path, Large(RESULTS[kind], helpers, claim)), goes_on=True)
        async with running(tmp_path, run) as runner:
            assert (await ended(runner, await runner.start("up__big", {}, CTX))).status == "completed"
    assert claim.recorded[0] == recorded


async def test_rejected_result_is_reported_as_rejected(tmp_path: Path) -> None:
    events = RecordedEvents()
    run = Run(gate(tmp_path, Large(RESULTS["text"]), keeps=False, events=events), goes_on=True)
    async with running(tmp_path, run) as runner:
        assert (await ended(runner, await runner.start("up__big", {}, CTX))).status == "completed"
    last = events.recent()[-1]
    assert (last.kind, last.fields["outcome"], last.fields["rule"]) == ("call.refused", "refused", "maxResultBytes")


async def test_deadline_of_a_call_excludes_the_check_of_its_result(tmp_path: Path) -> None:
    held = list[Judging]()

    class Slow(Large):
        async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
            held.append(Judging(ctx))
            return Complete({"content": []}, claim=held[0])

    run = Run(gate(tmp_path, Slow([])), goes_on=True)
    async with running(tmp_path, run) as runner:
        assert (await ended(runner, await runner.start("up__big", {}, CTX))).result == Complete.text("judged").result
    before, meanwhile = held[0].deadlines
    assert before < meanwhile == math.inf


async def test_step_recorded_by_an_earlier_version_is_checked_when_used(tmp_path: Path) -> None:
    guarded = gate(tmp_path, Large(RESULTS["text"]))
    first, again = Run(guarded, goes_on=False), Run(guarded, goes_on=True)
    async with running(tmp_path, first) as runner:
        task = await runner.start("up__big", {}, CTX)
        await until(lambda: first.got)
    recorded = json.dumps({"result": {"content": RESULTS["text"]}})
    await sql(tmp_path, f"UPDATE task_steps SET value = '{recorded}'")
    async with running(tmp_path, again) as runner:
        result = (await ended(runner, await runner.find(task.id, task.principal))).result
    assert "dev.moongate/shortened" in json.dumps(result)
    assert len(json.dumps(result)) < 10_000


@contextmanager
def no_collection() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["picture", "text"])
async def test_result_is_released_when_its_call_ends(kind: str, tmp_path: Path) -> None:
    """Without a collection of garbage, which comes late in a gateway: a call that its client waits for, and a task."""
    ports = list[weakref.ref[DurablePort]]()

    async with helper_processes() as helpers:
        guarded = gate(tmp_path, Large(RESULTS[kind], helpers))

        async def work(ctx: CallContext) -> ToolOutcome:
            ports.append(weakref.ref(port(ctx)))
            return await guarded.call({}, ctx)

        async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
            outcome = await work(ctx)
            assert isinstance(outcome, Complete)
            return outcome

        async with running(tmp_path, call) as runner:
            with no_collection():
                outcome = await runner.run_inline("up__big", {}, CTX, work)
                assert isinstance(outcome, Complete)
                assert (outcome.encoded is None) == (kind == "text")  # a result that is not shortened is not encoded a second time
                del outcome
                await ended(runner, await runner.start("up__big", {}, CTX))
                await until(lambda: [ref() for ref in ports] == [None, None])
