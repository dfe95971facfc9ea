"""`AuditWriter`: writes the entries of the audit log in batches, off the path of calls. Used by `records`.

There are two queues. *Decisions* (refusals, approvals and others) are written at once, and `settle` waits for them, so that a caller gets
the answer after its refusal is stored. *Calls* (allowed calls and reads) are written at most `BATCH_SECONDS` later, so that a process
that is killed loses less than a second of them.

If the database does not answer, both queues grow up to a limit. Entries beyond it are dropped and counted; the count is logged, and written
as an entry `audit.dropped` when the database answers again. Calls never wait. A refused call waits at most `SETTLE_SECONDS`, and not at all
while the last write has failed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from gateway.errors import StorageError
from gateway.storage.record_types import AuditEntry

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000
"""Maximum number of queued decisions. Further ones are dropped and counted, so that a full disk does not also fill the memory."""

MAX_CALLS = 20_000
"""Maximum number of queued calls, which take up to 1 KiB each. Further ones are dropped and counted."""

MAX_BATCH = 2_000
"""Maximum number of entries that one transaction writes."""

BATCH_SECONDS = 0.25
"""Seconds for which calls are collected before they are written in one batch."""

SETTLE_SECONDS = 1.0
"""Maximum seconds for which a refused call waits until its refusal is stored."""

RETRY_SECONDS = 2.0
"""Seconds to wait before writing again after a batch of audit entries could not be written."""

PRUNE_SECONDS = 3600.0
"""Minimum seconds between two deletions of expired audit entries, if all expired entries were deleted. Each follows a write."""

SLICE = 64
"""Number of entries that are encoded before other tasks of the event loop run: half a millisecond of work."""

PRUNED_AT_ONCE = 5_000
"""Maximum number of expired entries that one transaction deletes, because new entries wait for it."""

_DAY_SECONDS = 86_400.0


class Log(Protocol):
    """Protocol of `AuditLog`, whose module is imported on first use."""

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries in one transaction. Raises `StorageError`."""
        ...

    async def prune(self, before: float, *, keep: int | None = None) -> int:
        """Delete up to `PRUNED_AT_ONCE` expired entries, and return their number. Raises `StorageError`."""
        ...


Form = Callable[[Any], AuditEntry | None]
"""Function that makes the entry of a queued call; it returns `None` for a call that is not part of the sample."""


