"""`Conversations`: sessions that callers have with agents over several calls, kept in the gateway's database.

A caller asks for one with `session_id: "new"` and goes on with the id in the result. An id is nobody's but its caller's; one call at a
time goes on with a session, others wait a while. A turn is stored whole when its run has ended, so a run that fails, is cancelled or
killed leaves the session as it was.

Inside a durable task the run goes on after a kill, in the same session (`resuming`), and its turn is stored once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

import anyio

from gateway.agents.definition import AgentFile
from gateway.errors import AgentError, NotFound, StorageError, only_cause, text_for_caller
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import SESSION_META_KEY
from gateway.sessions.history import STORED_KEY, HistoryProvider
from gateway.sessions.session import AgentSession
from gateway.storage.records import Records
from gateway.tools.base import Complete
from gateway.tools.context import CallContext, DurablePort
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.storage.engine import Database
    from gateway.storage.sessions import HeldSession, Sessions

logger = logging.getLogger(__name__)

NEW_SESSION = "new"
"""The `session_id` that begins a conversation."""

SUMMARY_KEY = "summary"
"""In a session's state: what its first messages come to, where they were summed up."""

TURN_KEY = "turn"
"""In a session's state: the durable step whose turn was stored last."""

_KEPT_ID = "session"
_KEPT_ANSWER = "answer"
"""Names under which a durable task keeps what `new` began, and an answer that is about to be stored."""

RENEW_SECONDS = 2.0
"""How often a running call says that it still holds its session; a third of what it may keep silent."""

POLL_SECONDS = 0.1
"""How often a session that another call holds is tried again; that call may be in another process."""

CLEAN_UP_SECONDS = 5.0
"""Time for letting go of a session when the call was cancelled; after that it is free by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """How long conversations are kept, and how many."""

    ttl_seconds: float
    """From the last turn on."""
    max_per_caller: int
    wait_seconds: float
    """How long a call waits for another one on the same session."""


class TurnHistory(HistoryProvider):
    """What was said in one session, for one call: loaded before it, and kept aside after it until the turn is stored.

    Where the first part was summed up in an earlier turn, its summary is loaded in its place; stored it stays whole.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "database"

    def __init__(self, stored: Sequence[JsonObject], summary: JsonMapping | None = None) -> None:
        """`summary` is what `Conversation.keep_summary` put into the session's state."""
        super().__init__(self.DEFAULT_SOURCE_ID)
        count = int(summary["count"]) if summary else 0
        self._stored = [Message("assistant", [str(summary["text"])])] if summary else []
        self._stored += [Message.from_dict(message) for message in stored[count:]]
        for number, message in enumerate(self._stored, count if summary else 1):
            message.additional_properties[STORED_KEY] = number
        self.added: list[Message] = []

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Everything that was said."""
        return [*self._stored, *self.added]

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Kept aside."""
        self.added += messages


@dataclass(slots=True)
class Conversation:
    """A session in the hands of one call."""

    session: AgentSession
    history: TurnHistory
    _held: HeldSession
    _store: Sessions
    _ttl_seconds: float
    is_kept: bool = field(default=False, init=False)
    _durable: DurablePort | None = field(default=None, init=False)
    _turn: str = field(default="", init=False)

    @property
    def id(self) -> str:
        """The id that the caller gives to go on."""
        return self._held.id

    @property
    def is_new(self) -> bool:
        """Whether this would be its first turn."""
        return self._held.is_new

    def keep_summary(self, text: str, count: int) -> None:
        """From the next turn on, `text` is loaded in place of the first `count` messages that are stored."""
        self.session.state[SUMMARY_KEY] = {"text": text, "count": count}

    async def resuming(self, ctx: CallContext) -> Complete | None:
        """Make the turn one of a durable task, where the call is in one; its answer, where it was stored before a kill already."""
        turn = ctx.provenance.step_key
        if ctx.durable is None or not turn:
            return None
        self._durable, self._turn = ctx.durable, turn
        if self.is_new:
            await self._durable.keep(_KEPT_ID, self.id)
        self.is_kept = self._held.state.get(TURN_KEY) == self._turn
        return Complete(cast("JsonObject", self._durable.kept(_KEPT_ANSWER))) if self.is_kept else None

    async def keep(self, answer: Complete) -> None:
        """Store the turn. Raises `StorageError`."""
        if self.is_kept:
            return
        if self._durable is not None:
            await self._durable.keep(_KEPT_ANSWER, answer.result)
            self.session.state[TURN_KEY] = self._turn
        added = [message.to_dict() for message in self.history.added]
        await self._store.keep(self._held, added, self.session.to_dict()["state"], ttl_seconds=self._ttl_seconds)
        self.is_kept = True


