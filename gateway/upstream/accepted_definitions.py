"""`AcceptedDefinitions`: the definitions that a server's tools had when first listed, or when a person last accepted them.

The state folder has one file for each server and digest of its configuration entry, in the format of the lock file. Several processes may
change a file under a lock: the first one that records a tool decides. `policy.pin_check` judges differences. All functions block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.config.models import ServerEntry
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import locked, write_atomic
from gateway.storage.state_folder import StateFolder
from gateway.upstream.listing_cache import state_file_name
from gateway.upstream.pins import Pins, read_pins, write_pins

FOLDER = "pins"

Forms = Mapping[str, JsonObject]
"""The pinned parts of tool definitions, by the server's own tool names."""


class AcceptedDefinitions:
    """The recorded tool definitions of one server. Reads and writes no file before a method is called."""

    def __init__(self, state_folder: Path, server: str, entry: ServerEntry) -> None:
        """`entry` is the server's entry in the configuration as loaded, with an absolute `cwd`."""
        self._server = server
        self._state_folder = state_folder
        self._file = state_folder / FOLDER / state_file_name(server, entry)

    def read(self) -> Forms | None:
        """Return the recorded definitions; `None` if nothing was recorded yet.

        Raises:
            StorageError: The file is unusable. It is not treated as empty, because then every changed definition would be accepted.
        """
        try:
            return read_pins(self._file).servers.get(self._server)
        except ConfigError:
            text = f"{str(self._file)!r} cannot be read. It holds the definitions of {self._server!r} as they were first listed."
            raise StorageError(f"{text} Restore the file, or delete it: then the next listing is recorded.") from None

    def add(self, found: Forms) -> Forms:
        """Record the definitions of tools that are not recorded yet, and return all recorded definitions.

        Raises:
            StorageError: The file cannot be read or written.
        """
        return self._change(lambda known: {**found, **known})

    def accept(self, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        """Replace the recorded definitions by what `edit` makes of them, and notify running gateways.

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
    """Return the path of a file that is written whenever a person accepts a definition. Running gateways then read definitions again."""
    return state_folder / FOLDER / "accepted"
