"""The kill matrix: the same tests with the engines `local` and `temporal`, each with SQLite and PostgreSQL (`tests.faults.sites`).

Gateways, their databases and clocks die, stop and come back at the wrong moment; each task ends once, with its true outcome.
`tests/tasks/test_durable.py` kills processes at every step of a task, and `tests/tasks/test_temporal.py` kills the Temporal server.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from gateway.errors import STORAGE_TEXT
from tests.fakes.postgres import Postgres, postgres
from tests.fakes.running import ROOT, TASK_ENGINE
from tests.faults.sites import (
    ENDED,
    EVERYWHERE,
    ON_POSTGRES,
    STEPS,
    Clock,
    Gateway,
    Site,
    answer,
    begun,
    finish,
    send_until_killed,
    state_of,
    text_of,
    until,
)
from tests.interaction.test_task_news import listening
from tests.interaction.wire import HttpWire, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

RESUME_SECONDS = 5.0
"""Another gateway continues a task within this time after the death of its gateway."""

REFUSE_SECONDS = 5.0
"""A call that needs the database fails within this time if the database is down."""

STOP_SECONDS = 10.0
"""A gateway has ended within this time after SIGTERM."""

DEATHS = 20
LEASE_SECONDS = 2.5


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    """The place of the test. Its parameter is the engine and the store."""
    engine, store = request.param
    if engine == "temporal":
        monkeypatch.setenv(TASK_ENGINE, request.getfixturevalue("temporal_server").address)
    monkeypatch.setenv("MATRIX_KEY", bytes(range(32)).hex())
    made = Site(tmp_path, engine, request.getfixturevalue("server") if store == "postgres" else None)
    made.prepare()
    try:
        yield made
    finally:
        made.close()


everywhere = pytest.mark.parametrize("site", EVERYWHERE, indirect=True)
on_postgres = pytest.mark.parametrize("site", ON_POSTGRES, indirect=True)


@everywhere
@pytest.mark.fault(1)
async def test_request_repeated_after_a_kill_starts_one_task(site: Site) -> None:
    """The gateway dies before the task is stored, between storing it and the response, and after the response."""
    survivor = await site.start()
    async with over_http(survivor.url, "modern") as wire:
        for milliseconds in (0, 5, 20, 80):
            name, victim = f"k{milliseconds}", await site.start()
            told: list[dict[str, Any] | None] = []

            async def ask(name: str = name, victim: Gateway = victim, told: list[Any] = told) -> None:
                meta = {"dev.moongate/idempotencyKey": name}
                call = {"name": "workflow__ten", "arguments": {"x": f"{name}/0"}, "_meta": meta}
                told.append(await send_until_killed(victim, "tools/call", **call))

            async with anyio.create_task_group() as asking:
                asking.start_soon(ask)
                await anyio.sleep(milliseconds / 1000)
                victim.kill()
            ids = {await begun(wire, "ten", f"{name}/0", key=name) for _ in range(2)}
            ids |= {answered["result"]["taskId"] for answered in told if answered is not None}
            assert len(ids) == 1, "each response has the id of the same task"
            assert text_of(await finish(wire, ids.pop())) == f"{name}/{STEPS}"
            site.check_runs(name, repeats=1)


@everywhere
@pytest.mark.fault(2)
@pytest.mark.fault(7)
async def test_peer_continues_after_the_last_finished_step(site: Site) -> None:
    """The gateway that runs the task dies before or after the work of each of its ten steps."""
    waits: list[float] = []
    living = await site.start()
    for number in range(STEPS):
        name, pair = f"d{number}", [living, await site.start()]
        (site.folder / "die").write_text(f"{name} {number} {'after' if number % 2 else 'before'}")
        async with over_http(pair[number % 2].url, "modern") as wire:
            task_id = await begun(wire, "ten", f"{name}/0")
            with anyio.fail_after(30):
                while not (dead := [gateway for gateway in pair if gateway.process.poll() is not None]):
                    await anyio.sleep(0.01)
        died = time.monotonic()
        (living,) = [gateway for gateway in pair if gateway not in dead]
        async with over_http(living.url, "modern") as wire:
            state = await until(wire, task_id, "input_required", *ENDED)
            waits.append(time.monotonic() - died)
            assert state["status"] == "input_required", "the step in flight does not run again without a decision"
            assert text_of(await finish(wire, task_id)) == f"{name}/{STEPS}"
        site.check_runs(name, repeats=1)
    assert statistics.median(waits) <= RESUME_SECONDS, waits


@everywhere
@pytest.mark.fault(3)
async def test_answer_given_while_no_gateway_runs_is_used_once(site: Site) -> None:
    first = await site.start()
    async with over_http(first.url, "modern") as wire:
        task_id = await begun(wire, "asks", "q")
        await until(wire, task_id, "input_required")
    first.kill()
    await anyio.to_thread.run_sync(site.command, "answer", task_id, "answer=later")
    second = await site.start()
    async with over_http(second.url, "modern") as wire:
        assert "later" in text_of(await until(wire, task_id, *ENDED))
    assert site.runs()["q"] == [0]


@everywhere
@pytest.mark.fault(4)
async def test_kill_during_a_cancellation_leaves_one_end(site: Site) -> None:
    survivor, ends = await site.start(), dict[str, str]()
    async with over_http(survivor.url, "modern") as wire:
        for milliseconds in (0, 3, 10, 300):
            name, victim = f"c{milliseconds}", await site.start()
            async with over_http(victim.url, "modern") as one:
                task_id = await begun(one, "holds", name)
            await site.until_run(name)
            async with anyio.create_task_group() as asking:

                async def cancel(victim: Gateway = victim, task_id: str = task_id) -> None:
                    await send_until_killed(victim, "tasks/cancel", taskId=task_id)

                asking.start_soon(cancel)
                await anyio.sleep(milliseconds / 1000)
                victim.kill()
            state = await state_of(wire, task_id)
            if site.engine == "local" and state["status"] not in ENDED:  # the request arrived before the kill, or not
                state = await until(wire, task_id, "input_required", *ENDED)
            if state["status"] not in ENDED:
                await wire.send("tasks/cancel", taskId=task_id)
            ends[task_id] = (await until(wire, task_id, *ENDED))["status"]
        await anyio.sleep(1.5 * LEASE_SECONDS)  # no gateway resumes a task that has ended
        assert {task_id: (await state_of(wire, task_id))["status"] for task_id in ends} == ends
    assert set(ends.values()) == {"cancelled"}


@everywhere
@pytest.mark.fault(5)
async def test_stopping_gateway_hands_fifty_tasks_over_in_time(site: Site) -> None:
    first, streams, seconds = await site.start(), 0, 0.0
    ids: dict[str, str] = {}

    async def start(wire: HttpWire, number: int) -> None:
        name = f"s{number}"
        ids[name] = await begun(wire, *(("ten", f"{name}/0") if number % 2 else ("asks", name)))

    async def listen(url: str, task_id: str) -> None:
        nonlocal streams
        async with over_http(url, "modern") as wire:
            wire.http.timeout = httpx2.Timeout(60)
            try:
                async with listening(wire, [task_id]) as heard:
                    streams += 1
                    async for _ in heard:
                        pass
            except httpx2.HTTPError:
                pass
            streams -= 1

    async with anyio.create_task_group() as listeners:
        async with over_http(first.url, "modern") as wire:
            async with anyio.create_task_group() as starts:
                for number in range(50):
                    starts.start_soon(start, wire, number)
            for task_id in list(ids.values())[:20]:
                listeners.start_soon(listen, first.url, task_id)
            with anyio.fail_after(30):
                while streams < 20:
                    await anyio.sleep(0.02)
        assert len(ids) == 50
        began = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(first.process.wait, 30) == 0, first.log.read_text()
        seconds = time.monotonic() - began
        with anyio.fail_after(10):  # the streams end with the gateway
            while streams:
                await anyio.sleep(0.05)
    second = await site.start()
    async with over_http(second.url, "modern") as wire:
        for name, task_id in ids.items():
            text = text_of(await finish(wire, task_id))
            assert text == f"{name}/{STEPS}" if f"{name}/" in text else "yes" in text
    for number in range(1, 50, 2):
        site.check_runs(f"s{number}", repeats=1)
    assert {site.runs()[f"s{number}"].count(0) for number in range(0, 50, 2)} <= {1, 2}
    assert seconds <= STOP_SECONDS


@everywhere
@pytest.mark.fault(6)
async def test_gateway_that_slept_past_its_lease_changes_nothing(site: Site) -> None:
    first = await site.start()
    async with over_http(first.url, "modern") as one:
        task_id = await begun(one, "holds", "z")
        await site.until_run("z")
        second = await site.start()
        async with over_http(second.url, "modern") as two:
            os.killpg(first.process.pid, signal.SIGSTOP)
            try:
                state = await until(two, task_id, "input_required")
                (site.folder / "go").touch()
                await answer(two, state)
                ended = await until(two, task_id, *ENDED)
            finally:
                os.killpg(first.process.pid, signal.SIGCONT)
            await anyio.sleep(1.5 * LEASE_SECONDS)  # the step of the stopped gateway ends, and the gateway tries to record it
            for wire in (one, two):
                state = await state_of(wire, task_id)
                assert (state["status"], state.get("result")) == ("completed", ended["result"])
    assert site.runs()["z"] == [0, 0]
    assert "task taken over by another process" in first.log.read_text()


@everywhere
@pytest.mark.fault(8)
async def test_task_is_controlled_through_another_gateway(site: Site) -> None:
    first, second = await site.start(), await site.start()
    async with over_http(first.url, "modern") as one, over_http(second.url, "modern") as two:
        held, asking = await begun(one, "holds", "h"), await begun(one, "asks", "a")
        assert (await state_of(two, held))["status"] == "working"
        await site.until_run("h")
        await two.send("tasks/cancel", taskId=held)
        assert (await until(one, held, *ENDED))["status"] == "cancelled"
        await answer(two, await until(two, asking, "input_required"))
        assert "yes" in text_of(await until(one, asking, *ENDED))
        waits: list[float] = []
        for number in range(5):
            task_id = await begun(one, "ten", f"n{number}/0")
            await until(one, task_id, *ENDED)
            ended = time.monotonic()
            await until(two, task_id, *ENDED)
            waits.append(time.monotonic() - ended)
    assert min(waits) <= 1.0, waits
    assert site.runs()["a"] == [0]


# -- the database --------------------------------------------------------------------------------------------------


@on_postgres
@pytest.mark.fault(9)
async def test_database_outage_fails_calls_clearly_and_tasks_resume(site: Site, server: Postgres) -> None:
    gateway = await site.start()
    async with over_http(gateway.url, "modern") as wire:
        task_id = await begun(wire, "holds", "o")
        await site.until_run("o")
        await anyio.to_thread.run_sync(server.stop)
        try:
            began = time.monotonic()
            refused = await wire.send("tools/call", name="workflow__holds", arguments={"x": "-"})
            assert refused["error"] == {"code": -32603, "message": STORAGE_TEXT}
            assert time.monotonic() - began <= REFUSE_SECONDS
            assert "result" in await wire.send("tools/list")  # calls that need no database are served
            await anyio.sleep(8)
        finally:
            await anyio.to_thread.run_sync(server.start)
        (site.folder / "go").touch()
        assert text_of(await finish(wire, task_id)) == "o!"
        assert text_of(await finish(wire, await begun(wire, "ten", "later/0"))) == f"later/{STEPS}"
    log = gateway.log.read_text()
    assert "127.0.0.1" in log and "cannot be used" in log


@on_postgres
@pytest.mark.fault(10)
async def test_task_id_is_not_sent_if_the_killed_database_lost_the_task(site: Site, server: Postgres) -> None:
    told: list[str] = []
    gateway = await site.start()
    async with over_http(gateway.url, "modern") as wire:

        async def ask(name: str) -> None:
            for number in range(4):
                started = await wire.send("tools/call", name="workflow__ten", arguments={"x": f"{name}.{number}/0"})
                if "result" in started and "taskId" in started["result"]:
                    told.append(started["result"]["taskId"])

        for turn in range(4):
            async with anyio.create_task_group() as asking:
                for client in range(4):
                    asking.start_soon(ask, f"{turn}.{client}")
                await anyio.sleep(0.15)
                await anyio.to_thread.run_sync(server.stop)
                await anyio.sleep(0.5)
                await anyio.to_thread.run_sync(server.start)
            assert text_of(await finish(wire, await begun(wire, "ten", f"{turn}/0"))) == f"{turn}/{STEPS}"
        assert told
        for task_id in told:
            assert (await finish(wire, task_id))["status"] == "completed"


@on_postgres
@pytest.mark.fault(10)
async def test_standby_of_the_killed_database_has_every_task_that_was_told(site: Site) -> None:
    told, before = dict[str, str](), set[str]()
    with postgres() as primary, primary.standby() as standby:
        primary.database("matrix")
        site.url = primary.url_with(standby, "matrix")
        gateways = [await site.start(), await site.start()]
        is_over = anyio.Event()

        async def keep_starting(client: int) -> None:
            async with over_http(gateways[client % 2].url, "modern") as wire:
                for number in range(1_000):
                    name = f"p{client}.{number}"
                    started = await wire.send("tools/call", name="workflow__ten", arguments={"x": f"{name}/0"})
                    if "result" in started:
                        told[name] = started["result"]["taskId"]
                    if is_over.is_set():
                        return
                    await anyio.sleep(0.2)

        async with anyio.create_task_group() as clients:
            for client in range(4):
                clients.start_soon(keep_starting, client)
            await anyio.sleep(2)
            await anyio.to_thread.run_sync(primary.stop)
            before = set(told)
            await anyio.sleep(1)
            await anyio.to_thread.run_sync(standby.promote)
            with anyio.fail_after(30):
                while set(told) == before:
                    await anyio.sleep(0.1)
            is_over.set()
        assert before
        async with over_http(gateways[0].url, "modern") as wire:
            for name, task_id in told.items():
                assert text_of(await finish(wire, task_id)) == f"{name}/{STEPS}"
                site.check_runs(name, repeats=1)


# -- clocks --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that moves the wall clock of a process."""
    library = tmp_path_factory.mktemp("clock") / "moving_clock.so"
    argv = [shutil.which("cc") or "", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tests/faults/moving_clock.c")]
    if sys.platform != "linux" or not argv[0]:
        pytest.skip("needs Linux and a C compiler")
    subprocess.run(argv, check=True)
    return library


@everywhere
@pytest.mark.fault(14)
@pytest.mark.parametrize("jump", [86_400.0, -3600.0], ids=["day-ahead", "hour-back"])
async def test_jump_of_the_clock_ends_and_loses_no_task(site: Site, clock_library: Path, jump: float) -> None:
    clock = Clock(site.folder, clock_library, "all")
    site.config = {"tasks": {"ttlSeconds": 200_000}}
    first = await site.start(env=clock.env, forks=False)
    second = await site.start(env=clock.env, forks=False)
    async with over_http(first.url, "modern") as one, over_http(second.url, "modern") as two:
        done, held = await begun(one, "ten", "done/0"), await begun(one, "holds", "held")
        asking = await begun(one, "asks", "asking")
        assert text_of(await finish(one, done)) == f"done/{STEPS}"
        await until(one, asking, "input_required")
        await site.until_run("held")
        await anyio.sleep(3)  # with Temporal, the question ends its activity
        clock.set(jump)
        await anyio.sleep(1.5 * LEASE_SECONDS)
        for wire in (one, two):
            assert [(await state_of(wire, task_id))["status"] for task_id in (done, asking)] == ["completed", "input_required"]
        assert text_of(await finish(two, await begun(two, "ten", "new/0"))) == f"new/{STEPS}"
        (site.folder / "go").touch()
        assert text_of(await finish(two, held)) == "held!"
        assert "yes" in text_of(await finish(two, asking))
    assert site.check_runs("new", repeats=0) == 0
    assert (site.runs()["held"], site.runs()["asking"]) == ([0], [0])


@on_postgres
@pytest.mark.fault(14)
async def test_clocks_that_differ_by_minutes_change_nothing(site: Site, clock_library: Path) -> None:
    clocks = [Clock(site.folder, clock_library, name) for name in ("fast", "slow")]
    for clock, ahead in zip(clocks, (300.0, -300.0), strict=True):
        clock.set(ahead)
    for fast, slow in ((0, 1), (1, 0)):
        first = await site.start(env=clocks[fast].env, forks=False)
        second = await site.start(env=clocks[slow].env, forks=False)
        async with over_http(first.url, "modern") as one, over_http(second.url, "modern") as two:
            for number in range(3):
                name = f"{fast}.{number}"
                assert text_of(await finish(two, await begun(one, "ten", f"{name}/0"))) == f"{name}/{STEPS}"
                site.check_runs(name, repeats=0)
            held, asking = await begun(one, "holds", f"{fast}"), await begun(one, "asks", f"a{fast}")
            await site.until_run(f"{fast}")
            await answer(two, await until(two, asking, "input_required"))
            assert "yes" in text_of(await until(one, asking, *ENDED))
            assert (await state_of(two, held))["status"] == "working"
            first.kill()
            died = time.monotonic()
            state = await until(two, held, "input_required") if site.engine == "local" else None
            if state is not None:
                assert time.monotonic() - died <= 2 * RESUME_SECONDS
            (site.folder / "go").touch()
            assert text_of(await finish(two, held)) == f"{fast}!"
        second.kill()
        (site.folder / "go").unlink()


# -- many deaths ---------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.fault(2)
@pytest.mark.fault(7)
async def test_twenty_deaths_lose_no_task_and_repeat_no_finished_step(site: Site) -> None:
    """Two gateways run tasks all the time; at random moments one of them dies, and another starts."""
    chance = random.Random(23)
    living = [await site.start(), await site.start()]
    started: dict[str, str] = {}
    is_over = anyio.Event()

    async def keep_starting(client: int) -> None:
        for number in range(1_000):
            if is_over.is_set():
                return
            name = f"t{client}.{number}"
            with anyio.fail_after(30):
                while True:  # repeat the request at any gateway until one has answered it
                    meta = {"dev.moongate/idempotencyKey": name}
                    call = {"name": "workflow__ten", "arguments": {"x": f"{name}/0"}, "_meta": meta}
                    told = await send_until_killed(chance.choice(living), "tools/call", **call)
                    if told is not None and "result" in told:
                        break
                    await anyio.sleep(0.1)
            assert started.setdefault(name, told["result"]["taskId"]) == told["result"]["taskId"]
            await anyio.sleep(chance.uniform(0.3, 1.2))

    async with anyio.create_task_group() as clients:
        for client in range(4):
            clients.start_soon(keep_starting, client)
        for _ in range(DEATHS):
            await anyio.sleep(chance.uniform(0.1, 0.8))
            chance.choice(living).kill()
            living[:] = [gateway for gateway in living if gateway.process.poll() is None]
            living.append(await site.start())
        is_over.set()
    async with over_http(living[0].url, "modern") as wire:
        for name, task_id in started.items():
            assert text_of(await finish(wire, task_id)) == f"{name}/{STEPS}"
    assert len(started) >= DEATHS
    for name in started:
        site.check_runs(name, repeats=DEATHS)
