"""`RecallingProvider`: the base of context providers that look texts up in a service before a run.

A service that fails costs the run what would have been found, not its answer.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gateway.json_types import JsonObject
from gateway.sessions.context import ContextProvider, SessionContext
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

REMEMBERED_ROLES = frozenset({"user", "assistant", "system"})
"""Roles of the messages that memory services store: what tools returned is not a memory."""


class RecallingProvider(ContextProvider):
    """Before a run, texts that have to do with its input; a subclass may store what was said after it."""

    DEFAULT_CONTEXT_PROMPT: ClassVar[str] = "Memories that may have to do with this. They may be out of date:"

    def __init__(self, source_id: str, *, context_prompt: str | None = None) -> None:
        """`context_prompt` is put before the texts."""
        super().__init__(source_id)
        self.context_prompt = context_prompt or self.DEFAULT_CONTEXT_PROMPT

    @abstractmethod
    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Find texts for what was asked, the best first."""
        raise NotImplementedError

    async def store(self, said: Sequence[tuple[str, str]], *, context: SessionContext, state: JsonObject) -> None:
        """Store what was said, as pairs of role and text. Nothing is stored unless a subclass does it."""

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Put what is found before the input, as one message."""
        asked = [message.text for message in context.input_messages if message.text and message.text.strip()]
        if not asked:
            return
        try:
            found = [text for text in await self.search(asked, context=context, state=state) if text.strip()]
        except Exception as error:  # the boundary to the service
            logger.warning("context search failed source=%s error=%s: %s", self.source_id, type(error).__name__, error)
            return
        if found:
            lines = "\n".join(found)
            context.extend_messages(self, [Message("user", [f"{self.context_prompt}\n{lines}"])])

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store the input and the answer."""
        messages = [*context.input_messages, *(context.response.messages if context.response is not None else ())]
        said = [(str(m.role), m.text) for m in messages if m.role in REMEMBERED_ROLES and m.text and m.text.strip()]
        if not said:
            return
        try:
            await self.store(said, context=context, state=state)
        except Exception as error:  # the boundary to the service
            logger.warning("context not stored source=%s error=%s: %s", self.source_id, type(error).__name__, error)
