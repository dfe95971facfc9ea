"""`AcceptanceRecord`: the file that records which configuration entries a person has accepted, so that the gateway may run their programs.

There is one file per configuration in each state folder, and only its user can read it. The file contains salted digests, because entries
may contain secrets. Processes change the file under a lock. `policy.acceptance_rule` uses the record to decide which entries may run. Every
function blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gateway.errors import StorageError
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import locked, read_json, write_atomic
from gateway.storage.state_folder import StateFolder

FOLDER = "accepted"
VERSION = 1


@dataclass(slots=True)
class Acceptances:
    """Content of the acceptance record of one configuration: which of its entries are accepted, and which wait for acceptance.

    An entry is a part of the configuration that names commands to run, such as a server. A person accepts new and changed entries
    (`moongate lock --accept`) before the gateway runs their commands, because somebody else may have written them.
    """

    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    accepted: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Key of each accepted entry of the configuration (such as `mcpServers.files`) → salted digest of the accepted content."""
    held: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Key of each entry of the configuration whose commands do not run until a person accepts them → file and place of the entry."""
    homes: list[str] = field(default_factory=lambda: cast("list[str]", []))
    """Paths of all known state folders with an acceptance record of the same configuration.

    A process that runs with another home folder has another state folder. It finds the other records by these paths.
    """
    has_run: bool = False
    """Whether a gateway has run with this configuration.

    After the first run, new entries need acceptance, because somebody other than the user may have written them."""
    edition: int = 0
    """Number that increases with each acceptance of entries, so that the file changes. A running gateway then reads the file again."""

    def accepts(self, key: str, digest: str) -> bool:
        """Return whether a person has accepted the entry `key` of the configuration with exactly the content that has this digest."""
        return self.accepted.get(key) == self._salted(digest)

    def accept(self, key: str, digest: str) -> None:
        """Record that a person accepts the entry `key` of the configuration with the content that has this digest.

        Content of the entry that was accepted earlier is no longer accepted.
        """
        self.accepted[key] = self._salted(digest)
        self.held.pop(key, None)

    def _salted(self, digest: str) -> str:
        return hashlib.sha256(f"{self.salt} {digest}".encode()).hexdigest()


class AcceptanceRecord:
    """Reads and writes the file in a state folder that records which entries of one configuration a person has accepted."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        """Compute the path of the file from the state folder `folder` and the configuration file. No file is opened."""
        # Only the folder is resolved, because a symbolic link in place of the configuration file must not select another record.
        place = os.path.join(os.path.realpath(configuration.parent), configuration.name)
        name = hashlib.sha256(place.encode()).hexdigest()[:32]
        self._configuration = configuration
        self.folder = folder
        self.path = folder / FOLDER / f"{name}.json"

    def read(self) -> Acceptances:
        """Read the record file; return an empty record if the file does not exist.

        Raises:
            StorageError: The file is unreadable or damaged. A damaged file does not count as empty, because an empty record lets all
            entries run without acceptance.
        """
        try:
            document = read_json(self.path)
        except FileNotFoundError:
            return Acceptances()
        found = cast("JsonObject", document if isinstance(document, dict) else {})
        salt, accepted, held, edition = (found.get(key) for key in ("salt", "accepted", "held", "edition"))
        if found.get("version") != VERSION or not isinstance(salt, str) or not isinstance(edition, int):
            raise self._damaged()
        homes = found.get("homes")
        if not isinstance(homes, list) or not all(isinstance(home, str) for home in cast("list[object]", homes)):
            raise self._damaged()
        has_run = found.get("hasRun") is True
        return Acceptances(salt, self._texts(accepted), self._texts(held), cast("list[str]", homes), has_run, edition)

    def change(self, edit: Callable[[Acceptances], object]) -> None:
        """Read the record, let `edit` change it, and write the changed record. The file's lock is held meanwhile.

        Raises:
            StorageError: The file cannot be read or written.
        """
        StateFolder(self.folder).ensure()
        StateFolder(self.path.parent).ensure()
        with locked(self.path):
            content = self.read()
            before = replace(content, accepted=dict(content.accepted), held=dict(content.held), homes=list(content.homes))
            edit(content)
            if content != before:
                document: JsonObject = {
                    "version": VERSION,
                    "configuration": str(self._configuration),
                    "salt": content.salt,
                    "hasRun": content.has_run,
                    "edition": content.edition,
                    "homes": list(content.homes),
                    "accepted": dict(sorted(content.accepted.items())),
                    "held": dict(sorted(content.held.items())),
                }
                write_atomic(self.path, f"{json.dumps(document, indent=1)}\n".encode())

    def _texts(self, value: object) -> dict[str, str]:
        items = cast("dict[object, object]", value) if isinstance(value, dict) else None
        if items is None or not all(isinstance(key, str) and isinstance(text, str) for key, text in items.items()):
            raise self._damaged()
        return cast("dict[str, str]", dict(items))

    def _damaged(self) -> StorageError:
        text = f"{str(self.path)!r} is damaged or from a newer version, so it is unknown which programs may run."
        return StorageError(f"{text} Restore it, or delete it and start the gateway: that accepts everything in the configuration.")
