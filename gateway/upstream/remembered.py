"""The persisted catalog: what a server listed last, so that a restarted gateway lists it before the server has started.

One file per server and digest of its entry in the state folder, replaced whole, so any of several processes may write
it. Holds what servers say, no secret of ours; a file that cannot be used counts as missing. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.config.models import ServerEntry
from gateway.errors import StorageError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.storage.files import MAX_JSON_BYTES, make_private_folder, read_json, write_atomic

logger = logging.getLogger(__name__)

FOLDER = "catalog"
VERSION = 1
LISTS = ("tools", "resources", "templates", "prompts")
_NAME_OF = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}


@dataclass(frozen=True, slots=True)
class Remembered:
    """One complete listing of a server and what was agreed with it."""

    lists: dict[str, list[JsonObject]]
    """`tools`, `resources`, `templates` and `prompts` as wire objects."""
    is_modern: bool
    protocol_version: str
    instructions: str | None


def state_file_name(server: str, entry: ServerEntry) -> str:
    """The name of a file about what the server of an entry lists: another program, address or argument makes another file."""
    # Environment and headers hold secrets and rarely decide what is listed.
    known = entry.model_dump(mode="json", include={"type", "command", "args", "cwd", "url"})
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    return f"{server}-{digest}.json"


class Memory:
    """The file of one server. Nothing is touched until it is used."""

    def __init__(self, state_folder: Path, server: str, entry: ServerEntry) -> None:
        """`entry` as loaded: another program, address or argument makes another file."""
        self._file = state_folder / FOLDER / state_file_name(server, entry)
        self._last: Remembered | None = None

    def recall(self) -> Remembered | None:
        """What was kept last; `None` where there is nothing that can be used, said once in the log."""
        try:
            self._last = _parse(read_json(self._file))
        except FileNotFoundError:
            return None
        except (StorageError, ValueError) as error:
            logger.warning("The kept listing is not used: %s", error)
        return self._last

    def keep(self, listing: Remembered) -> None:
        """Keep a listing, unless it is the one kept already; a failure costs only the next start some time."""
        if listing == self._last:
            return
        document = {
            "version": VERSION,
            "isModern": listing.is_modern,
            "protocolVersion": listing.protocol_version,
            "instructions": listing.instructions,
            "lists": listing.lists,
        }
        data = json.dumps(document).encode()
        if len(data) > MAX_JSON_BYTES:
            return
        try:
            make_private_folder(self._file.parent)
            write_atomic(self._file, data)
        except (OSError, StorageError) as error:
            logger.warning("The listing of a server could not be kept: %s", error)
            return
        self._last = listing


def _parse(document: JsonValue) -> Remembered:
    """A kept document.

    Raises:
        ValueError: It is not one of ours.
    """
    if not isinstance(document, dict):
        raise ValueError("it holds no object")
    found = cast("JsonMapping", document)
    lists, instructions, protocol = found.get("lists"), found.get("instructions"), found.get("protocolVersion")
    if found.get("version") != VERSION or not isinstance(lists, dict) or not isinstance(protocol, str):
        raise ValueError("it is of another version or was not written by this gateway")
    if not (instructions is None or isinstance(instructions, str)):
        raise ValueError("its instructions are no text")
    kept: dict[str, list[JsonObject]] = {}
    for kind in LISTS:
        entries = cast("JsonMapping", lists).get(kind)
        if not isinstance(entries, list):
            raise ValueError(f"it has no list of {kind}")
        for entry in cast("list[JsonValue]", entries):
            if not isinstance(entry, dict) or not isinstance(cast("JsonMapping", entry).get(_NAME_OF[kind]), str):
                raise ValueError(f"its list of {kind} is damaged")
        kept[kind] = cast("list[JsonObject]", entries)
    return Remembered(kept, found.get("isModern") is True, protocol, instructions)
