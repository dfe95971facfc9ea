"""Runs of an agent for callers that want more than a task's answer: each part as it comes, and whole conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gateway.json_types import JsonObject
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.context import AgentStream
    from gateway.agents.tool import AgentTool
    from gateway.types.responses import AgentResponse, AgentResponseUpdate


@runtime_checkable
class RunFollower(Protocol):
    """What a `Caller` is as well, where the way back can carry a whole run."""

    async def follow(self, update: AgentResponseUpdate) -> None:
        """Take the next part of the run that was called; parts of runs further in are not told."""
        ...


class GivenConversation:
    """An agent's tool, run on a conversation that is given instead of the task: what an application's user interface has."""

    def __init__(self, agent: AgentTool, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """`tools` are the caller's own: a call to one ends the run and is handed back."""
        self._agent = agent
        self._messages = messages
        self._tools = tools

    @property
    def definition(self) -> ToolDefinition:
        """The agent's."""
        return self._agent.definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent; the arguments were for the gate. Raises as the agent's tool."""
        return await self._agent.converse(self._messages, self._tools, ctx)


async def followed(
    stream: AgentStream, ctx: CallContext, said: Callable[[AgentResponseUpdate], Awaitable[None]] | None = None
) -> AgentResponse:
    """The whole response. A caller that is a `RunFollower` is told each part as it comes; for any other `said` is."""
    tell = ctx.caller.follow if isinstance(ctx.caller, RunFollower) else said
    try:
        if tell is not None:
            async for update in stream:
                await tell(update)
        return await stream.get_final_response()
    finally:
        await stream.aclose()


def is_handed_back(response: AgentResponse) -> bool:
    """Whether the run ended with calls or questions for its caller, which is an outcome without a text."""
    answered = {c.call_id for message in response.messages for c in message.contents if c.type == "function_result"}
    calls = [c for message in response.messages for c in message.contents if c.type == "function_call" and c.call_id not in answered]
    return bool(calls or response.user_input_requests)
