"""`CallHistory`: histories of a run that store after each model call, not once at its end; `Agent` makes one where asked to.

Loading stays where it is, before the run: what a call adds the run itself still has. What tools did since the last call is
stored also where the run fails or is cancelled then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from gateway.sessions.context import SessionContext
from gateway.sessions.history import HistoryProvider
from gateway.sessions.session import AgentSession
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate

if TYPE_CHECKING:
    from gateway.agents.agent import Agent

CLEANUP_SECONDS = 5.0
"""Time to store what tools did when the run was cancelled: a local write, and the canceller waits."""


class CallHistory:
    """One run's. `answered` is the plan's; `told` gets every part of the run, `aclose` comes last."""

    def __init__(self, agent: Agent, session: AgentSession, histories: Sequence[HistoryProvider], around: SessionContext) -> None:
        self._agent = agent
        self._session = session
        self._histories = histories
        self._around = around
        self._since: list[AgentResponseUpdate] = []
        self._has_stored = False
        self._has_ended = False

    def told(self, update: AgentResponseUpdate) -> None:
        """A part of the run."""
        self._since.append(update)

    async def answered(self, messages: Sequence[Message]) -> None:
        """A model call ended with these: the results it was given, and its answer."""
        self._since.clear()
        await self._store(messages)

    def ended(self) -> None:
        """The run came to its end: everything it said counts."""
        self._has_ended = True

    async def aclose(self) -> None:
        """Store what came after the last model call; of a run that failed only what tools did, no half answer."""
        rest = [update for update in self._since if self._has_ended or update.role == "tool"]
        if rest or (self._has_ended and not self._has_stored):
            with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
                await self._store(AgentResponse.from_updates(rest).messages)

    async def _store(self, messages: Sequence[Message]) -> None:
        around, first = self._around, not self._has_stored
        self._has_stored = True
        context = SessionContext(
            session_id=around.session_id,
            input_messages=around.input_messages if first else [],
            context_messages=around.context_messages if first else None,
            options=around.options,
            metadata=around.metadata,
        )
        context.finish(AgentResponse(messages=list(messages)))
        for history in reversed(self._histories):
            state = self._session.state.setdefault(history.source_id, {})
            await history.after_run(agent=self._agent, session=self._session, context=context, state=state)
