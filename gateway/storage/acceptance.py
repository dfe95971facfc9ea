"""The record of what may be executed: one file per configuration in a state folder, readable by its user alone.

It keeps salted digests, never an entry itself, because entries may have secrets in them. Processes change it under a lock. Everything
here blocks; what a record means is `policy.acceptance`'s affair.
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
from gateway.storage.files import locked, read_json, write_atomic
from gateway.storage.state import StateFolder

FOLDER = "accepted"
VERSION = 1


@dataclass(slots=True)
class Acceptances:
    """The content of one record."""

    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    accepted: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Key → salted digest of what was accepted last."""
    held: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Key → where the entry that is held back is written."""
    homes: list[str] = field(default_factory=lambda: cast("list[str]", []))
    """State folders that have a record of the same configuration."""
    has_run: bool = False
    """Whether a gateway was started with the configuration, so that others than the user may have changed it since."""
    edition: int = 0
    """Grows with everything that a person accepts, so that running gateways look again."""

    def accepts(self, key: str, digest: str) -> bool:
        """Whether exactly this was accepted."""
        return self.accepted.get(key) == self._salted(digest)

    def accept(self, key: str, digest: str) -> None:
        """Accept this form of an entry and no other."""
        self.accepted[key] = self._salted(digest)
        self.held.pop(key, None)

    def _salted(self, digest: str) -> str:
        return hashlib.sha256(f"{self.salt} {digest}".encode()).hexdigest()


class AcceptanceRecord:
    """The file of one configuration in one state folder."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        """No side effects."""
        # A link in the place of the file must not lead to another record, so only the folder is resolved.
        place = os.path.join(os.path.realpath(configuration.parent), configuration.name)
        name = hashlib.sha256(place.encode()).hexdigest()[:32]
        self._configuration = configuration
        self.folder = folder
        self.path = folder / FOLDER / f"{name}.json"

    def read(self) -> Acceptances:
        """Return the recorded content, or an empty record if the file does not exist.

        Raises:
            StorageError: The file cannot be used. It never counts as empty, because an empty one holds nothing back.
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
        """Read, change and write the record while no other process does.

        Raises:
            StorageError: It cannot be read or written.
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
        text = f"{str(self.path)!r} is damaged or of a later version, so it is not known which programs may run."
        return StorageError(f"{text} Restore it, or delete it and start the gateway: that accepts what the configuration says then.")
