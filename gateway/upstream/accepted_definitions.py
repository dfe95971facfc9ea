"""`AcceptedDefinitions`: stores the definition of each tool of a remote MCP server as first listed, or as a person last accepted it.

The gateway compares later listings with these definitions (`policy.pin_check`). The state folder has one file for each server and digest of
its configuration entry, in the format of the lock file `gateway.lock.json`. Several processes may change a file, one at a time under a file
lock; if two record the same tool, the first definition stays. All functions block. Gateways that share a database use `definition_rows`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gateway.config.models import ServerEntry
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import locked, write_atomic
from gateway.storage.state_folder import StateFolder
from gateway.upstream.listing_cache import state_file_name
from gateway.upstream.pins import Pins, read_pins, write_pins

FOLDER = "pins"

Forms = Mapping[str, JsonObject]
"""Tool definitions by the server's own tool names, with only the members (`PINNED_KEYS`) that are compared with later listings."""


class DefinitionRecord(Protocol):
    """Interface of the recorded tool definitions of one remote MCP server. Methods block, and raise `StorageError`."""

    def read(self) -> Forms | None:
        """Return the recorded definitions of the server's tools, or `None` if nothing was recorded yet."""
        ...

    def add(self, found: Forms) -> Forms:
        """Record those definitions in `found` whose tools are not recorded yet, and return all recorded definitions."""
        ...

    def accept(self, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        """Replace the recorded definitions with the result of `edit`, which receives a copy of them, and notify running gateways."""
        ...


class AcceptedDefinitions:
    """The file with the recorded tool definitions of one remote MCP server. Reads and writes no file before a method is called."""

    def __init__(self, state_folder: Path, server: str, entry: ServerEntry) -> None:
        """Determine the file's path, without side effects. `entry` is the server's configuration entry as loaded, with absolute `cwd`."""
        self._server = server
        self._state_folder = state_folder
        self._file = state_folder / FOLDER / state_file_name(server, entry)
        self.key = self._file.stem
        """Name of the server with a digest of its configuration entry. The record belongs to this key."""

    def read(self) -> Forms | None:
        """Return the recorded definitions of the server's tools, or `None` if nothing was recorded yet.

        Raises:
            StorageError: The file is unusable. It is not treated as empty, because then every changed definition would be accepted.
        """
        try:
            return read_pins(self._file).servers.get(self._server)
        except ConfigError:
            text = f"{str(self._file)!r} cannot be read. It holds the definitions of {self._server!r} as they were first listed."
            raise StorageError(f"{text} Restore the file, or delete it: then the next listing is recorded.") from None

    def add(self, found: Forms) -> Forms:
        """Record those definitions in `found` whose tools are not recorded yet, and return all recorded definitions.

        Raises:
            StorageError: The file cannot be read or written.
        """
        return self._change(lambda known: {**found, **known})

    def accept(self, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        """Replace the recorded definitions with the result of `edit`, which receives a copy of them, and notify running gateways.

        Raises:
            StorageError: The file cannot be read or written.
        """
        self._change(lambda known: dict(edit(known)))
        write_atomic(accepted_mark(self._state_folder), f"{time.time_ns()}\n".encode())

    def _change(self, edit: Callable[[dict[str, JsonObject]], dict[str, JsonObject]]) -> Forms:
        StateFolder(self._state_folder).ensure()
        StateFolder(self._file.parent).ensure()
        with locked(self._file):
            known = self.read()
            changed = edit(dict(known or {}))
            if changed != known:
                write_pins(self._file, Pins({self._server: changed}), mode=0o600)
        return changed


def accepted_mark(state_folder: Path) -> Path:
    """Return the path of a marker file, which is written whenever a person accepts a tool definition.

    Running gateways watch it, and then read the recorded definitions again.
    """
    return state_folder / FOLDER / "accepted"
