"""Three gateways in a row, as real processes, their links of mixed eras:

    client ── A ── B ── C ── upstream

A and B are reached over HTTP; C is started by B over stdio, and starts the upstream. Everything a client may want of the
upstream crosses all three, each applies its own limits, and three that list each other come to rest. Agents and kept results of C
need no processes: these gateways are inside the test's own.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.nursery import Child
from tests.fakes.openai_server import openai_server
from tests.fakes.running import (
    ROOT,
    child,
    free_port,
    gateway_command,
    gateway_http,
    upstream_stdio,
    wait_until_ready,
    write_config,
)
from tests.interaction.ways import Era, Way, connected
from tests.interaction.wire import over_http

pytestmark = pytest.mark.timeout(90)

PREFIX = "b__c__up__"
TRACE: Any = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=opaque",
    "baggage": "tenant=blue",
}
SMALLEST_TOKENS, SMALLEST_BYTES = 50, 2048
"""Result limits of gateway B; A and C allow more."""

LINKS = [("modern", "legacy", "modern"), ("legacy", "modern", "legacy"), ("modern", "modern", "legacy")]
"""Eras of A to B, B to C, and C to the upstream."""


@dataclass(frozen=True)
class Chain:
    """The URL of the first gateway, and the names of the gateways."""

    url: str
    names: tuple[str, ...] = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module", params=LINKS, ids="-".join)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    a_to_b, b_to_c, c_to_up = request.param

    def policy(era: str, tokens: int, size: int, **more: Any) -> dict[str, Any]:
        return {"era": era, "sampling": {"mode": "relay", "maxTokens": tokens, "maxRequests": None}, "maxResultBytes": size, **more}

    c = {
        "mcpServers": {"up": upstream_stdio(*(("--legacy",) if c_to_up == "legacy" else ()))},
        "policies": {"up": policy(c_to_up, 4096, 100_000)},
        "server": {"name": "gamma"},
    }
    command, args = gateway_command(write_config(folder, c, "c"))
    b = {
        "mcpServers": {"c": {"command": command, "args": args, "cwd": str(ROOT)}},
        "policies": {"c": policy(b_to_c, SMALLEST_TOKENS, SMALLEST_BYTES)},
        "server": {"name": "beta"},
    }
    extras = {"additionalArguments": {"c__up__echo": ["session_id", "dry_run"]}}
    with gateway_http(folder, b, "b") as b_url:
        a = {
            "mcpServers": {"b": {"type": "http", "url": b_url}},
            "policies": {"b": policy(a_to_b, 1000, 50_000, **extras)},
            "server": {"name": "alpha"},
        }
        with gateway_http(folder, a, "a") as a_url:
            yield Chain(a_url)


eras = pytest.mark.parametrize("era", ["legacy", "modern"])


def text_of(result: Any) -> str:
    return result.content[0].text


@eras
async def test_calls_reads_and_prompts_cross(chain: Chain, era: Era) -> None:
    async with connected(Way("http", era, "b"), chain.url) as (client, _):
        assert text_of(await client.call_tool(f"{PREFIX}echo", {"text": "hello"})) == "hello"
        assert (await client.call_tool(f"{PREFIX}fail", {})).is_error
        read: Any = await client.read_resource("b+c+up+data://item/7")
        assert read.contents[0].uri == "b+c+up+data://item/7"
        prompt: Any = await client.get_prompt(f"{PREFIX}greet", {"who": "Ada"})
        assert prompt.messages[0].content.text == "Greet Ada."
        with pytest.raises(MCPError) as missing:
            await client.read_resource("b+c+up+data://nothing")
    assert missing.value.error.data == {"uri": "b+c+up+data://nothing"}


@eras
async def test_requests_of_every_kind_cross_in_rounds_with_progress(chain: Chain, era: Era) -> None:
    reported: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    async with connected(Way("http", era, "b"), chain.url) as (client, heard):
        with anyio.fail_after(30):
            assert text_of(await client.call_tool(f"{PREFIX}ask_name", {})) == "accept: Ada"
            assert text_of(await client.call_tool(f"{PREFIX}ask_url", {})) == "accept"
            assert text_of(await client.call_tool(f"{PREFIX}ask_twice", {}, progress_callback=note)) == "Ada: Paris"
            read: Any = await client.read_resource("b+c+up+data://asked")
    assert read.contents[0].text == "for Ada"
    assert len(heard.asked) == 5
    assert len(reported) >= 3
    assert reported == sorted(reported)


@eras
async def test_cancelled_call_ends_at_the_far_end(chain: Chain, era: Era) -> None:
    async with connected(Way("http", era, "b"), chain.url) as (client, _):

        async def cancelled() -> int:
            stats: Any = (await client.call_tool(f"{PREFIX}stats", {})).structured_content
            return stats["cancelled"].get("hang", 0)

        before = await cancelled()
        async with anyio.create_task_group() as tasks:

            async def stop(progress: float, total: float | None, message: str | None) -> None:
                tasks.cancel_scope.cancel()

            async def call() -> None:
                await client.call_tool(f"{PREFIX}hang", {}, progress_callback=stop)

            tasks.start_soon(call)
        with anyio.fail_after(20):
            while await cancelled() == before:
                await anyio.sleep(0.02)


@eras
async def test_trace_context_crosses_and_each_gateway_adds_a_random_id(chain: Chain, era: Era) -> None:
    async with connected(Way("http", era, "b"), chain.url) as (client, _):
        seen: Any = (await client.call_tool(f"{PREFIX}who", {}, meta=TRACE)).structured_content
    values = seen["values"]
    assert values["traceparent"].split("-")[1] == TRACE["traceparent"].split("-")[1]
    assert (values["tracestate"], values["baggage"]) == (TRACE["tracestate"], TRACE["baggage"])
    via = values["dev.moongate/via"]
    assert len(via) == len(set(via)) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", hop) for hop in via)
    assert not [name for name in chain.names if name in str(values)]


@eras
@pytest.mark.requirement(50)
async def test_the_smallest_limit_of_the_row_wins(chain: Chain, era: Era) -> None:
    async with connected(Way("http", era, "b"), chain.url) as (client, heard):
        await client.call_tool(f"{PREFIX}ask_model", {})
        small = await client.call_tool(f"{PREFIX}big", {"bytes": SMALLEST_BYTES // 2})
        big = await client.call_tool(f"{PREFIX}big", {"bytes": SMALLEST_BYTES * 10})
    assert [asked.max_tokens for asked in heard.asked] == [SMALLEST_TOKENS]
    assert len(text_of(small)) == SMALLEST_BYTES // 2
    assert len(big.model_dump_json()) < SMALLEST_BYTES * 3


@eras
@pytest.mark.requirement(27)
async def test_next_gateway_drops_arguments_the_tool_does_not_declare(chain: Chain, era: Era) -> None:
    given = {"text": "x", "session_id": "s-1", "dry_run": True}
    async with connected(Way("http", era, "b"), chain.url) as (client, _):
        result = await client.call_tool(f"{PREFIX}echo", given)
    assert result.structured_content == {"got": {"text": "x"}}
    assert "dev.moongate/droppedArguments" not in (result.meta or {}), "a note of the gateway behind, which any server could forge"


CLERK = "---\nname: clerk\ndescription: Answers.\nmodel: openai-chat:scripted\n---\nAnswer.\n"
LINES = "\n".join(f"line {number}" for number in range(5_000))
LARGE: dict[str, Any] = {
    "tools": [{"name": "large", "inputSchema": {"type": "object"}}],
    "results": {"large": {"content": [{"type": "text", "text": LINES}]}},
}


@eras
async def test_sessions_of_agents_and_parts_of_large_results_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: Era) -> None:
    """C has the agent and keeps the result; A and B allow larger ones."""
    other: Era = "legacy" if era == "modern" else "modern"
    (tmp_path / "clerk.agent.md").write_text(CLERK)
    with ExitStack() as stack:
        model, up = stack.enter_context(openai_server()), stack.enter_context(raw_inside(LARGE))
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "")
        await model.play({"text": "one"}, {"text": "two"})
        config: dict[str, Any] = {"mcpServers": {"up": {"type": "http", "url": up}}, "expose": {"agents": ["."]}}
        config["policies"] = {"up": {"maxResultBytes": SMALLEST_BYTES}}
        for name, link in (("c", other), ("b", era), ("a", era)):
            gateway = stack.enter_context(gateway_inside(tmp_path, config, name))
            gateway.look()
            config = {"mcpServers": {name: {"type": "http", "url": gateway.url}}, "policies": {name: {"era": link}}}
        async with over_http(gateway.url, era, tasks=False) as wire:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                return (await wire.send("tools/call", name=f"b__c__{tool}", arguments=arguments))["result"]

            first = await call("agent__clerk", task="go", session_id="new")
            session = first["_meta"]["dev.moongate/sessionId"]
            second = await call("agent__clerk", task="again", session_id=session)
            [link] = [block for block in (await call("up__large"))["content"] if block["type"] == "resource_link"]
            part = await call("read_result", id=link["uri"].rpartition("/")[2], page=2, page_size=2000)
            [whole] = (await wire.send("resources/read", uri=link["uri"]))["result"]["contents"]
        assert (second["content"][0]["text"], second["_meta"]["dev.moongate/sessionId"]) == ("two", session)
        assert "'content': 'one'" in str((await model.requests())[-1]), "the second turn goes on with the first"
    assert part["content"][0]["text"] == LINES[2000:4000]
    assert part["_meta"]["dev.moongate/part"]["page"] == 2
    assert whole["text"] == LINES


@pytest.mark.attack(35)
async def test_three_gateways_in_a_circle_settle_and_reject_a_loop(tmp_path: Path) -> None:
    ports = {name: free_port() for name in "abc"}
    after = {"a": "b", "b": "c", "c": "a"}
    with ExitStack() as stack:
        running: dict[str, tuple[Child, Path]] = {}
        for name, other in after.items():
            servers = {"own": upstream_stdio(), other: {"type": "http", "url": f"http://127.0.0.1:{ports[other]}/mcp"}}
            path = write_config(tmp_path, {"mcpServers": servers, "server": {"startupTimeoutSeconds": 2}}, name)
            log = tmp_path / f"{name}.log"
            argv = ["-m", "gateway", "run", "--http", f"127.0.0.1:{ports[name]}", "--config", str(path)]
            running[name] = (stack.enter_context(child(*argv, log=log)), log)
        for name, (process, log) in running.items():
            wait_until_ready(process, f"http://127.0.0.1:{ports[name]}/ready", log)
        async with connected(Way("http", "modern", "a"), f"http://127.0.0.1:{ports['a']}/mcp") as (client, _):
            wanted = {"own__echo", "b__own__echo", "b__c__own__echo"}
            with anyio.fail_after(45):
                while not (names := {tool.name for tool in (await client.list_tools()).tools}) >= wanted:
                    await anyio.sleep(0.1)
            assert not [name for name in names if name.startswith("b__c__a__")]
            assert text_of(await client.call_tool("b__c__own__echo", {"text": "round"})) == "round"
