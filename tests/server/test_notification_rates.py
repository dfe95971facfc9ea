"""How often one call sends progress and log messages to its client."""

from __future__ import annotations

import math

import anyio
import pytest

from gateway.json_types import JsonValue
from gateway.server.sdk_path.notification_rates import LOG_BURST, PROGRESS_BURST, ThrottledLog, ThrottledProgress
from gateway.tools.ports import LogLevel


class Client:
    """Writes down the progress it gets; reads only while `reads` is set."""

    def __init__(self) -> None:
        self.heard: list[float] = []
        self.logs: list[tuple[JsonValue, str | None]] = []
        self.reads = anyio.Event()
        self.reads.set()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        await self.reads.wait()
        self.heard.append(progress)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        self.logs.append((data, logger))


@pytest.mark.fault(32)
async def test_flood_sends_first_reports_and_last_one() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        paced = ThrottledProgress(client.progress, tasks)
        for number in range(1, 20_001):
            await paced.report(number, None, None)
        assert client.heard == list(range(1, PROGRESS_BURST + 1))
        await paced.finish()
        assert client.heard == [*range(1, PROGRESS_BURST + 1), 20_000]
        await paced.report(20_001, None, None)
    assert client.heard[-1] == 20_000


async def test_delayed_report_is_sent_without_a_later_one() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        paced = ThrottledProgress(client.progress, tasks)
        for number in range(PROGRESS_BURST + 5):
            await paced.report(number, None, None)
    assert client.heard == [*range(PROGRESS_BURST), PROGRESS_BURST + 4]


async def test_values_that_do_not_grow_are_dropped() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        paced = ThrottledProgress(client.progress, tasks)
        for value in (1, 1, 0.5, math.nan, 2):
            await paced.report(value, None, None)
        await paced.finish()
    assert client.heard == [1, 2]


async def test_reports_do_not_wait_for_a_client_that_does_not_read() -> None:
    client = Client()
    client.reads = anyio.Event()
    async with anyio.create_task_group() as tasks:
        paced = ThrottledProgress(client.progress, tasks)
        tasks.start_soon(paced.report, 1, None, None)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            for number in range(2, 100):
                await paced.report(number, None, None)
        client.reads.set()
        await paced.finish()
    assert client.heard[0] == 1
    assert client.heard[-1] == 99
    assert len(client.heard) <= PROGRESS_BURST + 1


async def test_last_report_is_sent_when_its_sender_is_cancelled() -> None:
    client = Client()
    client.reads = anyio.Event()
    async with anyio.create_task_group() as tasks:
        paced = ThrottledProgress(client.progress, tasks)
        async with anyio.create_task_group() as reporters:
            reporters.start_soon(paced.report, 1, None, None)
            await anyio.wait_all_tasks_blocked()
            await paced.report(2, None, None)
            reporters.cancel_scope.cancel()
        client.reads.set()
        await paced.finish()
    assert client.heard == [2]


@pytest.mark.fault(32)
async def test_logs_beyond_the_rate_are_counted() -> None:
    client = Client()
    limit = ThrottledLog(client.log)
    for number in range(1_000):
        await limit.log("info", number, "fake")
    await limit.finish()
    sent = [data for data, logger in client.logs if logger == "fake"]
    dropped = [int(str(data).split()[0]) for data, logger in client.logs if logger == "moongate"]
    assert sent[:LOG_BURST] == list(range(LOG_BURST))
    assert len(sent) + sum(dropped) == 1_000
    assert client.logs[-1][1] == "moongate"
