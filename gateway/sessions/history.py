"""`HistoryProvider`: base class of context providers that store an agent's conversation, so that later runs continue it.

A provider serves as memory (loads and stores) or, with `load_messages=False`, as a record that is only written. `InMemoryHistoryProvider`
stores the conversation in the session's state.
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
"""Key in the `additional_properties` of a message. If its value is true, compaction has excluded the message: the model does not see it.

The message stays stored.
"""

STORED_KEY = "dev.moongate/stored"
"""Key in the `additional_properties` of a loaded message. Its value is the number of stored messages up to and including this message.

A summary counts as all messages that it replaces. When compaction summarises messages, the number is stored with the new summary, so that
later runs load the summary instead of that many messages.
"""


class HistoryOptions(TypedDict, total=False):
    """Keyword arguments of `HistoryProvider.__init__`, which its subclasses accept too: what is loaded before and stored after a run."""

    load_messages: bool
    store_inputs: bool
    store_context_messages: bool
    store_context_from: Collection[str] | None
    store_outputs: bool
    store_responses: bool | None


class HistoryProvider(ContextProvider):
    """Context provider that loads the earlier messages of a conversation before a run, and stores the new messages after it.

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
        """Store which messages are loaded before a run and stored after it.

        If `load_messages` is false, the agent skips `before_run`. `store_inputs` stores the input of a run, and `store_outputs` (or its
        alias `store_responses`) the response. `store_context_messages` also stores the messages that other context providers added to the
        run; `store_context_from` restricts this to the providers with these ids.
        """
        super().__init__(source_id)
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_context_messages = store_context_messages
        self.store_context_from = store_context_from
        self.store_outputs = store_outputs if store_responses is None else store_responses

    @property
    def store_responses(self) -> bool:
        """Whether responses of the agent are stored; alias of `store_outputs`."""
        return self.store_outputs

    @property
    def loads_only(self) -> bool:
        """Whether `before_run` only adds the messages that `get_messages` returns, because the subclass does not override `before_run`."""
        return type(self).before_run is HistoryProvider.before_run

    async def load(self, session_id: str | None, state: JsonObject) -> list[Message]:
        """Call `get_messages` and return the stored messages, also for subclasses whose `get_messages` has no parameter `state`."""
        return list(await call_hook(self, "get_messages", session_id, state=state))

    @property
    def replays(self) -> bool:
        """Whether the model receives the earlier conversation from this provider (`load_messages`)."""
        return self.load_messages

    @abstractmethod
    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages of the session, oldest first. `state` is this provider's part of the session's state."""
        raise NotImplementedError(f"{type(self).__name__} loads messages, so it must implement get_messages.")

    @abstractmethod
    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the stored conversation of the session. `messages` is never empty."""
        raise NotImplementedError(f"{type(self).__name__} stores messages, so it must implement save_messages.")

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Load the stored messages of the session, and add them to the run before its input."""
        context.extend_messages(self, await self.load(context.session_id, state))

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store those messages of the run that the constructor's arguments select: other providers' messages, the input, the response."""
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
    """History provider that stores the conversation in the session's state, as `state["messages"]`; the provider itself has no state."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "in_memory"

    def __init__(self, source_id: str | None = None, *, skip_excluded: bool = False, **options: Unpack[HistoryOptions]) -> None:
        """Store the settings. With `skip_excluded`, messages that compaction has excluded are not loaded."""
        super().__init__(source_id or self.DEFAULT_SOURCE_ID, **options)
        self.skip_excluded = skip_excluded

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the messages in `state`, this provider's part of the session's state, oldest first."""
        stored: list[Message] = (state or {}).get("messages") or []
        return included(stored) if self.skip_excluded else list(stored)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to those in `state`, this provider's part of the session's state. Without `state`, do nothing."""
        if state is not None:
            state["messages"] = [*(state.get("messages") or []), *messages]


def included(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that the model sees: those that compaction has not excluded."""
    return [message for message in messages if not message.additional_properties.get(EXCLUDED_KEY)]
