"""`CallHistory`: lets history providers load and store messages around each model call instead of once per run. Created by `Agent`.

The first model call receives the messages that the providers loaded before the run. Before each later call the history providers load the
messages again, so the model receives the stored conversation (exceptions: `CallHistory.recall`). After the first call, the user's messages
and the answer are stored; after each later call, the tool results and the answer are stored. Tool results since the last model call are
stored even if the run fails or is cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from gateway.agents.base_agent import BaseAgent
from gateway.errors import ChatClientInvalidResponseException
from gateway.sessions.history import HistoryProvider
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import ContextProvider, SessionContext, call_run_hook
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 5.0
"""Time limit, in seconds, for storing messages at the end of a run; a task that cancels the run waits for this local write."""


class CallHistory:
    """Loads and stores the messages of one run around each model call.

    The run loop calls `recall` before each model call except the first, and `answered` after each model call. `Agent` adds each update,
    and closes the history at the end.
    """

    def __init__(self, agent: BaseAgent, session: AgentSession, around: SessionContext, *, is_kept_elsewhere: bool) -> None:
        """Prepare the history of a run. `is_kept_elsewhere` is true if the model's provider stores the conversation."""
        self._agent = agent
        self._session = session
        self._around = around
        self._is_kept_elsewhere = is_kept_elsewhere
        self.hides_response_ids = not is_kept_elsewhere
        """Whether updates omit the model provider's response id: true unless the provider stores the conversation."""
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
                    "fix='pass store=False to load it here, or load_messages=False to skip loading'",
                    history.source_id,
                    agent.name or agent.id,
                )

    def loaded(self, history: ContextProvider) -> None:
        """Record which messages a history provider loaded before the run, to detect later whether they were changed."""
        self._loaded[history.source_id] = list(self._around.context_messages.get(history.source_id, ()))

    def use_run_messages(self) -> None:
        """Use the run's own messages for all model calls, because middleware loaded the history and may have changed it."""
        self._is_replaced = True

    def add_update(self, update: AgentResponseUpdate) -> None:
        """Record an update of the run. Updates after the last model call are stored when the run ends."""
        self._since.append(update)

    async def recall(self, given: Sequence[Message]) -> list[Message] | None:
        """Return the messages for the next model call: the stored conversation, then `given` (the tool results since the last call).

        Return `None` if the run must use its own messages: the model's provider stores the conversation, no history provider that loads
        messages also stores inputs and outputs, or the messages that a history provider loaded were changed.
        """
        if self._is_kept_elsewhere or not any(h.store_inputs and h.store_outputs for h in self._loaders) or self._was_changed():
            return None
        context = self._context(list(given))
        for provider in self._providers:
            if isinstance(provider, HistoryProvider):
                if provider.load_messages:
                    await call_run_hook(provider, "before_run", self._agent, self._session, context)
            elif not any(_stores_messages_of(history, provider.source_id) for history in self._loaders):
                if added := self._around.context_messages.get(provider.source_id):
                    context.extend_messages(provider, added)
        return context.get_messages(include_input=True)

    async def answered(self, given: Sequence[Message], answers: Sequence[Message], answer: ChatResponse) -> None:
        """Store a completed model call: the tool results that it received (`given`), and the messages of its answer to store (`answers`).

        Raises:
            ChatClientInvalidResponseException: The provider stores the conversation, against the option `store` or the client's default.
        """
        if not self._is_kept_elsewhere and answer.conversation_id is not None:
            raise ChatClientInvalidResponseException(
                "require_per_service_call_history_persistence cannot be used when the chat client returns a conversation_id: the "
                "model's provider keeps the conversation. Pass store=True to accept that, or remove the setting."
            )
        if self._is_kept_elsewhere and answer.conversation_id is None:
            logger.warning(
                "conversation not named, the next run may not continue it agent=%s reason=provider_returned_no_conversation_id "
                "fix='pass store=False to use the history of the agent'",
                self._agent.name or self._agent.id,
            )
        self._since.clear()
        await self._store(given, answers)

    def ended(self) -> None:
        """Record that the run completed, so that `aclose` stores its last updates."""
        self._has_ended = True

    async def aclose(self) -> None:
        """Store the updates after the last model call. Of a failed run, store only tool results, because other messages are incomplete."""
        rest = AgentResponse.from_updates(self._since).messages
        given = [message for message in rest if message.role == "tool"]
        answers = [message for message in rest if message.role != "tool"] if self._has_ended else []
        for message in answers if self._has_stored else ():  # tool calls are stored with the answer that contained them
            message.contents = [c for c in message.contents if not c.user_input_request and c.type != "function_approval_request"]
        answers = [message for message in answers if message.contents]
        if given or answers or (self._has_ended and not self._has_stored):
            with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
                await self._store(given, answers)

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
            call=around.call,
        )

    async def _store(self, given: Sequence[Message], answers: Sequence[Message]) -> None:
        around, first = self._around, not self._has_stored
        self._has_stored = True
        inputs = [*(around.input_messages if first else ()), *given]
        context = self._context(inputs, context_messages=around.context_messages if first else None)
        context.finish(AgentResponse(messages=list(answers)))
        for history in reversed(self._histories):
            await call_run_hook(history, "after_run", self._agent, self._session, context)


def _stores_messages_of(history: HistoryProvider, source_id: str) -> bool:
    return history.store_context_messages and (history.store_context_from is None or source_id in history.store_context_from)
