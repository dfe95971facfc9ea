"""Agents with lifecycle hooks and two tools over scripted models, run whole or streamed."""

from __future__ import annotations

from typing import Any

from gateway import Agent, AgentResponse, Content, LifecycleHooks, ScriptedChatClient, lifecycle_middleware, tool
from gateway.errors import ToolFailed
from gateway.lifecycle import HookEvents


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def fail() -> str:
    """Fail."""
    raise ToolFailed("broken")


def call(name: str, call_id: str = "1", **arguments: Any) -> Content:
    return Content.from_function_call(call_id, name, arguments)


def agent_of(client: ScriptedChatClient, *hooks: LifecycleHooks, events: HookEvents | None = None) -> Agent:
    return Agent(client, tools=[add, fail], middleware=lifecycle_middleware(*hooks, events=events))


async def run(agent: Agent, *, stream: bool = False) -> AgentResponse:
    if not stream:
        return await agent.run("go")
    return await agent.run("go", stream=True).get_final_response()
