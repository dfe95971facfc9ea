"""`RunFollower`: a caller that receives each update of an agent's run instead of only the result, such as an AG-UI stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gateway.tools.context import CallContext

if TYPE_CHECKING:
    from gateway.agents.run_context import AgentStream
    from gateway.types.responses import AgentResponse, AgentResponseUpdate


@runtime_checkable
class RunFollower(Protocol):
    """A caller of an agent that receives every update of the agent's run."""

    async def follow(self, update: AgentResponseUpdate) -> None:
        """Receive the next update of the run that this caller started; updates of runs nested in it are not sent."""
        ...


async def follow_run(
    stream: AgentStream, ctx: CallContext, said: Callable[[AgentResponseUpdate], Awaitable[None]] | None = None
) -> AgentResponse:
    """Read the stream of an agent's run and return the response.

    Pass each update to the caller in `ctx` if the caller is a `RunFollower`, otherwise to the function `said`, if given.
    """
    handle = ctx.ports.caller.follow if isinstance(ctx.ports.caller, RunFollower) else said
    try:
        if handle is not None:
            async for update in stream:
                await handle(update)
        return await stream.get_final_response()
    finally:
        await stream.aclose()


def awaits_caller(response: AgentResponse) -> bool:
    """Return whether an agent's run ended with tool calls without a result or with questions, which the caller must answer."""
    answered = {c.call_id for message in response.messages for c in message.contents if c.type == "function_result"}
    calls = [c for message in response.messages for c in message.contents if c.type == "function_call" and c.call_id not in answered]
    return bool(calls or response.user_input_requests)
