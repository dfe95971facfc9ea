"""`RecallingProvider`: base class of context providers that search a service (memories, documents) before each run of an agent.

If the service fails, the run continues without the results.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, Self

from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

REMEMBERED_ROLES = frozenset({"user", "assistant", "system"})
"""Roles of the messages that are sent to a memory service after a run; tool results are not memories."""


class RecallingProvider(ContextProvider):
    """Context provider that, before a run, adds texts that match the run's input. After the run it may store the run's messages.

    A subclass implements `search`, and `store` if it stores messages.
    """

    DEFAULT_CONTEXT_PROMPT: ClassVar[str] = "Memories that may have to do with this. They may be out of date:"

    def __init__(self, source_id: str, *, context_prompt: str | None = None) -> None:
        """Configure the provider. `context_prompt` is put before the texts that a search finds."""
        super().__init__(source_id)
        self.context_prompt = context_prompt or self.DEFAULT_CONTEXT_PROMPT
        self._opened = AsyncExitStack()
        """Closes the clients that the provider opened itself."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.aclose()

    @abstractmethod
    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Return texts that match the texts of the run's input messages (`asked`), best match first."""
        raise NotImplementedError

    async def store(self, spoken: Sequence[tuple[str, str]], *, context: SessionContext, state: JsonObject) -> None:
        """Store the messages of a run, given as pairs of role and text. The base class stores nothing."""

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Search with the run's input, and add the results to the run as one message before the input."""
        asked = [message.text for message in context.input_messages if message.text and message.text.strip()]
        if not asked:
            return
        try:
            found = [text for text in await self.search(asked, context=context, state=state) if text.strip()]
        except Exception as error:  # the service may raise anything
            logger.warning("context search failed source=%s error=%s reason=%s", self.source_id, type(error).__name__, error)
            return
        if found:
            lines = "\n".join(found)
            context.extend_messages(self, [Message("user", [f"{self.context_prompt}\n{lines}"])])

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Pass the run's input and answer to `store`."""
        messages = [*context.input_messages, *(context.response.messages if context.response is not None else ())]
        spoken = [(str(m.role), m.text) for m in messages if m.role in REMEMBERED_ROLES and m.text and m.text.strip()]
        if not spoken:
            return
        try:
            await self.store(spoken, context=context, state=state)
        except Exception as error:  # the service may raise anything
            logger.warning("context not stored source=%s error=%s reason=%s", self.source_id, type(error).__name__, error)
