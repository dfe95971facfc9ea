"""Agents stored in a Foundry project, over a real socket: create, find, refer to, run with functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest

from gateway import Agent, ModelError, tool
from gateway.foundry import AgentReference, FoundryAgentProvider
from tests.fakes.openai_server import ScriptedServer


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"rain in {city}"


@pytest.fixture
async def provider(server: ScriptedServer) -> AsyncGenerator[FoundryAgentProvider]:
    project = server.base_url.removesuffix("/v1") + "/api/projects/moon"
    made = FoundryAgentProvider(project_endpoint=project, credential=lambda: "token-1", model="dep")
    yield made
    await made.aclose()


@pytest.mark.requirement("AG8")
async def test_agent_is_made_in_the_project_and_its_functions_run_here(server: ScriptedServer, provider: FoundryAgentProvider) -> None:
    await server.play({"tool_calls": [{"name": "weather", "arguments": {"city": "Kiel"}}]}, {"text": "wet"})
    with anyio.fail_after(20):
        agent = await provider.create_agent("sky", instructions="Be brief.", tools=[weather], options={"temperature": 0.2})
        response = await agent.run("And today?")
    made, first, second = await server.requests()
    definition = made["body"]["definition"]
    assert (made["path"], made["authorization"]) == ("/api/projects/moon/agents/sky/versions", "Bearer token-1")
    assert {key: definition[key] for key in ("kind", "model", "instructions", "temperature")} == {
        "kind": "prompt", "model": "dep", "instructions": "Be brief.", "temperature": 0.2,
    }  # fmt: skip
    assert [offered["name"] for offered in definition["tools"]] == ["weather"]
    assert (agent.name, response.messages[-1].text) == ("sky", "wet")
    assert first["body"]["agent_reference"]["name"] == "sky"
    assert not {"model", "tools", "instructions"} & first["body"].keys()
    assert second["body"]["input"][-1]["output"] == "rain in Kiel"


@pytest.mark.requirement("AG8")
async def test_agent_is_found_by_name_with_the_functions_it_needs(server: ScriptedServer, provider: FoundryAgentProvider) -> None:
    await server.play({"text": "found"})
    with anyio.fail_after(20):
        await provider.create_agent("seer", description="Sees.", tools=[weather])
        with pytest.raises(ValueError, match="'weather'"):
            await provider.get_agent("seer")
        agent = await provider.get_agent("seer", version="1", tools=[weather])
        assert (agent.description, (await agent.run("hi")).text) == ("Sees.", "found")
        assert (await server.requests())[-1]["body"]["agent_reference"] == {"type": "agent_reference", "name": "seer", "version": "1"}
        with pytest.raises(ModelError, match="'nobody'"):
            await provider.get_agent("nobody")


@pytest.mark.requirement("AG8")
async def test_reference_becomes_an_agent_without_asking_anybody(server: ScriptedServer, provider: FoundryAgentProvider) -> None:
    await server.play({"text": "a"}, {"text": "b"}, {"text": "c"})
    known = {"object": "agent", "name": "sky", "versions": {"latest": {"name": "sky", "version": "3", "description": "Looks up."}}}
    agents: list[Agent] = [provider.as_agent("sky"), provider.as_agent(AgentReference("sky", "2")), provider.as_agent(known)]
    assert await server.requests() == []
    with anyio.fail_after(20):
        assert [(await agent.run("hi")).text for agent in agents] == ["a", "b", "c"]
    sent = [request["body"]["agent_reference"].get("version") for request in await server.requests()]
    assert (sent, agents[2].description) == ([None, "2", "3"], "Looks up.")


async def test_agent_without_a_model_is_refused(server: ScriptedServer) -> None:
    bare = FoundryAgentProvider(project_endpoint="http://127.0.0.1:9/api/projects/moon", api_key="k")
    with pytest.raises(ValueError, match="model"):
        await bare.create_agent("sky")