class AuditWriter:
    """Queues entries of the audit log, and writes them in batches. `run` writes; without it, only `flush` and `settle` do."""

    def __init__(self, log: Callable[[], Awaitable[Log]], days: int) -> None:
        """`log` opens the database if necessary. Entries are deleted after `days`."""
        self._log = log
        self._days = days
        self.max_entries: int | None = None
        """Number of entries beyond which the oldest are deleted; `None` without a limit."""
        self.form: Form = lambda entry: entry
        """Makes the entry of a queued call. The gate sets it."""
        self.on_stored: Callable[[Sequence[AuditEntry]], Awaitable[None]] | None = None
        """Called with the entries of each written batch, to export them; `None` if they are not exported."""
        self._decisions: deque[AuditEntry] = deque()
        self._calls: deque[Any] = deque()
        self._dropped = {"lines": 0, "calls": 0}
        """Number of dropped decisions and calls that no entry has reported yet."""
        self.dropped = 0
        """Number of dropped entries since the start."""
        self._wake, self._urgent = anyio.Event(), anyio.Event()
        self._waiting: list[anyio.Event] = []
        """One event per refused call that waits until the decisions that are queued now are stored."""
        self._writing = anyio.Lock()
        self._is_running = False
        self.is_failing = False
        """Whether the last write failed."""
        self._pruned_at = 0.0

    @property
    def queued(self) -> int:
        """Number of entries that are not stored yet."""
        return len(self._decisions) + len(self._calls)

    def note(self, entry: AuditEntry) -> None:
        """Queue a decision. Never waits or raises; drops and counts the entry if `MAX_QUEUED` decisions wait."""
        if len(self._decisions) >= MAX_QUEUED:
            self._drop("lines")
            return
        self._decisions.append(entry)
        self._wake.set()
        self._urgent.set()

    def note_call(self, call: object) -> None:
        """Queue an allowed call or read, of which `form` makes the entry later. Drops and counts it if `MAX_CALLS` calls wait."""
        calls = self._calls
        if len(calls) >= MAX_CALLS:
            self._drop("calls")
            return
        calls.append(call)
        if len(calls) == 1:
            self._wake.set()

    def _drop(self, kind: str) -> None:
        if not any(self._dropped.values()):
            logger.warning("audit entries dropped kind=%s queued=%d", kind, self.queued)
        self._dropped[kind] += 1
        self.dropped += 1

    async def settle(self) -> None:
        """Wait until the queued decisions are stored, at most `SETTLE_SECONDS`. Never raises; also completes if the caller is cancelled.

        While the last write has failed, return at once: `run` writes the decisions as soon as the database answers.
        """
        if not self._decisions or self.is_failing:
            return
        with anyio.move_on_after(SETTLE_SECONDS, shield=True) as scope:
            if self._is_running:
                stored = anyio.Event()
                self._waiting.append(stored)
                await stored.wait()
            else:
                try:
                    await self.flush()
                except StorageError as error:
                    self._failed(error)
        if scope.cancelled_caught and not self.is_failing:
            logger.warning("audit decisions not stored in time queued=%d seconds=%g", len(self._decisions), SETTLE_SECONDS)

    async def flush(self) -> None:
        """Write all entries that are queued now, and return when they are committed.

        Raises:
            StorageError: The entries cannot be written and stay in the queue, or expired entries cannot be deleted.
        """
        async with self._writing:
            calls = len(self._calls)
            if not calls and not self._decisions:
                return  # the database is not opened
            while self._decisions or calls > 0:
                calls -= await self._write(min(calls, MAX_BATCH))
            if time.monotonic() - self._pruned_at > PRUNE_SECONDS or not self._pruned_at:
                await self._prune()

    async def _write(self, calls: int) -> int:
        """Write up to `MAX_BATCH` of the oldest entries in one transaction, at most `calls` of them calls; return this number of calls."""
        waiting: list[anyio.Event] = []
        if len(self._decisions) <= MAX_BATCH:
            waiting, self._waiting = self._waiting, []
        decisions = list(islice(self._decisions, MAX_BATCH))
        calls = min(calls, MAX_BATCH - len(decisions))
        dropped = dict(self._dropped)
        try:
            batch = [*decisions]
            for number, call in enumerate(list(islice(self._calls, calls)), 1):
                if (entry := self.form(call)) is not None:
                    batch.append(entry)
                if not number % SLICE:
                    await anyio.lowlevel.checkpoint()
            if decisions:
                batch.sort(key=lambda entry: entry.at)
            if len(decisions) < len(self._decisions):
                dropped = dict.fromkeys(dropped, 0)  # the last batch reports them
            if any(dropped.values()):
                fields = {kind: number for kind, number in dropped.items() if number}
                batch.append(AuditEntry(time.time(), "audit.dropped", fields={**fields}))
            if batch:
                log = await self._log()
                with anyio.CancelScope(shield=True):  # committed entries must leave the queue
                    await log.append(batch)
                    self._leave(len(decisions), calls, dropped)
            else:
                self._leave(0, calls, dropped)
        except BaseException:
            self._waiting = waiting + self._waiting
            raise
        self.is_failing = False
        for stored in waiting:
            stored.set()
        if self.on_stored is not None and batch:
            await self.on_stored(batch)
        return calls

    def _leave(self, decisions: int, calls: int, dropped: dict[str, int]) -> None:
        for _ in range(decisions):
            self._decisions.popleft()
        for _ in range(calls):
            self._calls.popleft()
        for kind, number in dropped.items():
            self._dropped[kind] -= number

    async def _prune(self) -> None:
        """Delete expired entries, at most `PRUNED_AT_ONCE`; if there are more, the next write continues."""
        log = await self._log()
        gone = await log.prune(time.time() - self._days * _DAY_SECONDS, keep=self.max_entries)
        if gone < PRUNED_AT_ONCE:
            self._pruned_at = time.monotonic()

    def _failed(self, error: StorageError) -> None:
        """Let refused calls no longer wait, because the database cannot be used."""
        self.is_failing = True
        waiting, self._waiting = self._waiting, []
        for stored in waiting:
            stored.set()
        logger.warning("audit log not written queued=%d reason=%r", self.queued, str(error))

    async def run(self) -> None:
        """Write queued entries in batches, until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._wake.wait()
                if not self._decisions:
                    with anyio.move_on_after(BATCH_SECONDS):
                        await self._urgent.wait()
                self._wake, self._urgent = anyio.Event(), anyio.Event()
                try:
                    await self.flush()
                except StorageError as error:
                    self._failed(error)
                    await anyio.sleep(RETRY_SECONDS)
                if self.queued:
                    self._wake.set()
        finally:
            self._is_running = False

    async def finish(self) -> None:
        """Write the remaining entries. Entries that cannot be written are lost (logged)."""
        try:
            await self.flush()
        except StorageError as error:
            logger.warning("audit entries lost entries=%d reason=%r", self.queued, str(error))
