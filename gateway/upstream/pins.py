"""The lock file: the accepted definitions of remote tools. `moongate lock` writes it, the gateway reads it.

The file lies beside the configuration and is meant to be committed. It is sorted, with one key per line and whole definitions, so that a
change reads as a diff. `policy.pin_check` judges differences. All functions block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gateway.config.base_models import Model
from gateway.config.problems import problems_of
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.pin_check import pin_digest, pinned_form
from gateway.storage.atomic_files import MAX_JSON_BYTES, read_json, write_atomic


class LockedTool(Model):
    """One accepted tool."""

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """SHA-256 over `definition` as canonical JSON."""
    definition: JsonObject
    """Name, title, description, schemas and annotations as the server listed them when they were accepted."""


class LockedServer(Model):
    """One pinned server. A server that is not in the file is not pinned."""

    tools: dict[str, LockedTool] = Field(default_factory=dict)
    """The accepted tools by the server's own names."""


class LockFile(Model):
    """The whole of `gateway.lock.json`. Written by `moongate lock`; do not edit it."""

    version: Literal[1]
    """Version of this format."""
    servers: dict[str, LockedServer] = Field(default_factory=dict)
    """Pinned servers by their names in `mcpServers`."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The accepted definitions of all servers; empty without a lock file."""

    servers: Mapping[str, Mapping[str, JsonObject]]
    """Server name → the server's own tool name → the pinned parts of the tool's definition."""

    def of(self, server: str) -> Mapping[str, str] | None:
        """Return a server's pinned digests by tool; `None` if the server is not pinned."""
        forms = self.servers.get(server)
        return None if forms is None else {name: pin_digest(form) for name, form in forms.items()}


NO_PINS = Pins({})
"""The pins without a lock file."""


def read_pins(path: Path | None) -> Pins:
    """Return the pins in a lock file; without a file the result has no pins.

    Raises:
        ConfigError: The file is unusable. It is not treated as an empty file, because an empty file pins nothing.
    """
    if path is None:
        return NO_PINS
    try:
        found = LockFile.model_validate(read_json(path))
    except FileNotFoundError:
        return NO_PINS
    except StorageError as error:
        raise ConfigError(str(error), path=str(path)) from None
    except ValidationError as error:
        problem = problems_of(error, LockFile)[0]
        raise ConfigError(f"{path}: {problem.line()} `moongate lock` renews the file.", path=str(path)) from None
    for server, locked in found.servers.items():
        for name, tool in locked.tools.items():
            if pin_digest(tool.definition) != tool.digest:
                text = f"{path}: servers.{server}.tools.{name} was edited: its digest does not match its definition."
                raise ConfigError(f"{text} `moongate lock --accept {server}/{name}` renews it.", path=str(path))
    return Pins({server: {name: tool.definition for name, tool in locked.tools.items()} for server, locked in found.servers.items()})


def write_pins(path: Path, pins: Pins, *, mode: int | None = None) -> None:
    """Replace the lock file. Equal pins always produce equal bytes. Without `mode` the file keeps its mode.

    Raises:
        StorageError: The file cannot be written, or would be too large to be read again.
    """
    servers = {
        server: {"tools": {name: {"digest": pin_digest(form), "definition": form} for name, form in sorted(forms.items())}}
        for server, forms in sorted(pins.servers.items())
    }
    text = json.dumps({"version": 1, "servers": servers}, indent=2, ensure_ascii=True)
    data = f"{text}\n".encode()
    if len(data) > MAX_JSON_BYTES:
        raise StorageError(f"{str(path)!r} would have {len(data)} bytes, more than the {MAX_JSON_BYTES} that are read again.")
    write_atomic(path, data, mode=mode)


def forms_of(listed: Sequence[JsonMapping]) -> dict[str, JsonObject]:
    """Return the pinned parts of each tool's definition in a listing, by tool name. Of two equal names the first counts."""
    forms: dict[str, JsonObject] = {}
    for wire in listed:
        forms.setdefault(str(wire["name"]), pinned_form(wire))
    return forms
