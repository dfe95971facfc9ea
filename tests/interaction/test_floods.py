"""A server that sends progress or logs without a pause: its client gets a few messages and other calls go on, on every path."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.server.sdk_path.notification_rates import LOG_BURST, LOG_SPACING_SECONDS, PROGRESS_BURST, PROGRESS_SPACING_SECONDS
from tests.interaction.conftest import Gateways
from tests.interaction.ways import Way, cells, connected

REPORTS, LOGS = 1_000, 600


@pytest.mark.fault(32)
@pytest.mark.parametrize("way", [*cells(), Way("stdio", "legacy", "new-http"), Way("stdio", "modern", "old-http")], ids=str)
async def test_progress_flood_reaches_client_rate_limited_with_last_report(gateways: Gateways, way: Way) -> None:
    heard: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with connected(way, gateways.target(way)) as (client, _):
        began = anyio.current_time()
        result: Any = await client.call_tool(way.name("flood"), {"reports": REPORTS}, progress_callback=note)
        seconds = anyio.current_time() - began
    assert result.content[0].text == "done"
    assert heard[-1] == (REPORTS, f"step {REPORTS}")
    assert heard == sorted(set(heard))
    assert len(heard) <= PROGRESS_BURST + seconds / PROGRESS_SPACING_SECONDS + 1


@pytest.mark.fault(32)
@pytest.mark.parametrize("way", cells(), ids=str)
async def test_log_flood_reaches_client_rate_limited_with_dropped_count(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        if way.era == "legacy":
            await client.set_logging_level("debug")  # pyright: ignore[reportDeprecated]  # legacy clients have nothing else
        began = anyio.current_time()
        await client.call_tool(way.name("flood"), {"logs": LOGS})
        seconds = anyio.current_time() - began
        with anyio.fail_after(20):
            while not heard.logs:
                await anyio.sleep(0.01)
        logs = list(heard.logs)
    sent = [log.data for log in logs if log.logger == "fake"]
    dropped = sum(int(log.data.split()[0]) for log in logs if log.logger == "moongate")
    assert len(sent) == len(set(sent))
    assert LOG_BURST <= len(sent) <= LOG_BURST + seconds / LOG_SPACING_SECONDS + 1
    assert len(sent) + dropped == LOGS
