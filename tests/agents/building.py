"""What the tests of the run loop build: agents over scripted models, run whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from gateway import Agent, AgentResponse, Content, ScriptedChatClient
from gateway.chat.scripted import Reply

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def call(name: str, arguments: Any = None, id: str = "c1") -> Content:
    return Content.from_function_call(id, name, arguments or {})


def agent_of(replies: Sequence[Reply], tools: Any = (), **settings: Any) -> tuple[Agent, ScriptedChatClient]:
    client = ScriptedChatClient(replies)
    limits = settings.pop("loop", None)
    return Agent(client, "Be helpful.", name="helper", tools=tools, function_invocation_configuration=limits, **settings), client


async def run(agent: Agent, stream: bool, messages: Any = "go", **how: Any) -> AgentResponse:
    with anyio.fail_after(20):
        work: Any = agent.run(messages, stream=stream, **how)
        response: AgentResponse = await (work.get_final_response() if stream else work)
        return response


def results_of(response: AgentResponse) -> list[str]:
    return [str(content.result) for message in response.messages for content in message.contents if content.type == "function_result"]


def kinds_of(response: AgentResponse) -> list[tuple[str, list[str]]]:
    return [(str(message.role), [content.type for content in message.contents]) for message in response.messages]
