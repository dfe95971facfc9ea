"""Runs of agents that go on at the provider: started, polled, and continued with their tools."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import anyio
import pytest

from gateway import Agent, OpenAIChatClient
from gateway.errors import AgentError
from tests.fakes.openai_server import ScriptedServer, openai_server

BACKGROUND: Any = {"background": True}
"""An option of one kind of client."""


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


def look(place: str) -> str:
    """Looks."""
    return f"dust in the {place}"


@pytest.mark.requirement("LR4")
async def test_run_in_the_background_without_a_session_is_refused(server: ScriptedServer) -> None:
    await server.play({"text": "never"})
    agent = Agent(OpenAIChatClient("m", api_key="x", base_url=server.base_url))
    with pytest.raises(AgentError, match="session"):
        await agent.run("go", options=BACKGROUND)
    assert await server.requests() == []


@pytest.mark.requirement("LR2", "LR3", "LR4")
async def test_background_run_is_polled_by_token_and_calls_its_tools(server: ScriptedServer) -> None:
    await server.play({"tool_calls": [{"id": "c1", "name": "look", "arguments": {"place": "attic"}}]}, {"text": "{last_tool}", "polls": 0})
    client = OpenAIChatClient("m", api_key="x", base_url=server.base_url)
    agent = Agent(client, tools=[look])
    session = agent.create_session()
    with anyio.fail_after(20):
        response = await agent.run("go", session=session, options=BACKGROUND)
        assert (response.text, response.continuation_token) == ("", {"response_id": "resp_1"})
        while response.continuation_token is not None:
            options: Any = {**BACKGROUND, "continuation_token": response.continuation_token}
            response = await agent.run(session=session, options=options)
        assert response.text == "dust in the attic"
    methods = [request.get("method", "POST") for request in await server.requests()]
    assert methods == ["POST", "GET", "GET", "POST"]
    await client.aclose()
