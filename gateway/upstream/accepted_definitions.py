"""`AcceptedDefinitions`: the definitions that a server's tools had when first listed, or when a person last accepted them.

One file per server and digest of its entry in the state folder, in the format of the lock file. Several processes may change it under a
lock: the first one that records a tool decides. `policy.pin_check` judges differences. All functions block.
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
"""Native tool name → pinned form."""


class AcceptedDefinitions:
    """The record of one server. Touches no file until it is used."""

    def __init__(self, state_folder: Path, server: str, entry: ServerEntry) -> None:
        """`entry` as loaded, with an absolute `cwd`."""
        self._server = server
        self._state_folder = state_folder
        self._file = state_folder / FOLDER / state_file_name(server, entry)

    def read(self) -> Forms | None:
        """Return the recorded tools; `None` if nothing was recorded yet.

        Raises:
            StorageError: The file is unusable. It never counts as empty, because an empty one pins nothing.
        """
        try:
            return read_pins(self._file).servers.get(self._server)
        except ConfigError:
            text = f"{str(self._file)!r} cannot be read. It holds the definitions of {self._server!r} as they were first listed."
            raise StorageError(f"{text} Restore the file, or delete it: then the next listing is recorded.") from None

    def add(self, found: Forms) -> Forms:
        """Record tools that are not recorded yet, and return the record.

        Raises:
            StorageError: The file cannot be read or written.
        """
        return self._change(lambda known: {**found, **known})

    def accept(self, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        """Replace the recorded tools by the result of `edit`, and notify running gateways.

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
    """Return the file that is written whenever a person accepts a definition. Running gateways then read their records again."""
    return state_folder / FOLDER / "accepted"
