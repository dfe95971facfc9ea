"""`Records`: the database behind a door that opens on first use.

Importing this costs nothing; the database and its driver are imported and opened, in a thread, when something is first
recorded, counted or asked for. Made by `app` and by the commands that read the records. The audit log is written off the
call path: `note` puts a line into a bounded queue, `run` writes batches.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from gateway.errors import StorageError
from gateway.storage.entries import AuditEntry
from gateway.storage.names import DATABASE_FILE
from gateway.storage.state import StateFolder

if TYPE_CHECKING:
    from gateway.storage.asks import Asks
    from gateway.storage.audit import AuditLog
    from gateway.storage.budget import SamplingUse
    from gateway.storage.engine import Database
    from gateway.storage.rules import ApprovalRules
    from gateway.storage.sessions import Sessions
    from gateway.storage.tasks import TaskRows

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000
"""Audit lines that wait to be written; more are dropped and counted, because a full disk must not fill the memory."""

BATCH_SECONDS = 0.05
"""Lines that come within this time are written together."""

RETRY_SECONDS = 2.0
"""Pause after the database refused a batch."""

PRUNE_SECONDS = 3600.0
"""How often lines past their time are removed."""

_DAY_SECONDS = 86_400.0

_ORPHANS = "SELECT 1 FROM tasks WHERE gone_at = 0 AND NOT EXISTS (SELECT 1 FROM task_owners WHERE id = tasks.owner AND until >= ?)"
_OWN_ORPHANS = f"{_ORPHANS} AND gateway IN ('', ?) LIMIT 1"


@dataclass(frozen=True, slots=True)
class _Opened:
    database: Database
    audit: AuditLog
    asks: Asks
    budget: SamplingUse
    sessions: Sessions
    tasks: TaskRows
    rules: ApprovalRules


class Records:
    """The gateway's records. `run` it in a task group of the owner; `aclose` it at the end."""

    def __init__(self, state: StateFolder, *, audit_days: int, url: str | None = None, gateway: str = "") -> None:
        """No side effects. With a `url` the database is on a server instead of in the state folder.

        `gateway` says whose tasks, sessions, budgets and standing approvals these are, for gateways of different configurations that
        share a state folder. Gateways that share a server are equals.
        """
        self._gateway = gateway if url is None else ""
        self._state = state
        self._url = url
        self._audit_days = audit_days
        self._opened: _Opened | None = None
        self._opening = anyio.Lock()
        self._writing = anyio.Lock()
        self._queue: deque[AuditEntry] = deque()
        self._dropped = 0
        self._wake = anyio.Event()
        self._pruned_at = 0.0
        self._keys: dict[str, bytes] = {}

    @property
    def is_open(self) -> bool:
        """Whether the database is in use yet."""
        return self._opened is not None

    async def audit(self) -> AuditLog:
        """The audit log, for reading. Raises `StorageError`."""
        return (await self._open()).audit

    async def asks(self) -> Asks:
        """The pending questions. Raises `StorageError`."""
        return (await self._open()).asks

    async def rules(self) -> ApprovalRules:
        """The standing approvals. Raises `StorageError`."""
        return (await self._open()).rules

    async def budget(self) -> SamplingUse:
        """The sampling requests counted. Raises `StorageError`."""
        return (await self._open()).budget

    async def sessions(self) -> Sessions:
        """The conversations of callers with agents. Raises `StorageError`."""
        return (await self._open()).sessions

    async def database(self) -> Database:
        """The database itself, for repositories of rooms above. Raises `StorageError`."""
        return (await self._open()).database

    async def tasks(self) -> TaskRows:
        """The long-running work. Raises `StorageError`."""
        return (await self._open()).tasks

    def has_orphans(self, now: float) -> bool:
        """Whether unfinished work of a process that died is there, without opening the database. Blocking.

        A look at the file with the standard library, because a start must not pay for the database driver. On a server
        it cannot be told so cheaply: always true there.
        """
        if self._url is not None:
            return True
        import sqlite3

        path = self._state.path / DATABASE_FILE
        if not path.exists():
            return False
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as raw:
                has_gateway = any(column[1] == "gateway" for column in raw.execute("PRAGMA table_info(tasks)"))
                is_own = has_gateway and bool(self._gateway)  # the database may be of an earlier version
                found = raw.execute(_OWN_ORPHANS, (now, self._gateway)).fetchone() if is_own else raw.execute(_ORPHANS, (now,)).fetchone()
        except sqlite3.Error:
            return False  # an older schema without tasks, or busy: looked at again soon
        return found is not None

    async def key(self, purpose: str) -> bytes:
        """The installation's key for `purpose` (`StateFolder.key`). Raises `StorageError`."""
        known = self._keys.get(purpose)
        if known is None:
            known = self._keys[purpose] = await anyio.to_thread.run_sync(self._state.key, purpose)
        return known

    async def _open(self) -> _Opened:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            return self._opened or await self._open_first()

    async def _open_first(self) -> _Opened:
        # A cancelled opening is finished all the same: threads are not abandoned by default.
        opened = await anyio.to_thread.run_sync(self._open_now)
        self._opened = opened
        return opened

    def _open_now(self) -> _Opened:
        from gateway.storage.asks import Asks
        from gateway.storage.audit import AuditLog
        from gateway.storage.budget import SamplingUse
        from gateway.storage.engine import open_database, open_url
        from gateway.storage.rules import ApprovalRules
        from gateway.storage.sessions import Sessions
        from gateway.storage.tasks import TaskRows

        folder = self._state.ensure()
        database = open_url(self._url) if self._url is not None else open_database(folder)
        audit = AuditLog(database, self._state.key("audit"))
        rules = ApprovalRules(database, self._gateway)
        own = self._gateway
        rows = Asks(database), SamplingUse(database, own), Sessions(database, own), TaskRows(database, own), rules
        return _Opened(database, audit, *rows)

    # -- the audit log's writing side --------------------------------------------------------------------------

    def note(self, entry: AuditEntry) -> None:
        """Put one line into the queue; never waits, never raises."""
        if len(self._queue) >= MAX_QUEUED:
            self._dropped += 1
            return
        self._queue.append(entry)
        self._wake.set()

    async def flush(self) -> None:
        """Return when every line noted so far is committed.

        Raises:
            StorageError: It cannot be written; the lines stay in the queue.
        """
        async with self._writing:
            if not self._queue:
                return
            batch = list(self._queue)
            if self._dropped:
                batch.append(AuditEntry(time.time(), "audit.dropped", fields={"lines": self._dropped}))
            dropped = self._dropped
            log = (await self._open()).audit
            with anyio.CancelScope(shield=True):  # what is committed must leave the queue
                await log.append(batch)
                self._dropped -= dropped
                for _ in range(len(batch) - bool(dropped)):
                    self._queue.popleft()
            if time.monotonic() - self._pruned_at > PRUNE_SECONDS or not self._pruned_at:
                self._pruned_at = time.monotonic()
                await log.prune(time.time() - self._audit_days * _DAY_SECONDS)

    async def run(self) -> None:
        """Write what is noted, until cancelled."""
        while True:
            await self._wake.wait()
            await anyio.sleep(BATCH_SECONDS)
            self._wake = anyio.Event()
            try:
                await self.flush()
            except StorageError as error:
                logger.warning("The audit log cannot be written (%d lines wait): %s", len(self._queue), error)
                await anyio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def aclose(self) -> None:
        """Write what is left and close the database, if it was opened."""
        with anyio.CancelScope(shield=True):
            try:
                await self.flush()
            except StorageError as error:
                logger.warning("%d lines of the audit log were lost: %s", len(self._queue), error)
            if self._opened is not None:
                opened, self._opened = self._opened, None
                await opened.database.aclose()
