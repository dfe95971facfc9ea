"""`CallHistory`: history providers that load and store around each model call instead of once per run. Created by `Agent`.

The first model call receives what the providers loaded before the run. Before each later call the history providers load again, so the
model receives the stored conversation. For the first call, the stored input is the user's messages; for a later one, the tool results. Tool
results since the last model call are stored even if the run fails or is cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from gateway.agents.base_agent import BaseAgent
from gateway.errors import ChatClientInvalidResponseException
from gateway.sessions.history import HistoryProvider
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import ContextProvider, SessionContext, call_hook
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 5.0
"""Time limit for storing tool results of a cancelled run; it is a local write, and the cancelling task waits for it."""


class CallHistory:
    """History of one run. The run loop calls `recall` and `answered`; `Agent` adds each update and closes the history at the end."""

    def __init__(self, agent: BaseAgent, session: AgentSession, around: SessionContext, *, is_kept_elsewhere: bool) -> None:
        """Prepare the history of a run; `is_kept_elsewhere` says whether the model's provider keeps the conversation."""
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
                    "history not loaded history=%s agent=%s reason=provider_keeps_conversation "
                    "(pass store=False to load it here, or load_messages=False to skip loading)",
                    history.source_id,
                    agent.name or agent.id,
                )

    @property
    def hides_response_ids(self) -> bool:
        """Whether updates omit the provider's response id: true unless the model's provider keeps the conversation."""
        return not self._is_kept_elsewhere

    def loaded(self, history: ContextProvider) -> None:
        """Record the messages that a history provider loaded before the run."""
        self._loaded[history.source_id] = list(self._around.context_messages.get(history.source_id, ()))

    def use_run_messages(self) -> None:
        """Stop loading during the run: middleware loaded the history and may have changed it."""
        self._is_replaced = True

    def add_update(self, update: AgentResponseUpdate) -> None:
        """Record an update of the run, to be stored at its end."""
        self._since.append(update)

    async def recall(self, given: Sequence[Message]) -> list[Message] | None:
        """Return the messages for the next model call: the stored conversation, then `given`.

        Returns `None` if the run's own messages must be used: the model's provider keeps the conversation, no history provider that
        loads also stores inputs and outputs, or another provider changed what a history provider had loaded.
        """
        if self._is_kept_elsewhere or not any(h.store_inputs and h.store_outputs for h in self._loaders) or self._was_changed():
            return None
        context = self._context(list(given))
        for provider in self._providers:
            if isinstance(provider, HistoryProvider):
                if provider.load_messages:
                    state = self._session.state.setdefault(provider.source_id, {})
                    await call_hook(provider, "before_run", agent=self._agent, session=self._session, context=context, state=state)
            elif not any(_stores_messages_of(history, provider.source_id) for history in self._loaders):
                if added := self._around.context_messages.get(provider.source_id):
                    context.extend_messages(provider, added)
        return context.get_messages(include_input=True)

    async def answered(self, given: Sequence[Message], said: Sequence[Message], answer: ChatResponse) -> None:
        """Store a completed model call: the tool results that it received (`given`) and the part of its answer that is kept (`said`).

        Raises:
            ChatClientInvalidResponseException: The provider keeps the conversation although `store` is not set.
        """
        if not self._is_kept_elsewhere and answer.conversation_id is not None:
            raise ChatClientInvalidResponseException(
                "require_per_service_call_history_persistence cannot be used when the chat client returns a conversation_id: the "
                "model's provider keeps the conversation. Pass store=True to accept that, or remove the setting."
            )
        if self._is_kept_elsewhere and answer.conversation_id is None:
            logger.warning(
                "conversation not named agent=%s reason=provider_returned_no_conversation_id "
                "(the next run may not continue it; pass store=False to use the agent's history)",
                self._agent.name or self._agent.id,
            )
        self._since.clear()
        await self._store(given, said)

    def ended(self) -> None:
        """Record that the run completed, so that its last updates are stored."""
        self._has_ended = True

    async def aclose(self) -> None:
        """Store the updates after the last model call; of a failed run only tool results, because the rest is incomplete."""
        rest = AgentResponse.from_updates(self._since).messages
        given = [message for message in rest if message.role == "tool"]
        said = [message for message in rest if message.role != "tool"] if self._has_ended else []
        for message in said if self._has_stored else ():  # tool calls are stored with the answer that contained them
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


def _stores_messages_of(history: HistoryProvider, source_id: str) -> bool:
    return history.store_context_messages and (history.store_context_from is None or source_id in history.store_context_from)
