"""`ListingCache`: stores the lists of a server in a file, so that a restarted gateway can serve them before the server has started.

The state folder has one file for each server and digest of its program, arguments, folder and URL. A file is replaced as a whole, so
several processes may write it. It contains texts of the server and no secrets of the gateway; an unusable file counts as missing. All
functions block.
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
from gateway.storage.atomic_files import MAX_JSON_BYTES, make_private_folder, read_json, write_atomic

logger = logging.getLogger(__name__)

FOLDER = "catalog"
VERSION = 1
LISTS = ("tools", "resources", "templates", "prompts")
_NAME_OF = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}


@dataclass(frozen=True, slots=True)
class CachedListing:
    """All lists of one server, with the protocol version and the instructions from the handshake of the session that listed them."""

    lists: dict[str, list[JsonObject]]
    """The listed entries, with only accepted `_meta` keys, under the keys `tools`, `resources`, `templates` and `prompts`."""
    is_modern: bool
    protocol_version: str
    instructions: str | None


def state_file_name(server: str, entry: ServerEntry) -> str:
    """Return the name of a server's file in a folder of stored definitions. A changed program, argument, folder or URL changes the name."""
    # Environment variables and headers are left out, because they contain secrets and rarely change what a server lists.
    known = entry.model_dump(mode="json", include={"type", "command", "args", "cwd", "url"})
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    return f"{server}-{digest}.json"


class ListingCache:
    """The file with the lists of one server. Reads and writes no file before a method is called."""

    def __init__(self, state_folder: Path, server: str, entry: ServerEntry) -> None:
        """Determine the file's path, without side effects. `entry` is the server's configuration entry as loaded, with absolute `cwd`."""
        self._file = state_folder / FOLDER / state_file_name(server, entry)
        self._last: CachedListing | None = None

    def recall(self) -> CachedListing | None:
        """Return the stored lists, or `None` if the file is missing or unusable. An unusable file is logged."""
        try:
            self._last = _parse(read_json(self._file))
        except FileNotFoundError:
            return None
        except (StorageError, ValueError) as error:
            logger.warning("stored listing not used reason=%s", error)
        return self._last

    def keep(self, listing: CachedListing) -> None:
        """Store the lists, unless they are stored already or too large. A failure is logged and only makes the next start slower."""
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
            logger.warning("listing not stored reason=%s", error)
            return
        self._last = listing


def _parse(document: JsonValue) -> CachedListing:
    """Parse the JSON document of a file that `ListingCache.keep` wrote.

    Raises:
        ValueError: The document has another version or format.
    """
    if not isinstance(document, dict):
        raise ValueError("it holds no object")
    found = cast("JsonMapping", document)
    lists, instructions, protocol = found.get("lists"), found.get("instructions"), found.get("protocolVersion")
    if found.get("version") != VERSION or not isinstance(lists, dict) or not isinstance(protocol, str):
        raise ValueError("it is of another version or was not written by this gateway")
    if not (instructions is None or isinstance(instructions, str)):
        raise ValueError("its instructions are not text")
    kept: dict[str, list[JsonObject]] = {}
    for kind in LISTS:
        entries = cast("JsonMapping", lists).get(kind)
        if not isinstance(entries, list):
            raise ValueError(f"it has no list of {kind}")
        for entry in cast("list[JsonValue]", entries):
            if not isinstance(entry, dict) or not isinstance(cast("JsonMapping", entry).get(_NAME_OF[kind]), str):
                raise ValueError(f"its list of {kind} is damaged")
        kept[kind] = cast("list[JsonObject]", entries)
    return CachedListing(kept, found.get("isModern") is True, protocol, instructions)
