"""`HistoryProvider`: keeps conversations across runs; here in the session's own state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.sessions.context import ContextProvider, SessionContext
from gateway.sessions.session import AgentSession
from gateway.types.messages import Message


class HistoryProvider(ContextProvider):
    """Loads earlier messages before a run and stores the new ones after it (requirements SE12-SE14)."""

    def __init__(self, source_id: str, *, load_messages: bool = True, store_inputs: bool = True, store_outputs: bool = True) -> None:
        super().__init__(source_id)
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_outputs = store_outputs

    async def get_messages(self, session: AgentSession, state: JsonObject) -> list[Message]:
        """The stored messages, oldest first."""
        raise NotImplementedError

    async def save_messages(self, session: AgentSession, state: JsonObject, messages: Sequence[Message]) -> None:
        """Append messages; never called with none."""
        raise NotImplementedError

    async def before_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Put the stored messages before the input."""
        if self.load_messages:
            context.extend_messages(self.source_id, await self.get_messages(session, state))

    async def after_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store the input and what the run added."""
        new = list(context.input_messages) if self.store_inputs else []
        if self.store_outputs and context.response is not None:
            new += context.response.messages
        if new:
            await self.save_messages(session, state, new)


class InMemoryHistoryProvider(HistoryProvider):
    """Keeps the conversation in the session's state, as JSON."""

    def __init__(self, source_id: str = "in_memory") -> None:
        super().__init__(source_id)

    async def get_messages(self, session: AgentSession, state: JsonObject) -> list[Message]:
        """The stored messages, oldest first."""
        return [Message.from_dict(m) for m in cast("list[JsonMapping]", state.get("messages") or [])]

    async def save_messages(self, session: AgentSession, state: JsonObject, messages: Sequence[Message]) -> None:
        """Append messages."""
        state.setdefault("messages", []).extend(m.to_dict() for m in messages)
