"""`Conversations`: sessions of callers with agents, which span several calls and are stored in the gateway's database.

A caller starts a session with `session_id: "new"` and continues it with the id in the result. Only that caller can use the id. One call
at a time uses a session; other calls wait. A turn (one call's messages and answer) is stored as a whole when its run has ended, so a run
that fails, is cancelled or is killed leaves the session unchanged.

In a durable task, a run that was killed continues after a restart in the same session (`resuming`), and its turn is stored once.
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
    from gateway.storage.agent_sessions import HeldSession, Sessions
    from gateway.storage.engine import Database

logger = logging.getLogger(__name__)

NEW_SESSION = "new"
"""The value of the argument `session_id` that starts a new session."""

SUMMARY_KEY = "summary"
"""Key in a session's state: the summary of its first messages, if they were summarized."""

TURN_KEY = "turn"
"""Key in a session's state: the id of the step of a durable task (which survives restarts) that stored the session's last turn, if any.

After a restart, the repeated step finds its own id under this key if its turn is already stored.
"""

_KEPT_ID = "session"
_KEPT_ANSWER = "answer"
"""Name under which a durable task (which continues after a restart) stores the agent's answer, before the session stores the turn.

Under the name `_KEPT_ID` the task stores the id of the session that it created.
"""

RENEW_SECONDS = 2.0
"""Interval, in seconds, at which a running call renews its lock on a session; a lock that is not renewed expires after three intervals."""

POLL_SECONDS = 0.1
"""Interval, in seconds, at which a call tries again to lock a session that another call, possibly in another process, uses."""

CLEAN_UP_SECONDS = 5.0
"""Time limit, in seconds, for unlocking a session at the end of a call, even a cancelled one; after that, the lock expires by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """Limits of the sessions that callers have with the agents of one gateway."""

    ttl_seconds: float
    """Seconds from the last turn until a session is deleted."""
    max_per_caller: int
    wait_seconds: float
    """Maximum seconds that a call waits until another call on the same session has ended."""


class TurnHistory(HistoryProvider):
    """History provider for one call on a session: loads the stored messages, and collects the new messages until the turn is stored.

    If an earlier turn summarized the first messages, the summary is loaded in place of these messages, which stay stored.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "database"

    def __init__(self, stored: Sequence[JsonObject], summary: JsonMapping | None = None) -> None:
        """Create the history from the session's stored messages and the summary that `Conversation.keep_summary` stored, if any."""
        super().__init__(self.DEFAULT_SOURCE_ID)
        count = int(summary["count"]) if summary else 0
        self._stored = [Message("assistant", [str(summary["text"])])] if summary else []
        self._stored += [Message.from_dict(message) for message in stored[count:]]
        for number, message in enumerate(self._stored, count if summary else 1):
            message.additional_properties[STORED_KEY] = number
        self.added: list[Message] = []

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the session's stored messages, or their summary, and the messages that this call has collected."""
        return [*self._stored, *self.added]

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Collect the new messages of this call's turn. `Conversation.keep` stores them in the database when the turn is complete."""
        self.added += messages


@dataclass(slots=True)
class Conversation:
    """A session that one call has locked to run a turn of the conversation."""

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
        """The id with which the caller continues the session."""
        return self._held.id

    @property
    def is_new(self) -> bool:
        """Whether this is the session's first turn."""
        return self._held.is_new

    def keep_summary(self, text: str, count: int) -> None:
        """Store `text` as the summary of the first `count` messages; from the next turn on, it is loaded in place of these messages."""
        self.session.state[SUMMARY_KEY] = {"text": text, "count": count}

    async def resuming(self, ctx: CallContext) -> Complete | None:
        """Return the stored answer if the call `ctx` already stored its turn before a restart of the gateway; otherwise `None`.

        Only a call in a durable task is repeated after a restart. For such a call, also record the step of the task to which the turn
        belongs, and the id of a new session, so that the repeated call finds them.
        """
        turn = ctx.facts.provenance.step_key
        if ctx.ports.durable is None or not turn:
            return None
        self._durable, self._turn = ctx.ports.durable, turn
        if self.is_new:
            await self._durable.keep(_KEPT_ID, self.id)
        self.is_kept = self._held.state.get(TURN_KEY) == self._turn
        return Complete(cast("JsonObject", self._durable.kept(_KEPT_ANSWER))) if self.is_kept else None

    async def keep(self, answer: Complete) -> None:
        """Store the turn (the collected messages and the session's state), unless it is already stored. Raises `StorageError`."""
        if self.is_kept:
            return
        if self._durable is not None:
            await self._durable.keep(_KEPT_ANSWER, answer.result)
            self.session.state[TURN_KEY] = self._turn
        added = [message.to_dict() for message in self.history.added]
        await self._store.keep(self._held, added, self.session.to_dict()["state"], ttl_seconds=self._ttl_seconds)
        self.is_kept = True


