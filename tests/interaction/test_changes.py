"""Changes announced by a server reach every client: legacy sessions and modern listeners (SEP-2575, 2025-11-25 notifications)."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as t
import pytest

from tests.interaction.conftest import Gateways
from tests.interaction.ways import Way, connected, ways

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("way", [w for w in ways() if w.front != "stdio"], ids=str)]


async def until(heard: list[Any], kind: type) -> Any:
    """Wait for a message of this type, and return the first."""
    with anyio.fail_after(20):
        while True:
            for message in heard:
                if isinstance(message, kind):
                    return message
            await anyio.sleep(0.02)


async def test_tool_added_by_server_is_announced_and_callable(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        before = {tool.name for tool in (await client.list_tools()).tools}
        if way.era == "legacy":
            grown: Any = (await client.call_tool(way.name("grow"), {})).content[0]
            await until(heard.messages, t.ToolListChangedNotification)
        else:
            async with client.listen(tools_list_changed=True) as changes:
                grown = (await client.call_tool(way.name("grow"), {})).content[0]
                with anyio.fail_after(20):
                    await anext(aiter(changes))
        with anyio.fail_after(20):
            while way.name(grown.text) not in {tool.name for tool in (await client.list_tools()).tools} - before:
                await anyio.sleep(0.05)
        result: Any = await client.call_tool(way.name(grown.text), {"text": "new here"})
    assert result.content[0].text == "new here"


async def test_watched_resource_change_is_announced_under_exposed_uri(gateways: Gateways, way: Way) -> None:
    uri = way.uri("data://watched")
    async with connected(way, gateways.target(way)) as (client, heard):
        if way.era == "legacy":
            await client.subscribe_resource(uri)  # pyright: ignore[reportDeprecated]  # the legacy wire is what is tested
            with anyio.fail_after(20):
                while not any(isinstance(m, t.ResourceUpdatedNotification) for m in heard.messages):
                    await client.call_tool(way.name("touch"), {})
                    await anyio.sleep(0.1)
            updated = await until(heard.messages, t.ResourceUpdatedNotification)
            assert str(updated.params.uri) == uri
            await client.unsubscribe_resource(uri)  # pyright: ignore[reportDeprecated]
        else:
            seen: list[Any] = []
            async with client.listen(resource_subscriptions=[uri]) as changes, anyio.create_task_group() as tasks:

                async def collect() -> None:
                    seen.extend([await anext(aiter(changes))])

                tasks.start_soon(collect)
                with anyio.fail_after(20):
                    while not seen:
                        await client.call_tool(way.name("touch"), {})
                        await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
            assert seen[0].uri == uri
