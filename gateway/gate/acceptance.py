"""`Acceptance`: prevents new or changed commands of a configuration from running until a person accepts them (`moongate lock --accept`).

`config.executes` lists the entries of a configuration that run a command or code. `policy.acceptance_rule` decides which entries may run,
and `storage.acceptance_record` stores which entries a person has accepted. A gateway uses one `Acceptance` object from start to stop. While
the gateway starts, every entry may run that did not wait for acceptance before, because the user started the gateway. After `settle`, an
entry may run if it ran at the start, or if a person has accepted it. `moongate add` and `moongate lock` use this module to accept entries.

Decided: the record is written to the configured state folder and to the user's default state folder. Because: a configuration that
changes `storage.dir` would otherwise begin with an empty record, with which everything may run. Revisit when: the configuration file no
longer names the state folder.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.config.executes import RunEntry
from gateway.config.load import LoadedConfig
from gateway.config.models import ServerEntry, StdioServer
from gateway.config.read_entries import DisabledServer
from gateway.config.skill_settings import ScriptSettings
from gateway.config.watch import FileWatch
from gateway.errors import StorageError, StorageUnusable
from gateway.policy.acceptance_rule import Recorded, may_run
from gateway.storage.acceptance_record import AcceptanceRecord, Acceptances
from gateway.storage.state_folder import default_state_dir, state_dir
from gateway.telemetry.gateway_events import EventStream

logger = logging.getLogger(__name__)

_OF_FILES = ("agent/", "workflow/")
"""Prefixes of the keys by which this module identifies commands and modules that a file of an agent or workflow names.

