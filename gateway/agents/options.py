"""`LoopOptions`: the limits of an agent's run; `AgentContext`: one run, as agent middleware sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ResponseStream

if TYPE_CHECKING:
    from gateway.agents.agent import Agent

AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Limits of the function-invocation loop (requirements TL2); the defaults are agent-framework's."""

    max_iterations: int = 40
    """Model calls of one run; the last one is made without tools."""
    max_function_calls: int | None = None
    """Tool calls of one run, checked after each batch; `None` means no limit."""
    max_consecutive_errors: int = 3
    """Batches in a row with a failing call before tools are switched off."""
    terminate_on_unknown_calls: bool = False
    """End the run with an error when the model calls a tool that does not exist."""
    include_detailed_errors: bool = False
    """Let the model read what an unexpected exception says."""

    def __post_init__(self) -> None:
        if self.max_iterations < 1:
            raise ValueError("max_iterations must be at least 1")
        if self.max_function_calls is not None and self.max_function_calls < 1:
            raise ValueError("max_function_calls must be at least 1, or None")
        if self.max_consecutive_errors < 0:
            raise ValueError("max_consecutive_errors must not be negative")


@dataclass(slots=True)
class AgentContext:
    """One run. Replace `messages` and `session` before `call_next`, `result` after."""

    agent: Agent
    messages: list[Message]
    session: AgentSession | None
    stream: bool
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    result: AgentStream | AgentResponse | None = None
