"""Agents through the gateway: the client's own model by sampling, an OpenAI-compatible endpoint, and neither."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.fakes.openai_server import openai_server
from tests.fakes.running import gateway_http, upstream_stdio
from tests.interaction.ways import Era, Way, connected

pytestmark = [pytest.mark.timeout(60)]
ERAS = [Way("http", era, "agent") for era in get_args(Era)]
HELPER = """---
name: helper
description: Helps with one thing. Use it in tests.
tools: [up/echo, up/who]
---
Do what you are asked.
"""


def config(folder: Path) -> dict[str, Any]:
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agents" / "helper.agent.md").write_text(HELPER)
    return {"mcpServers": {"up": upstream_stdio()}, "expose": {"agents": ["agents"]}}


@pytest.fixture(scope="module")
def without_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("sampling")
    with gateway_http(folder, config(folder), env={"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}) as url:
        yield url


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_agent_without_endpoint_uses_the_clients_model(without_endpoint: str, way: Way) -> None:
    async with connected(way, without_endpoint) as (client, heard):
        result = await client.call_tool("agent__helper", {"task": "Name the capital of France."})
    assert not result.is_error, text_of(result)
    assert text_of(result) == "Paris"
    assert [asked.messages[0].content.text for asked in heard.asked] == ["Name the capital of France."]
    assert heard.asked[0].max_tokens <= 4096
    assert "Do what you are asked." in heard.asked[0].system_prompt


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_agent_without_any_model_names_the_setting_to_add(without_endpoint: str, way: Way) -> None:
    async with connected(way, without_endpoint, capable=False) as (client, _):
        result = await client.call_tool("agent__helper", {"task": "Anything."})
    assert result.is_error
    assert all(name in text_of(result) for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "sampling"))


@pytest.mark.requirement(12, 14, "MC11")
@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_agent_calls_proxied_tool_through_gate_and_reports_progress(tmp_path: Path, way: Way) -> None:
    call = {"name": "up__echo", "arguments": {"text": "from the agent", "undeclared": 1}}
    turns = [{"when": {"last_role": "user"}, "tool_calls": [call]}, {"when": {"last_role": "tool"}, "text": "It said: {last_tool}"}]
    heard: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    with openai_server(*turns) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": ""}
        with gateway_http(tmp_path, config(tmp_path), env=env) as url:
            async with connected(way, url) as (client, _):
                linked = [{"type": "resource_link", "uri": "up+data://item/7", "name": "seven"}]
                arguments = {"task": "Echo something.", "attachments": linked}
                result = await client.call_tool("agent__helper", arguments, progress_callback=note)
                [request, _] = await model.requests()
                wrong = await client.call_tool("agent__helper", {"task": "x", "attachments": [{**linked[0], "uri": "file:///etc/passwd"}]})
                asking = await client.call_tool("agent__helper", {"task": "x", "attachments": [{**linked[0], "uri": "up+data://asked"}]})
                call = {"name": "up__who", "arguments": {"_meta": {"com.example/model": 1}}}
                await model.play({"when": {"last_role": "user"}, "tool_calls": [call]}, turns[1])
                known = await client.call_tool("agent__helper", {"task": "Who?"}, meta={"com.example/host": 7})
    assert text_of(result) == "It said: from the agent"
    assert "'com.example/host': 7" in text_of(known) and "com.example/model" not in text_of(known)
    assert "data://item/7" in str(request["body"]["messages"][-1]["content"]), "links are read through the gate"
    assert wrong.is_error and "file:///etc/passwd" in text_of(wrong)
    assert asking.is_error and "requires input before it can be read" in text_of(asking)
    assert [step for step, _ in heard] == sorted({step for step, _ in heard})
    assert "using up__echo" in [message for _, message in heard]
    assert (result.meta or {})["dev.moongate/agent"]["model"] == "scripted"