All other commands and modules that a person must accept are named in the configuration file, and have keys without these prefixes."""


class Acceptance:
    """Decides which of the commands, Python modules and scripts in a configuration may run.

    While the gateway starts, all of them may run, except those that already waited for acceptance. Later, only those may run that ran at
    the start or that a person has accepted. Implements `config.executes.Admission`. All methods except `follow` block; use the object from
    one thread at a time.
    """

    def __init__(self, *, is_start: bool = True, records_start: bool = False) -> None:
        """With `is_start`, commands need no acceptance until `settle` is called, because the user just started the gateway.

        A command that already waited for acceptance still waits. With `records_start`, `settle` records the commands that ran as accepted.
        """
        self._is_start = is_start
        self._records_start = records_start
        self._records: list[tuple[AcceptanceRecord, Acceptances]] = []
        self._running: dict[str, str] = {}
        self._logged: dict[str, str] = {}
        self._new_events: list[tuple[str, RunEntry]] = []
        self.held: dict[str, RunEntry] = {}
        """Configuration entries whose commands wait until a person accepts them, by key: a server's name, `expose.functions.NAME`, …"""
        self.kept: dict[str, str] = {}
        """Servers that still run with their earlier configuration entry, because nobody has accepted the changed entry yet.

        Maps the server's name to the key of the changed entry."""

    async def follow(self, read_again: Callable[[], None]) -> None:
        """Watch the file that records which commands a person has accepted, until cancelled.

        When the file changes, call `read_again` if commands of the configuration wait until a person accepts them.

        Returns at once if `open` was not called before.
        """
        if self._records:
            watch = await anyio.to_thread.run_sync(FileWatch, self._records[0][0].path)
            while True:
                await watch.changed()
                if self.held:
                    read_again()

    # -- deciding ----------------------------------------------------------------------------------------------

    def open(self, configuration: Path, state_folder: str | None) -> None:
        """Read from the state folders which commands of the file `configuration` a person has accepted.

        `state_folder` is `storage.dir` of the configuration. Later calls read the same folders again, and ignore their arguments.

        Raises:
            StorageError: A record is damaged or cannot be read.
        """
        if self._records:
            self._records = [(record, record.read()) for record, _ in self._records]
            return
        for number, folder in enumerate(_homes(state_folder)):
            record = AcceptanceRecord(folder, configuration)
            try:
                self._records.append((record, record.read()))
            except StorageUnusable:
                if number == 0:
                    raise
        # A gateway that ran with another HOME than this process has a record in that home folder.
        for home in [home for _, content in self._records for home in content.homes]:
            record = AcceptanceRecord(Path(home), configuration)
            if all(record.path != known.path for known, _ in self._records) and record.path.is_file():
                self._records.append((record, record.read()))

    def refusal(self, entry: RunEntry) -> str | None:
        """Return why the command of the configuration entry `entry` may not run, and how a person accepts it; `None` if it may run.

        A refused entry is added to `held`, the entries that wait until a person accepts them.
        """
        key, digest = entry.key, entry.digest
        recorded = [Recorded(content.accepts(key, digest), key in content.held, content.has_run) for _, content in self._records]
        if may_run(recorded, is_running=self._running.get(key) == digest, is_start=self._is_start):
            self._running[key] = digest
            if key in self.held:
                self._new_events.append(("command.accepted", entry))
            self._release([key])
            return None
        self.held[key] = entry
        if self._logged.get(key) != digest:
            self._logged[key] = digest
            self._new_events.append(("command.held", entry))
            logger.warning("not started, waits for acceptance key=%s place=%s accept='moongate lock --accept %s'", key, entry.place, key)
        if not all(key in content.held for _, content in self._records):
            self._change(lambda content: content.held.update({key: entry.place}))
        return f"It is new or changed, and nobody accepted it. `moongate lock --accept {key}` shows what would run and accepts it."

    def _release(self, keys: Iterable[str]) -> None:
        """Record, in `held` and on disk, that the configuration entries with these keys no longer wait until a person accepts them."""
        gone = [key for key in keys if self.held.pop(key, None) or any(key in content.held for _, content in self._records)]
        for key in gone:
            self._logged.pop(key, None)
        if any(key in content.held for key in gone for _, content in self._records):
            self._change(lambda content: [content.held.pop(key, None) for key in gone])

    def admit(self, written: LoadedConfig, running: LoadedConfig | None) -> LoadedConfig:
        """Return a copy of a configuration that leaves out the entries whose commands a person must accept before they run.

        `written` is this configuration, as it was read from its file, and `running` the configuration in use. If `running` has an earlier
        version of a server, of `skills.scripts` or of `agents.middleware`, the copy contains the earlier version instead of the entry that
        is left out. Without `running`, `agents.middleware` is not left out: `agents.source` calls `refusal` before it imports the modules.

        Raises:
            StorageError: A record is damaged.
        """
        if written.path is None:
            return written
        self.open(written.path, written.config.storage.dir)
        entries = {entry.key: entry for entry in written.runs}
        # Entries in files of agents and workflows are judged when these files are read, again after each change if they wait.
        self.held = {key: entry for key, entry in self.held.items() if key in entries}
        refused = {key for key, entry in entries.items() if self.refusal(entry) is not None}
        self._release([key for key in self._recorded_as_held() if key not in entries and not key.startswith(_OF_FILES)])
        before = running.config.mcp_servers if running is not None else {}
        servers, disabled = self._servers(written, before, refused)
        config = written.config
        expose, skills, agents = config.expose, config.skills, config.agents
        functions = [name for name in expose.functions if f"expose.functions.{name}" not in refused]
        objects = [name for name in skills.objects if f"skills.objects.{name}" not in refused]
        skills = skills.model_copy(update={"objects": objects})
        if "skills.scripts" in refused:
            scripts = running.config.skills.scripts if running is not None else ScriptSettings()
            skills = skills.model_copy(update={"scripts": scripts})
        if "agents.middleware" in refused and running is not None:
            agents = agents.model_copy(update={"middleware": running.config.agents.middleware})
        expose = expose.model_copy(update={"functions": functions})
        config = config.model_copy(update={"mcp_servers": servers, "expose": expose, "skills": skills, "agents": agents})
        return dataclasses.replace(written, config=config, disabled=disabled)

    def _servers(
        self, written: LoadedConfig, before: dict[str, ServerEntry], refused: set[str]
    ) -> tuple[dict[str, ServerEntry], list[DisabledServer]]:
        """Divide the servers of the configuration file (`written`) into those that may start, and those that may not.

        Return the entries of the servers that may start, by name, and a list of the other servers. `refused` has the keys of the entries
        whose commands wait until a person accepts them. A server with such an entry may start with its earlier entry in `before`, if there
        is one.
        """
        servers: dict[str, ServerEntry] = {}
        disabled: list[DisabledServer] = []
        self.kept = {}
        for name, entry in written.config.mcp_servers.items():
            if name not in refused or not isinstance(entry, StdioServer):
                servers[name] = entry
            elif name in before:
                servers[name], self.kept[name] = before[name], name
            else:
                disabled.append(DisabledServer(name, f"mcpServers.{name}", _waiting_text(name), "stdio", name))
        for server in written.disabled:
            if server.waits_for and server.name in before:
                servers[server.name], self.kept[server.name] = before[server.name], server.waits_for
            else:
                disabled.append(server)
        return servers, disabled

    def _recorded_as_held(self) -> set[str]:
        return {key for _, content in self._records for key in content.held}

    # -- recording ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End the start phase of the gateway, in which commands of the configuration may run without acceptance.

        From now on, a command may run only if a person accepted it, or if it already ran unchanged in the start phase.
        """
        is_start, self._is_start = self._is_start, False
        running = dict(self._running)
        if not is_start or not self._records_start or not (running or self._recorded_as_held()):
            return

        def edit(content: Acceptances) -> None:
            for key, digest in running.items():
                content.accept(key, digest)
            content.has_run = True

        self._change(edit)

    def accept(self, entries: Sequence[RunEntry]) -> None:
        """Record that a person accepts the commands of these configuration entries. `open` must have been called with the configuration.

        Raises:
            StorageError: The record cannot be written.
        """

        def edit(content: Acceptances) -> None:
            for entry in entries:
                content.accept(entry.key, entry.digest)
            content.homes = self._homes()
            content.edition += 1

        for number, (record, _) in enumerate(self._records):
            try:
                record.change(edit)
            except StorageError:
                if number == 0:
                    raise

    def waits(self, entry: RunEntry) -> bool:
        """Return whether a running gateway would wait until a person accepts the configuration entry `entry`, before it runs its command.

        False if no gateway has run with the configuration or refused the entry yet, because the first start runs all commands.
        """
        known = [content for _, content in self._records if content.has_run or entry.key in content.held]
        return not all(content.accepts(entry.key, entry.digest) for content in known)

    def places_held(self) -> dict[str, str]:
        """Return the entries that wait until a person accepts their commands, according to the records on disk.

        Maps the key of each entry to the place where the entry is written, such as a path in the configuration file.
        """
        return {key: place for _, content in self._records for key, place in content.held.items()}

    def emit_events(self, events: EventStream) -> None:
        """Emit an event for each configuration entry that began to wait for a person's acceptance, or was accepted, since the last call."""
        new, self._new_events = self._new_events, []
        for kind, entry in new:
            events.emit(kind, name=entry.key, fields={"place": entry.place})

    def _homes(self) -> list[str]:
        return sorted(str(record.folder) for record, _ in self._records)

    def _change(self, edit: Callable[[Acceptances], object]) -> None:
        def all_of_it(content: Acceptances) -> None:
            edit(content)
            content.homes = self._homes()

        for number, (record, content) in enumerate(self._records):
            edit(content)
            try:
                record.change(all_of_it)
            except StorageError as error:
                if number == 0:
                    logger.warning("acceptance state not stored, a restart would lose it error=%s", error)


def _homes(state_folder: str | None) -> list[Path]:
    """Return the folders that store which commands a person has accepted.

    These are the configured state folder (`state_folder`, from `storage.dir`), and the user's default state folder if it is another one.
    """
    homes = [state_dir(state_folder)]
    try:
        own = default_state_dir()
    except StorageError:
        return homes
    return homes if os.path.realpath(own) == os.path.realpath(homes[0]) else [*homes, own]


def _waiting_text(name: str) -> str:
    return f"Its command is new or changed and was not started. `moongate lock --accept {name}` shows it and accepts it."
