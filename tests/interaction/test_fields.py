"""Descriptive fields and log levels on every path over one gateway, in both eras, over HTTP and stdio."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.fakes.upstream import DRESSED, ICON
from tests.interaction.conftest import Gateways
from tests.interaction.ways import Way, cells, connected

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("way", cells(), ids=str)]


async def test_titles_icons_annotations_and_schemas_pass_unchanged(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        resources = {resource.uri: resource for resource in (await client.list_resources()).resources}
        called: Any = (await client.call_tool(way.name("dressed"), {})).content[0]
    published = tools[way.name("dressed")].model_dump(by_alias=True, exclude_none=True)
    written = DRESSED.model_dump(by_alias=True, exclude_none=True)
    assert {**published, "name": "dressed"} == written
    report = resources[way.uri("data://report")]
    assert (report.title, report.icons, report.size) == ("Report", [ICON], 3)
    assert (called.annotations.audience, called.annotations.priority) == (["user"], 0.5)


async def test_the_level_a_client_chose_holds_whatever_the_servers_era(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        if way.era == "legacy":
            await client.session.set_logging_level("error")  # pyright: ignore[reportDeprecated]  # how a 2025 client does it
        await client.call_tool(way.name("say"), {"level": "debug"})
        await client.call_tool(way.name("say"), {"level": "critical"})
        wanted = ["critical"] if way.era == "legacy" else ["debug", "critical"]
        with anyio.fail_after(20):
            while len(heard.logs) < len(wanted):
                await anyio.sleep(0.01)
        stats: Any = (await client.call_tool(way.name("stats"), {})).structured_content
    assert [entry.level for entry in heard.logs] == wanted
    if way.upstream.startswith("old") and way.era == "modern":
        assert "debug" in stats["levels"]
