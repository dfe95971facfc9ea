"""Applies compaction strategies to conversations: before and after a run (`CompactionProvider`), and before model calls (`RunCompaction`).

Compaction shortens what the model sees of a long conversation. Within a run, it works on copies: messages hidden from the model stay
unchanged in the history. Compaction has no effect if the provider of the model stores the conversation.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

from gateway.json_types import JsonObject, members_of
from gateway.sessions.history import EXCLUDED_KEY
from gateway.sessions.message_groups import annotate_message_groups, groups_of, included_messages
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

COMPACTION_STATE_KEY = "_compaction_messages"


async def apply_compaction(
    messages: list[Message], *, strategy: CompactionStrategy | None, tokenizer: TokenizerProtocol | None = None
) -> list[Message]:
    """Apply a compaction strategy to a conversation, and return the messages that the model sees.

    Without a strategy, all messages are returned. A `tokenizer` counts the tokens of each message. If the strategy excludes all messages
    other than system messages, the newest group of messages is kept, so that the model has input.
    """
    if strategy is None and tokenizer is None:
        return messages
    annotate_message_groups(messages, tokenizer=tokenizer)
    if strategy is None:
        return messages
    await strategy(messages)
    shown = included_messages(messages)
    if messages and not any(message.role != "system" for message in shown):
        logger.warning("compaction strategy excluded every message, newest group kept messages=%d", len(messages))
        last = max(groups_of(messages), key=lambda group: (group.kind != "system", group.start))
        for message in last.messages:
            message.additional_properties[EXCLUDED_KEY] = False
        shown = included_messages(messages)
    return shown


class RunCompaction:
    """Compacts the conversation of one run of an agent before each model call.

    Excluded messages stay excluded in later model calls, and the tokens of each message are counted only once.
    """

    def __init__(self, strategy: CompactionStrategy | None, tokenizer: TokenizerProtocol | None = None) -> None:
        self._strategy = strategy
        self._tokenizer = tokenizer
        self._taken: list[Message] = []
        self._working: list[Message] = []

    async def project(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that the next model call sees. `messages` is the run's whole conversation; it is not modified."""
        known = len(self._taken)
        if len(messages) < known or any(a is not b for a, b in zip(self._taken, messages, strict=False)):
            known, self._taken, self._working = 0, [], []  # earlier messages of the conversation were replaced
        for message in messages[known:]:
            own = copy.copy(message)
            own.additional_properties = dict(message.additional_properties)
            self._taken.append(message)
            self._working.append(own)
        return await apply_compaction(self._working, strategy=self._strategy, tokenizer=self._tokenizer)


class CompactionProvider(ContextProvider):
    """Context provider that compacts the loaded history before a run of an agent, and the history in the session's state after the run.

    `before_strategy` is applied before the run, `after_strategy` after it. Add this provider after the history provider. Stored messages
    that a strategy excludes are only marked; a history provider with `skip_excluded` does not load them again.
    """

    def __init__(
        self,
        *,
        before_strategy: CompactionStrategy | None = None,
        after_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        source_id: str = "compaction",
        history_source_id: str = "in_memory",
    ) -> None:
        """Store the settings. `history_source_id` is the `source_id` of the history provider whose messages `after_strategy` compacts."""
        super().__init__(source_id)
        self.before_strategy = before_strategy
        self.after_strategy = after_strategy
        self.tokenizer = tokenizer
        self.history_source_id = history_source_id

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Apply `before_strategy` to the messages in `context` that providers have added, and remove those that the strategy excludes.

        These are the loaded history, and messages of other providers before this one. A summary takes the place of the messages that it
        summarises.
        """
        messages = context.get_messages()
        if self.before_strategy is None or not messages:
            return
        source_of = {id(message): source for source, added in context.context_messages.items() for message in added}
        annotate_message_groups(messages, tokenizer=self.tokenizer)
        await self.before_strategy(messages)
        kept: dict[str, list[Message]] = {source: [] for source in context.context_messages}
        source = next(reversed(kept))
        for message in reversed(messages):
            source = source_of.get(id(message), source)
            if not message.additional_properties.get(EXCLUDED_KEY):
                kept[source].insert(0, message)
        context.context_messages.update(kept)

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Apply `after_strategy` to the messages stored in the session's state. Messages that it excludes are marked, not removed."""
        messages: list[Message] | None = members_of(session.state.get(self.history_source_id)).get("messages")
        if self.after_strategy is None or not messages:
            return
        annotate_message_groups(messages, tokenizer=self.tokenizer)
        await self.after_strategy(messages)
