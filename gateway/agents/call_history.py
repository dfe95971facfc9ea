"""`CallHistory`: histories of a run that load and store around each model call, not once per run; `Agent` makes one where asked to.

Before its first call a run has what its providers loaded; before each later one the histories load anew, so that what the model
is shown is what they keep by then. What a call was given beside that counts as its input: what the user said, then what tools
gave. What tools did since the last call is stored also where the run fails or is cancelled then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from gateway.errors import ChatClientInvalidResponseException
from gateway.sessions.context import ContextProvider, SessionContext, call_hook
from gateway.sessions.history import HistoryProvider
from gateway.sessions.session import AgentSession
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse

if TYPE_CHECKING:
    from gateway.agents.agent import Agent

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 5.0
"""Time to store what tools did when the run was cancelled: a local write, and the canceller waits."""


class CallHistory:
    """One run's. `recall` and `answered` are the plan's; `told` gets every part of the run, `aclose` comes last."""

    def __init__(self, agent: Agent, session: AgentSession, around: SessionContext, *, is_kept_elsewhere: bool) -> None:
        """`is_kept_elsewhere`: the model's provider stores what is said."""
        self._agent = agent
        self._session = session
        self._around = around
        self._is_kept_elsewhere = is_kept_elsewhere
        self._providers = list(agent.context_providers)
        self._histories = [one for one in self._providers if isinstance(one, HistoryProvider)]
        self._loaders = [one for one in self._histories if one.load_messages]
        self._loaded: dict[str, list[Message]] = {}
        self._since: list[AgentResponseUpdate] = []
        self._has_stored = False
        self._has_ended = False
        self._is_replaced = False
        if is_kept_elsewhere:
            for history in self._loaders:
                logger.warning(
                    "history %r of agent %r does not load: the model's provider keeps the conversation; pass store=False to load "
                    "it here, or load_messages=False to say so",
                    history.source_id,
                    agent.name or agent.id,
                )

    @property
    def hides_response_ids(self) -> bool:
        """See `KeepsCalls`; true unless the model's provider keeps the conversation."""
        return not self._is_kept_elsewhere

    def loaded(self, history: ContextProvider) -> None:
        """Note what a history loaded before the run."""
        self._loaded[history.source_id] = list(self._around.context_messages.get(history.source_id, ()))

    def replaced(self) -> None:
        """Go on from the run's own messages: middleware loaded the history and may have changed it."""
        self._is_replaced = True

    def told(self, update: AgentResponseUpdate) -> None:
        """A part of the run."""
        self._since.append(update)

    async def recall(self, given: Sequence[Message]) -> list[Message] | None:
        """What the next model call is shown: the conversation as it is kept by now, then `given`.

        `None`: the run goes on from its own messages, because the provider keeps them, no history loads what it stores whole, or
        another provider changed what a history had loaded.
        """
        if self._is_kept_elsewhere or not any(h.store_inputs and h.store_outputs for h in self._loaders) or self._was_changed():
            return None
        context = self._context(list(given))
        for provider in self._providers:
            if isinstance(provider, HistoryProvider):
                if provider.load_messages:
                    state = self._session.state.setdefault(provider.source_id, {})
                    await call_hook(provider, "before_run", agent=self._agent, session=self._session, context=context, state=state)
            elif not any(_keeps(history, provider.source_id) for history in self._loaders):
                if added := self._around.context_messages.get(provider.source_id):
                    context.extend_messages(provider, added)
        return context.get_messages(include_input=True)

    async def answered(self, given: Sequence[Message], said: Sequence[Message], answer: ChatResponse) -> None:
        """A model call ended: the tools' results that it was given, and what of its answer is kept.

        Raises:
            ChatClientInvalidResponseException: The provider keeps a conversation, and nobody said that it should.
        """
        if not self._is_kept_elsewhere and answer.conversation_id is not None:
            raise ChatClientInvalidResponseException(
                "require_per_service_call_history_persistence cannot be used when the chat client returns a conversation_id: its "
                "provider keeps the conversation, so pass store=True to say so, or leave the setting out."
            )
        if self._is_kept_elsewhere and answer.conversation_id is None:
            logger.warning(
                "the model's provider is to keep the conversation of agent %r but named none, so the next run may not know of this "
                "one; pass store=False to go on from the agent's history instead",
                self._agent.name or self._agent.id,
            )
        self._since.clear()
        await self._store(given, said)

    def ended(self) -> None:
        """The run came to its end: everything it said counts."""
        self._has_ended = True

    async def aclose(self) -> None:
        """Store what came after the last model call; of a run that failed only what tools did, no half answer."""
        rest = AgentResponse.from_updates(self._since).messages
        given = [message for message in rest if message.role == "tool"]
        said = [message for message in rest if message.role != "tool"] if self._has_ended else []
        for message in said if self._has_stored else ():  # its calls are stored with the answer they came in
            message.contents = [c for c in message.contents if not c.user_input_request and c.type != "function_approval_request"]
        said = [message for message in said if message.contents]
        if given or said or (self._has_ended and not self._has_stored):
            with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
                await self._store(given, said)

    def _was_changed(self) -> bool:
        if self._is_replaced:
            return True
        now = self._around.context_messages
        return any([id(m) for m in now.get(source, ())] != [id(m) for m in loaded] for source, loaded in self._loaded.items())

    def _context(self, given: list[Message], *, context_messages: dict[str, list[Message]] | None = None) -> SessionContext:
        around = self._around
        return SessionContext(
            session_id=around.session_id,
            input_messages=given,
            context_messages=context_messages,
            options=around.options,
            metadata=around.metadata,
        )

    async def _store(self, given: Sequence[Message], said: Sequence[Message]) -> None:
        around, first = self._around, not self._has_stored
        self._has_stored = True
        inputs = [*(around.input_messages if first else ()), *given]
        context = self._context(inputs, context_messages=around.context_messages if first else None)
        context.finish(AgentResponse(messages=list(said)))
        for history in reversed(self._histories):
            state = self._session.state.setdefault(history.source_id, {})
            await call_hook(history, "after_run", agent=self._agent, session=self._session, context=context, state=state)


def _keeps(history: HistoryProvider, source_id: str) -> bool:
    return history.store_context_messages and (history.store_context_from is None or source_id in history.store_context_from)
