"""`SessionTable`: all open 2025 sessions of a process, those of `lean` and those of the SDK, and which of them gives way to a new one.

A caller at its bound loses its own session that is idle longest. When all callers together have reached the total, the caller that has
most sessions loses one, but never to a caller that has as many. A session with a call in progress or an open stream is not idle. The
client of a session that gave way is answered 404 and begins a new one (2025-11-25, Transports, Session Management).
"""

from __future__ import annotations

import logging
import time
from typing import Literal, Protocol

from gateway.policy.quotas import QuotaReached
from gateway.server.answers import Refusal
from gateway.server.longest_idle import LongestIdle
from gateway.server.usage import Usage
from gateway.telemetry.sparse_log import SparseLog

logger = logging.getLogger(__name__)

SHOWN_CHARACTERS = 8
"""Of a session's id in the log: enough to find it, too few to use it."""

Reason = Literal["deleted", "idle", "evicted", "refused", "failed", "stopped"]
"""Why a session ended: its client said so; it was unused for half an hour; it gave way to another; its opening request was refused;
something broke; the gateway stops."""


class Kept(Protocol):
    """A session, as its keeper knows it."""

    wire_id: str
    """Its `Mcp-Session-Id`."""

    def waits(self) -> tuple[int, float] | None:
        """Zero, and since when it is idle (monotonic); `None` while it is in use."""
        ...

    def give_way(self) -> None:
        """End it, because another session needs its place."""
        ...


class SessionTable:
    """Open sessions by their callers."""

    def __init__(self) -> None:
        self._by_caller: dict[Usage, LongestIdle[Kept]] = {}
        self._entries: dict[str, tuple[Usage, Kept]] = {}
        self._log = SparseLog(logger)

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, usage: Usage) -> Refusal | None:
        """Make room for one more session of a caller; return the refusal if all its sessions are in use."""
        reached = usage.judge_session()
        while reached is not None:
            idle = self._idle_for(usage, reached)
            if idle is None:
                return usage.refuse(reached)
            self._log.warning("session ended reason=evicted session=%s setting=%s", idle.wire_id[:SHOWN_CHARACTERS], reached.rule)
            self._forget(idle.wire_id)
            idle.give_way()
            reached = usage.judge_session()
        return None

    def opened(self, usage: Usage, session: Kept) -> None:
        """Count a session; one that has the id of another takes its place."""
        if session.wire_id in self._entries:
            self._forget(session.wire_id)
        self._entries[session.wire_id] = usage, session
        group = self._by_caller.get(usage)
        if group is None:
            group = self._by_caller[usage] = LongestIdle()
        group.members[session] = None
        usage.hold_session(1)

    def closed(self, session: Kept, reason: Reason) -> None:
        """Count a session no longer, unless another keeper has it by now."""
        entry = self._entries.get(session.wire_id)
        if entry is not None and entry[1] is session:
            self._forget(session.wire_id)
            level = {"failed": logging.WARNING, "stopped": logging.DEBUG}.get(reason, logging.INFO)
            logger.log(level, "session ended reason=%s session=%s", reason, session.wire_id[:SHOWN_CHARACTERS])

    def _forget(self, wire_id: str) -> None:
        usage, session = self._entries.pop(wire_id)
        group = self._by_caller[usage]
        del group.members[session]
        if not group.members:
            del self._by_caller[usage]
        usage.hold_session(-1)

    def _idle_for(self, usage: Usage, reached: QuotaReached) -> Kept | None:
        """The session that gives way to a new one of a caller."""
        now, own = time.monotonic(), self._by_caller.get(usage)
        if not reached.is_own_share:
            larger = [(other.sessions, group) for other, group in self._by_caller.items() if other.sessions > usage.sessions + 1]
            for _, group in sorted(larger, key=lambda entry: -entry[0]):
                found = group.find(now)
                if found is not None:
                    return found
        return own.find(now) if own is not None else None
