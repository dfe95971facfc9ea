"""`SessionTable`: limits the open 2025 sessions over HTTP, and ends an idle session to make room for a new session.

It contains the sessions that are served with the MCP SDK (on the SDK path) and without it (on the fast path). If a caller has reached its
own limit, the caller's session that has been idle longest is ended. If all callers together have reached the total limit, an idle session
of the caller with the most sessions is ended. If no caller with more sessions than the new session's caller (the new one included) has an
idle session, the new session's caller loses one. A session with a call in progress or an open stream is not idle. The client of an ended
session receives 404 and opens a new session (2025-11-25, Transports, Session Management).
"""

from __future__ import annotations

import logging
import time
from typing import Literal, Protocol
from uuid import uuid4

from gateway.policy.quotas import QuotaReached
from gateway.server.http_responses import Refusal
from gateway.server.longest_idle import LongestIdle, Waiting
from gateway.server.usage import Usage
from gateway.telemetry.sparse_log import SparseLog

logger = logging.getLogger(__name__)

SHOWN_CHARACTERS = 8
"""Number of characters of a session id that are logged: enough to identify a session, too few to use it."""

Reason = Literal["deleted", "idle", "evicted", "refused", "failed", "stopped"]
"""Why a session ended: the client deleted it; its idle timeout passed; a new session replaced it; its `initialize` was refused; an
internal failure; the gateway stops."""


SEALED_PREFIX = "s."
"""Prefix of a `Mcp-Session-Id` that contains its session, so that every replica of the gateway can continue it (`sealed_sessions`)."""

NAME_LENGTH = 16
"""Number of characters after `SEALED_PREFIX` that identify a session."""


def name_of(wire_id: str) -> str:
    """Return the part of a sealed session id that identifies the session and cannot be used in place of the id; else an empty string."""
    return wire_id[len(SEALED_PREFIX) : len(SEALED_PREFIX) + NAME_LENGTH] if wire_id.startswith(SEALED_PREFIX) else ""


OWNED_PREFIX = "o."
"""Prefix of a `Mcp-Session-Id` whose session stays at one replica, to which the other replicas forward its requests."""


def owned_id(replica: str) -> str:
    """Return a new session id for a session that stays at the replica with the id `replica`."""
    return f"{OWNED_PREFIX}{uuid4().hex}.{replica}"


def owner_of(wire_id: str) -> str:
    """Return the id of the replica at which a session stays; an empty string for other session ids."""
    return wire_id.rpartition(".")[2] if wire_id.startswith(OWNED_PREFIX) else ""


class TrackedSession(Waiting, Protocol):
    """Interface of a 2025 session over HTTP, served with or without the MCP SDK, as `SessionTable` uses it."""

    wire_id: str
    """Value of the session's `Mcp-Session-Id` header."""

    def evict(self) -> None:
        """End the session to make room for a new session."""
        ...


class SessionTable:
    """All open 2025 sessions over HTTP, grouped by caller. At a limit it ends an idle session to make room for a new session."""

    def __init__(self) -> None:
        self._by_caller: dict[Usage, LongestIdle[TrackedSession]] = {}
        self._entries: dict[str, tuple[Usage, TrackedSession]] = {}
        self._by_name: dict[str, str] = {}
        """Name of each session that replicas share (`name_of`) → its `Mcp-Session-Id`."""
        self._log = SparseLog(logger)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, wire_id: str) -> bool:
        return wire_id in self._entries

    def find(self, name: str) -> str:
        """Return the `Mcp-Session-Id` of the open session with this name (`name_of`); an empty string if it is not open here."""
        return self._by_name.get(name, "")

    def end(self, wire_id: str) -> None:
        """End a session, because its client ended it at another replica. Do nothing if it is not open here."""
        entry = self._entries.get(wire_id)
        if entry is not None:
            logger.info("session ended reason=deleted-elsewhere session=%s", wire_id[:SHOWN_CHARACTERS])
            self._forget(wire_id)
            entry[1].evict()

    def admit(self, usage: Usage) -> Refusal | None:
        """Make room for a new session of the caller whose sessions `usage` counts. Return a refusal if this is not possible, else `None`.

        If a limit of sessions is reached, an idle session is ended; if no session is idle, the new session is refused.
        """
        reached = usage.judge_session()
        while reached is not None:
            idle = self._idle_for(usage, reached)
            if idle is None:
                return usage.refuse(reached)
            self._log.warning("session ended reason=evicted session=%s setting=%s", idle.wire_id[:SHOWN_CHARACTERS], reached.rule)
            self._forget(idle.wire_id)
            idle.evict()
            reached = usage.judge_session()
        return None

    def opened(self, usage: Usage, session: TrackedSession) -> None:
        """Add a new session of the caller whose sessions `usage` counts.

        A session that the MCP SDK has taken over from the fast path replaces the earlier entry with the same `Mcp-Session-Id`.
        """
        if session.wire_id in self._entries:
            self._forget(session.wire_id)
        self._entries[session.wire_id] = usage, session
        if name := name_of(session.wire_id):
            self._by_name[name] = session.wire_id
        group = self._by_caller.get(usage)
        if group is None:
            group = self._by_caller[usage] = LongestIdle()
        group.members[session] = None
        usage.hold_session(1)

    def closed(self, session: TrackedSession, reason: Reason) -> None:
        """Remove a session that ended, and log the reason. Do nothing if the session's entry was removed, or replaced by one of the SDK."""
        entry = self._entries.get(session.wire_id)
        if entry is not None and entry[1] is session:
            self._forget(session.wire_id)
            level = {"failed": logging.WARNING, "stopped": logging.DEBUG}.get(reason, logging.INFO)
            logger.log(level, "session ended reason=%s session=%s", reason, session.wire_id[:SHOWN_CHARACTERS])

    def _forget(self, wire_id: str) -> None:
        usage, session = self._entries.pop(wire_id)
        self._by_name.pop(name_of(wire_id), None)
        group = self._by_caller[usage]
        del group.members[session]
        if not group.members:
            del self._by_caller[usage]
        usage.hold_session(-1)

    def _idle_for(self, usage: Usage, reached: QuotaReached) -> TrackedSession | None:
        """Return the idle session to end so that a new session does not exceed the quota `reached`; `None` if no session is idle.

        `usage` counts the sessions of the new session's caller.
        """
        now, own = time.monotonic(), self._by_caller.get(usage)
        if not reached.is_own_share:
            larger = [(other.sessions, group) for other, group in self._by_caller.items() if other.sessions > usage.sessions + 1]
            for _, group in sorted(larger, key=lambda entry: -entry[0]):
                found = group.find(now)
                if found is not None:
                    return found
        return own.find(now) if own is not None else None
