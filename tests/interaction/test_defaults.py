"""Without a policy a server may elicit input from the person, but neither use the client's model nor list its roots."""

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
async def test_sampling_and_roots_are_rejected_and_person_is_elicited(tmp_path: Path, era: Era, upstream: tuple[str, ...]) -> None:
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
async def test_capability_withheld_by_policy_names_the_policy_key(
    tmp_path: Path, era: Era, upstream: tuple[str, ...]
) -> None:
    with upstream_http(*upstream) as url, gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}}) as front:
        async with connected(Way("http", era, "up"), front) as (client, _):
            result: Any = await client.call_tool("up__need_sampling", {})
    assert result.is_error
    assert "sampling.mode" in result.content[0].text


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_disallowed_tool_reads_as_unknown_tool(tmp_path: Path, era: Era) -> None:
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