class Conversations:
    """The conversations of every caller. The database is opened when the first of them is."""

    def __init__(self, records: Records, limits: ConversationLimits) -> None:
        self._records = records
        self._limits = limits

    async def open(self) -> Database:
        """The database they are in. Raises `StorageError`."""
        return await self._records.database()

    @asynccontextmanager
    async def hold(
        self, file: AgentFile, session_id: str, principal: str, durable: DurablePort | None = None
    ) -> AsyncGenerator[Conversation]:
        """Hold a session of this caller with this agent, or a new one for `new`, while the block runs.

        In a durable task (`durable`) `new` is the one that it began before a kill.

        Raises:
            NotFound: It is unknown, over, or another caller's.
            AgentError: Another call holds it for too long; or it is with another agent.
            PolicyDenied: The caller has too many sessions for another one.
            StorageError: The database cannot be used.
        """
        agent, ttl_seconds = file.name, file.session_ttl or self._limits.ttl_seconds
        store = await self._records.sessions()
        begun = durable.kept(_KEPT_ID) if durable is not None and session_id == NEW_SESSION else None
        session_id = await _stored(store, begun, principal) if isinstance(begun, str) else session_id
        if session_id == NEW_SESSION:
            held = await store.begin(principal, agent, most=self._limits.max_per_caller)
            yield _conversation(store, held, ttl_seconds)
            return
        held = await self._claim(store, session_id, principal)
        try:
            if held.agent != agent:
                raise AgentError(f"Session {held.id!r} is with agent {held.agent!r}; call that one, or begin another with `new`.")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_renew, store, held)
                yield _conversation(store, held, ttl_seconds)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as failed:
            raise only_cause(failed) from None
        finally:
            with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
                await _release(store, held)

    async def _claim(self, store: Sessions, session_id: str, principal: str) -> HeldSession:
        with anyio.move_on_after(self._limits.wait_seconds):
            while True:
                held = await store.claim(session_id, principal)
                if held is not None:
                    return held
                await anyio.sleep(POLL_SECONDS)
        raise AgentError(f"Session {session_id[:100]!r} is busy with another call; wait for its answer and call again.")


def _conversation(store: Sessions, held: HeldSession, ttl_seconds: float) -> Conversation:
    stored = {"session_id": held.id, "state": held.state}
    try:
        history = TurnHistory(held.messages, cast("JsonMapping | None", held.state.get(SUMMARY_KEY)))
        session = AgentSession.from_dict(stored)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StorageError(f"Session {held.id!r} is damaged in the database; start a new one. Nothing was changed.") from None
    return Conversation(session, history, held, store, ttl_seconds)


async def _stored(store: Sessions, session_id: str, principal: str) -> str:
    """The id, or `new` where nothing of that session was stored."""
    try:
        await store.get(session_id, principal)
    except NotFound:
        return NEW_SESSION
    return session_id


async def in_session(conversation: Conversation, answer: Complete) -> Complete:
    """The result of a turn: stored, and with the session's id for the model (in the text) and for programs (in `_meta`).

    A turn that failed is not stored. One that cannot be stored still gives its answer, and says so.
    """
    result = dict(answer.result)
    said = f"session_id: {conversation.id}"
    if answer.is_error:
        said = f"{said} (this turn failed and is not part of the conversation)" if not conversation.is_new else ""
    else:
        try:
            await conversation.keep(answer)
        except StorageError as error:
            said = f"The answer above could not be stored, so the session goes on without it: {text_for_caller(error)}"
            result["isError"] = True
    if said:
        result["content"] = [*answer.content, {"type": "text", "text": said}]
    if conversation.is_kept or not conversation.is_new:
        meta: JsonObject = dict(result.get("_meta") or {})
        result["_meta"] = {**meta, SESSION_META_KEY: conversation.id}
    return Complete(result)


async def _renew(store: Sessions, held: HeldSession) -> None:
    while True:
        await anyio.sleep(RENEW_SECONDS)
        try:
            await store.renew(held)
        except StorageError as error:
            logger.warning("Session %s could not be held on to: %s", held.id, error)


async def _release(store: Sessions, held: HeldSession) -> None:
    try:
        await store.release(held)
    except StorageError as error:
        logger.warning("Session %s could not be let go of and is free in a moment: %s", held.id, error)
