"""`SessionContext` and `ContextProvider`: what may be added to a run before it starts, and looked at after it ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession
from gateway.tools.base import Tool
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse


@dataclass(slots=True)
class SessionContext:
    """One run as its context providers see it; made fresh for each run."""

    input_messages: list[Message]
    session_id: str | None = None
    context_messages: dict[str, list[Message]] = field(default_factory=lambda: cast("dict[str, list[Message]]", {}))
    """By provider, in the order the providers added them; they go before the input."""
    instructions: list[str] = field(default_factory=lambda: list[str]())
    tools: list[Tool] = field(default_factory=lambda: list[Tool]())
    response: AgentResponse | None = None
    """Set before `after_run`."""
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))

    def extend_messages(self, source_id: str, messages: Sequence[Message]) -> None:
        """Add messages before the input, as provider `source_id`."""
        self.context_messages.setdefault(source_id, []).extend(messages)

    def extend_instructions(self, text: str) -> None:
        """Add to the agent's instructions for this run."""
        if text:
            self.instructions.append(text)

    def extend_tools(self, tools: Sequence[Tool]) -> None:
        """Add tools for this run."""
        self.tools.extend(tools)

    def get_messages(self, *, sources: Collection[str] | None = None, include_input: bool = False) -> list[Message]:
        """Messages of all or some providers, then the input where asked for."""
        chosen = [m for source, messages in self.context_messages.items() if sources is None or source in sources for m in messages]
        return chosen + (self.input_messages if include_input else [])


class ContextProvider:
    """Adds to runs. Shared by all sessions of an agent, so what belongs to one goes into `state`.

    `state` is this provider's own part of the session's state, by `source_id` (requirements SE6).
    """

    def __init__(self, source_id: str) -> None:
        self.source_id = source_id

    async def before_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Called in list order before the first model call."""

    async def after_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Called in reverse order after the run, with `context.response` set."""
