"""`Records`: opens the gateway's database on first use, gives access to its stores, and writes the audit log in the background.

Importing this module is cheap: the database driver is imported, and the database opened, in a thread on first use. `app`, and the commands
that read the database, create the `Records` object. `audit_writer` queues the entries of the audit log and writes them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from gateway.storage.audit_writer import AuditWriter
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.record_types import PROCESS_CHARS, AuditEntry
from gateway.storage.shared_clock import forget_shared_clock
from gateway.storage.state_folder import StateFolder

if TYPE_CHECKING:
    from gateway.storage.agent_sessions import Sessions
    from gateway.storage.approval_rules import ApprovalRules
    from gateway.storage.audit import AuditLog
    from gateway.storage.client_sessions import ClientSessions
    from gateway.storage.engine import Database
    from gateway.storage.loaded_tools import LoadedTools
    from gateway.storage.pending_questions import PendingQuestions
    from gateway.storage.replica_rows import ReplicaRows
    from gateway.storage.sampling_use import SamplingUse
    from gateway.storage.server_leases import ServerLeases
    from gateway.storage.task_rows import TaskRows

_ORPHANS = (
    "SELECT 1 FROM tasks WHERE gone_at = 0 AND "
    f"NOT EXISTS (SELECT 1 FROM task_owners WHERE id = substr(tasks.owner, 1, {PROCESS_CHARS}) AND until >= ?)"
)
_OWN_ORPHANS = f"{_ORPHANS} AND gateway IN ('', ?) LIMIT 1"


@dataclass(frozen=True, slots=True)
class _Opened:
    database: Database
    audit: AuditLog
    questions: PendingQuestions
    budget: SamplingUse
    sessions: Sessions
    tasks: TaskRows
    rules: ApprovalRules


class Records:
    """Opens the gateway's database on first use, and returns the store of each kind of record. Also writes the audit log.

    The owner runs `run` in a task group, and finally calls `aclose`.
    """

    def __init__(self, state: StateFolder, *, audit_days: int, url: str | None = None, gateway: str = "") -> None:
        """Store the settings without opening the database. Without `url` (of a PostgreSQL server), it is in the state folder.

        Audit entries are deleted after `audit_days`. `gateway` is an id that separates the tasks, agent sessions, counted sampling requests
        and standing approvals of configurations that share a state folder. If `url` is set, `gateway` is ignored, because gateways that
        share a database server share all records.
        """
        self._gateway = gateway if url is None else ""
        self._state = state
        self._url = url
        self.writer = AuditWriter(self.audit, audit_days)
        """Queues and writes the entries of the audit log."""
        self._opened: _Opened | None = None
        self._opening = anyio.Lock()
        self._keys: dict[str, bytes] = {}
        self._client_sessions: ClientSessions | None = None

    @property
    def is_open(self) -> bool:
        """Whether the database has been opened."""
        return self._opened is not None

    async def audit(self) -> AuditLog:
        """Open the database if necessary, and return the audit log. Raises `StorageError`."""
        return (await self._open()).audit

    async def questions(self) -> PendingQuestions:
        """Open the database if necessary, and return the store of questions that wait for a person's answer. Raises `StorageError`."""
        return (await self._open()).questions

    async def rules(self) -> ApprovalRules:
        """Open the database if necessary, and return the store of standing approvals. Raises `StorageError`.

        A standing approval is the decision of an operator that a principal may call a tool without asking each time.
        """
        return (await self._open()).rules

    async def budget(self) -> SamplingUse:
        """Open the database if necessary, and return the store that counts servers' sampling requests. Raises `StorageError`.

        The count enforces the limit on a server's sampling requests per hour.
        """
        return (await self._open()).budget

    async def sessions(self) -> Sessions:
        """Open the database if necessary, and return the store of sessions (conversations with agents). Raises `StorageError`."""
        return (await self._open()).sessions

    async def client_sessions(self) -> ClientSessions:
        """Open the database if necessary, and return the store of 2025 sessions that replicas share. Raises `StorageError`."""
        from gateway.storage.client_sessions import ClientSessions

        database = (await self._open()).database
        if self._client_sessions is None:  # kept, because it reads sessions in batches
            self._client_sessions = ClientSessions(database)
        return self._client_sessions

    async def loaded_tools(self) -> LoadedTools:
        """Open the database if necessary, and return the store of the on-demand tools that clients have loaded. Raises `StorageError`."""
        from gateway.storage.loaded_tools import LoadedTools

        return LoadedTools((await self._open()).database)

    async def replicas(self) -> ReplicaRows:
        """Open the database if necessary, and return the table of running replicas. Raises `StorageError`."""
        from gateway.storage.replica_rows import ReplicaRows

        return ReplicaRows((await self._open()).database)

    async def server_leases(self) -> ServerLeases:
        """Open the database if necessary, and return the leases of stdio servers with `single: true`. Raises `StorageError`."""
        from gateway.storage.server_leases import ServerLeases

        return ServerLeases((await self._open()).database)

    async def database(self) -> Database:
        """Open the database if necessary, and return it, for stores in other packages. Raises `StorageError`."""
        return (await self._open()).database

    async def tasks(self) -> TaskRows:
        """Open the database if necessary, and return the store of tasks (calls that run in the background). Raises `StorageError`."""
        return (await self._open()).tasks

    def has_orphans(self, now: float) -> bool:
        """Return whether there may be orphans: unfinished tasks of stopped or dead processes, which this process can take over. Blocks.

        Reads the SQLite file with the standard library, because the start of a gateway must not wait for the import of the database driver.
        Returns false if the file is busy. Always returns true for a PostgreSQL server, which cannot be queried without the driver.
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
                is_own = has_gateway and bool(self._gateway)  # an earlier schema has no gateway column
                found = raw.execute(_OWN_ORPHANS, (now, self._gateway)).fetchone() if is_own else raw.execute(_ORPHANS, (now,)).fetchone()
        except sqlite3.Error:
            return False  # the schema is too old to have tasks, or the file is busy; the caller checks again soon
        return found is not None

    async def key(self, purpose: str) -> bytes:
        """Return the 32-byte secret key of this installation for `purpose`, a fixed text that names what the key protects.

        Raises `StorageError`.
        """
        known = self._keys.get(purpose)
        if known is None:
            known = self._keys[purpose] = await anyio.to_thread.run_sync(self._state.key, purpose)
        return known

    async def _open(self) -> _Opened:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                # Even a cancelled caller waits for the thread (anyio's default), so the database is never opened twice.
                opened = await anyio.to_thread.run_sync(self._open_now)
                if self._url is not None:
                    await self._verify(opened.database)
                self._opened = opened
            return self._opened

    async def _verify(self, database: Database) -> None:
        """Check that gateways that share the database have the same installation key, and measure the database's clock.

        If the check fails, close the database and raise an error.
        """
        from gateway.storage.change_feed import measure_clock
        from gateway.storage.installation import PURPOSE, verify_installation

        try:
            await verify_installation(database, await self.key(PURPOSE))
            async with database.begin() as connection:
                await measure_clock(connection)
        except BaseException:
            await database.aclose()
            raise

    def _open_now(self) -> _Opened:
        from gateway.storage.agent_sessions import Sessions
        from gateway.storage.approval_rules import ApprovalRules
        from gateway.storage.audit import AuditLog
        from gateway.storage.engine import open_database, open_url
        from gateway.storage.pending_questions import PendingQuestions
        from gateway.storage.sampling_use import SamplingUse
        from gateway.storage.task_rows import TaskRows

        folder = self._state.ensure()
        database = open_url(self._url) if self._url is not None else open_database(folder)
        audit = AuditLog(database, self._state.key("audit"))
        rules = ApprovalRules(database, self._gateway)
        own = self._gateway
        rows = PendingQuestions(database), SamplingUse(database, own), Sessions(database, own), TaskRows(database, own), rules
        return _Opened(database, audit, *rows)

    # -- writing the audit log ---------------------------------------------------------------------------------

    def note(self, entry: AuditEntry) -> None:
        """Queue one decision for the audit log, which `run` writes at once. Never waits or raises."""
        self.writer.note(entry)

    async def flush(self) -> None:
        """Write all queued audit entries, and return when they are committed.

        Raises:
            StorageError: The entries cannot be written and stay in the queue, or expired entries cannot be deleted.
        """
        await self.writer.flush()

    async def run(self) -> None:
        """Write queued audit entries in batches, until cancelled."""
        await self.writer.run()

    async def aclose(self) -> None:
        """Write the remaining audit entries, and close the database if it is open. Entries that cannot be written are lost (logged)."""
        with anyio.CancelScope(shield=True):
            await self.writer.finish()
            if self._opened is not None:
                opened, self._opened = self._opened, None
                await opened.database.aclose()
            if self._url is not None:
                forget_shared_clock()
