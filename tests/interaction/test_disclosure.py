"""Tools listed on demand, prompts as tools, and the gateway's own status: what a model sees in order to choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.fakes.running import gateway_http, upstream_http, upstream_stdio
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(90)

HELPERS = {"list_tools", "load_tools", "unload_tools"}
ON_DEMAND: dict[str, Any] = {"policies": {"up": {"disclosure": "on-demand"}}}


async def listed(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.requirement("MC13")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tools_are_listed_once_loaded_and_callable_before(tmp_path: Path, era: Era) -> None:
    with upstream_http() as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}, **ON_DEMAND}) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            before = await listed(client)
            unloaded: Any = await client.call_tool("up__add", {"a": 1, "b": 2})
            found: Any = await client.call_tool("list_tools", {"query": "echo a text"})
            loaded: Any = await client.call_tool("load_tools", {"names": ["up__echo", "up__add", "up__nothing"]})
            after = await listed(client)
            await client.call_tool("unload_tools", {"names": ["up__add"]})
            last = await listed(client)
            unknown: Any = await client.call_tool("load_tools", {"names": ["up__nothing"]})
    assert HELPERS <= before
    assert not any(name.startswith("up__") for name in before)
    assert unloaded.content[0].text == "3"
    assert found.structured_content["tools"][0]["name"] == "up__echo"
    assert "up__nothing" in loaded.content[0].text
    assert {name for name in after if name.startswith("up__")} == {"up__echo", "up__add"}
    assert {name for name in last if name.startswith("up__")} == {"up__echo"}
    assert unknown.is_error


async def test_legacy_session_loads_tools_for_itself_and_is_notified(tmp_path: Path) -> None:
    with upstream_http() as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}, **ON_DEMAND}) as front:
        way = Way("http", "legacy", "up")
        async with connected(way, front) as (ada, heard), connected(way, front) as (bob, other):
            await bob.list_tools()
            await anyio.sleep(0.5)  # both may still be notified that the server is up
            other.messages.clear()
            await ada.call_tool("load_tools", {"names": ["up__echo"]})
            with anyio.fail_after(20):
                while not any("list_changed" in repr(message) for message in heard.messages):
                    await anyio.sleep(0.02)
            assert "up__echo" in await listed(ada)
            assert "up__echo" not in await listed(bob)
            assert not any("list_changed" in repr(message) for message in other.messages)


@pytest.mark.requirement("MC3")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_prompt_is_a_tool_with_string_arguments(tmp_path: Path, era: Era) -> None:
    config = {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": {"promptsAsTools": True}}}
    with gateway_http(tmp_path, config) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == "up__greet"]
            said: Any = await client.call_tool("up__greet", {"who": "Ada"})
            wrong: Any = await client.call_tool("up__greet", {})
    assert tool.input_schema["properties"] == {"who": {"type": "string"}}
    assert tool.input_schema["required"] == ["who"]
    assert [block.text for block in said.content] == ["Greet Ada."]
    assert wrong.is_error


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_status_gives_reason_for_missing_server_without_secrets(tmp_path: Path, era: Era) -> None:
    broken = {"command": "no-such-program", "args": ["--token", "${SECRET_TOKEN}"]}
    config = {"mcpServers": {"up": upstream_stdio(), "gone": broken, "off": {**upstream_stdio(), "disabled": True}}}
    with gateway_http(tmp_path, config, env={"SECRET_TOKEN": "hunter2-canary"}) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            status: Any = await client.call_tool("gateway_status", {})
            one: Any = await client.call_tool("gateway_status", {"server": "gone"})
            missing: Any = await client.call_tool("gateway_status", {"server": "nope"})
            resource: Any = await client.read_resource("moongate://status")
    sources = {source["name"]: source for source in status.structured_content["sources"]}
    assert {name: source["state"] for name, source in sources.items()} == {"up": "ready", "gone": "down", "off": "disabled"}
    assert sources["up"]["tools"] > 5
    assert "no-such-program" in sources["gone"]["error"]
    assert "moongate doctor" in sources["gone"]["advice"]
    assert one.structured_content["sources"][0]["name"] == "gone"
    assert missing.is_error
    assert {source["name"] for source in json.loads(resource.contents[0].text)["sources"]} == set(sources)
    assert "canary" not in f"{status} {resource}"


async def test_the_status_can_be_switched_off(tmp_path: Path) -> None:
    with gateway_http(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "server": {"statusTool": False}}) as front:
        async with connected(Way("http", "modern", "up"), front) as (client, _):
            assert "gateway_status" not in await listed(client)
            assert "moongate://status" not in {str(resource.uri) for resource in (await client.list_resources()).resources}
