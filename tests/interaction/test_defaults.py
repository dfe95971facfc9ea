"""Without a policy a server may ask the person, and neither use the client's model nor see its folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import gateway_http, upstream_http
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("upstream", [(), ("--legacy",)], ids=["new-upstream", "old-upstream"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_model_and_folders_are_refused_and_the_person_is_asked(tmp_path: Path, era: Era, upstream: tuple[str, ...]) -> None:
    with upstream_http(*upstream) as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}}) as front:
        async with connected(Way("http", era, "up"), front) as (client, heard):
            with anyio.fail_after(20):
                model: Any = await client.call_tool("up__ask_model", {})
                folders: Any = await client.call_tool("up__ask_roots", {})
                name: Any = await client.call_tool("up__ask_name", {})
    assert (model.is_error, folders.is_error, name.is_error) == (True, True, False)
    assert "Paris" not in model.content[0].text
    assert "file://" not in folders.content[0].text
    assert name.content[0].text == "accept: Ada"
    assert [asked.message for asked in heard.asked] == ["Server 'up' asks:\n│ Your name?"]


@pytest.mark.parametrize("upstream", [(), ("--legacy",)], ids=["new-upstream", "old-upstream"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_needs_what_policy_holds_back_is_explained_not_blamed_on_the_client(
    tmp_path: Path, era: Era, upstream: tuple[str, ...]
) -> None:
    with upstream_http(*upstream) as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}}) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            result: Any = await client.call_tool("up__need_sampling", {})
    assert result.is_error
    assert "sampling.mode" in result.content[0].text


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_tool_that_is_not_allowed_is_as_unknown_as_one_that_does_not_exist(tmp_path: Path, era: Era) -> None:
    from mcp.shared.exceptions import MCPError

    policy = {"up": {"tools": {"allow": ["echo", "ask_[mnr]*"], "deny": ["ask_model"]}}}
    with upstream_http() as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": policy}) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            listed = {tool.name for tool in (await client.list_tools()).tools}
            refusals: list[tuple[int, str]] = []
            for name in ("up__ask_model", "up__add", "up__no_such"):
                with pytest.raises(MCPError) as caught:
                    await client.call_tool(name, {})
                refusals.append((caught.value.error.code, caught.value.error.message.replace(name, "NAME")))
    assert {name for name in listed if name.startswith("up__")} == {"up__echo", "up__ask_name", "up__ask_roots"}
    assert len(set(refusals)) == 1
    assert refusals[0][0] == -32602