class Conversations:
    """The sessions of all callers with agents, stored in the gateway's database, which is opened when it is first needed."""

    def __init__(self, records: Records, limits: ConversationLimits) -> None:
        self._records = records
        self._limits = limits

    async def open(self) -> Database:
        """Open the database of the sessions, if necessary, and return it. Raises `StorageError`."""
        return await self._records.database()

    @asynccontextmanager
    async def hold(
        self, file: AgentFile, session_id: str, principal: str, durable: DurablePort | None = None
    ) -> AsyncGenerator[Conversation]:
        """Lock a session between a caller and an agent until the `async with` block ends. With `session_id` `new`, create a session.

        If a durable task (`durable`, a call that continues after a restart) was killed and restarted, `new` selects the session that the
        task created before, if that session was stored.

        Raises:
            NotFound: The session does not exist, has expired, or belongs to another caller.
            AgentError: Another call used the session for too long, or the session is with another agent.
            PolicyDenied: The caller has too many sessions to create another one.
            StorageError: The database cannot be used, or the session's data in it is damaged.
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
                raise AgentError(f"Session {held.id!r} is with agent {held.agent!r}; call that agent, or start a session with `new`.")
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
        raise AgentError(f"Session {session_id[:100]!r} is busy with another call. Wait for its answer and call again.")


def _conversation(store: Sessions, held: HeldSession, ttl_seconds: float) -> Conversation:
    stored = {"session_id": held.id, "state": held.state}
    try:
        history = TurnHistory(held.messages, cast("JsonMapping | None", held.state.get(SUMMARY_KEY)))
        session = AgentSession.from_dict(stored)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StorageError(f"Session {held.id!r} is damaged in the database and was not changed; start a new session.") from None
    return Conversation(session, history, held, store, ttl_seconds)


async def _stored(store: Sessions, session_id: str, principal: str) -> str:
    """Return `session_id` if the caller has this session in the database, otherwise `new`."""
    try:
        await store.get(session_id, principal)
    except NotFound:
        return NEW_SESSION
    return session_id


async def in_session(conversation: Conversation, answer: Complete) -> Complete:
    """Store a turn of a session (`conversation`), and return the agent's `answer` with the session id added, as text and in `_meta`.

    A failed turn is not stored. If the first turn failed, there is no session, and no id is added. If a successful turn cannot be stored,
    the result contains the answer and the error.
    """
    result = dict(answer.result)
    note = f"session_id: {conversation.id}"
    if answer.is_error:
        note = f"{note} (this turn failed and is not part of the session)" if not conversation.is_new else ""
    else:
        try:
            await conversation.keep(answer)
        except StorageError as error:
            note = f"The answer above was not stored and is not part of the session: {text_for_caller(error)}"
            result["isError"] = True
    if note:
        result["content"] = [*answer.content, {"type": "text", "text": note}]
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
            logger.warning("session not renewed session=%s error=%s", held.id, error)


async def _release(store: Sessions, held: HeldSession) -> None:
    try:
        await store.release(held)
    except StorageError as error:
        logger.warning("session not released session=%s error=%s", held.id, error)
