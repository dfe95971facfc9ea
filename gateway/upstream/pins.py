"""Reads and writes the lock file (`gateway.lock.json`): the accepted definitions of remote servers' tools.

`moongate lock` writes the file, and the gateway reads it. It lies beside the configuration and is meant to be committed to version control.
Servers and tools are sorted, and definitions are complete and indented, so that a change can be read as a diff. `policy.pin_check` compares
the definitions with listed tools. Reading and writing block.
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
    """The entry of one accepted tool in the lock file."""

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """SHA-256 digest of `definition` as canonical JSON."""
    definition: JsonObject
    """The accepted definition: name, title, description, schemas and annotations, as the server listed them."""


class LockedServer(Model):
    """The entry of one server in the lock file. A server without an entry is not checked against this file."""

    tools: dict[str, LockedTool] = Field(default_factory=dict)
    """The accepted tools, by the server's own tool names."""


class LockFile(Model):
    """The content of `gateway.lock.json`, the accepted definitions of remote tools. `moongate lock` writes it; do not edit it."""

    version: Literal[1]
    """Version of the file's format."""
    servers: dict[str, LockedServer] = Field(default_factory=dict)
    """The servers whose tools are pinned, by their names in `mcpServers`."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The accepted tool definitions of all remote servers, as read from the lock file; empty without a lock file."""

    servers: Mapping[str, Mapping[str, JsonObject]]
    """Server name → the server's own tool name → the pinned parts of the tool's definition."""

    def of(self, server: str) -> Mapping[str, str] | None:
        """Return the digests of a server's accepted tools, by tool name; `None` if the lock file does not contain the server."""
        forms = self.servers.get(server)
        return None if forms is None else {name: pin_digest(form) for name, form in forms.items()}


NO_PINS = Pins({})
"""The pins (accepted tool definitions) of a configuration without a lock file: no tool is pinned."""


def read_pins(path: Path | None) -> Pins:
    """Read the pins (accepted definitions) from a lock file. Without a file, return `NO_PINS`.

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
    """Write the pins (accepted definitions) to a lock file, replacing it. The order of servers and tools in `pins` does not matter.

    Without `mode`, an existing file keeps its permissions, and a new file gets 0644.

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
    """Return the pinned part of each listed tool's definition (the members that a person accepts), by tool name.

    If two tools have the same name, the first counts.
    """
    forms: dict[str, JsonObject] = {}
    for wire in listed:
        forms.setdefault(str(wire["name"]), pinned_form(wire))
    return forms
