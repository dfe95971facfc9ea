"""`HistoryProvider`: stores conversations across runs. `InMemoryHistoryProvider` stores them in the session's state.

A provider serves as memory (loads and stores) or, with `load_messages=False`, as a record that is only written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, TypedDict, Unpack

from gateway.json_types import JsonObject, JsonValue
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext, call_hook, without_attribution
from gateway.types.messages import Message

EXCLUDED_KEY = "_excluded"
"""Key in the `additional_properties` of a message. If the value is true, compaction hides the message from the model; the message stays
stored."""

STORED_KEY = "dev.moongate/stored"
"""Key in the `additional_properties` of a loaded message: how many stored messages the conversation has up to and including this message.
A summary counts for all messages that it replaces."""


class HistoryOptions(TypedDict, total=False):
    """Keyword arguments of `HistoryProvider` that its subclasses accept and pass on."""

    load_messages: bool
    store_inputs: bool
    store_context_messages: bool
    store_context_from: Collection[str] | None
    store_outputs: bool
    store_responses: bool | None


class HistoryProvider(ContextProvider):
    """Loads earlier messages before a run and stores the new ones after it.

    A subclass implements `get_messages` and `save_messages`; both may accept further keyword arguments.
    """

    def __init__(
        self,
        source_id: str,
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: Collection[str] | None = None,
        store_outputs: bool = True,
        store_responses: bool | None = None,
    ) -> None:
        """Without `load_messages` the agent skips `before_run`.

        `store_context_messages` also stores messages added by other providers, or only by those in `store_context_from`. `store_responses`
        is an alias of `store_outputs`.
        """
        super().__init__(source_id)
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_context_messages = store_context_messages
        self.store_context_from = store_context_from
        self.store_outputs = store_outputs if store_responses is None else store_responses

    @property
    def store_responses(self) -> bool:
        """Alias of `store_outputs`."""
        return self.store_outputs

    @property
    def loads_only(self) -> bool:
        """Whether the subclass inherits `before_run`, which only adds the messages that `get_messages` returns."""
        return type(self).before_run is HistoryProvider.before_run

    async def load(self, session_id: str | None, state: JsonObject) -> list[Message]:
        """Return the stored messages. Works with subclasses whose `get_messages` has no parameter `state`."""
        return list(await call_hook(self, "get_messages", session_id, state=state))

    @property
    def replays(self) -> bool:
        """Whether the model receives the conversation from this provider."""
        return self.load_messages

    @abstractmethod
    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages, oldest first. `state` is this provider's part of the session's state."""
        raise NotImplementedError(f"{type(self).__name__} loads messages, so it must implement get_messages.")

    @abstractmethod
    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages; the agent never passes an empty list."""
        raise NotImplementedError(f"{type(self).__name__} stores messages, so it must implement save_messages.")

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the stored messages before the input."""
        context.extend_messages(self, await self.load(context.session_id, state))

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store the kinds of messages that the constructor arguments select: other providers' context, the input, and the response."""
        new: list[Message] = []
        if self.store_context_messages:
            new += context.get_messages(sources=self.store_context_from, exclude_sources={self.source_id})
        if self.store_inputs:
            new += context.input_messages
        if self.store_outputs and context.response is not None:
            new += context.response.messages
        if new:
            await call_hook(self, "save_messages", context.session_id, without_attribution(new), state=state)


class InMemoryHistoryProvider(HistoryProvider):
    """Stores the conversation in the session's state as `state["messages"]`; the provider itself has no state."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "in_memory"

    def __init__(self, source_id: str | None = None, *, skip_excluded: bool = False, **options: Unpack[HistoryOptions]) -> None:
        """With `skip_excluded`, messages hidden by compaction are not loaded."""
        super().__init__(source_id or self.DEFAULT_SOURCE_ID, **options)
        self.skip_excluded = skip_excluded

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the messages of the conversation in `state`, oldest first."""
        stored: list[Message] = (state or {}).get("messages") or []
        return included(stored) if self.skip_excluded else list(stored)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the conversation in `state`."""
        if state is not None:
            state["messages"] = [*(state.get("messages") or []), *messages]


def included(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that compaction did not exclude."""
    return [message for message in messages if not message.additional_properties.get(EXCLUDED_KEY)]
