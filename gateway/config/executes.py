"""Lists the commands and Python modules that a configuration makes the gateway execute, each with a digest.

A change of the configuration file can start a program: a server's command, a program for `${cmd:…}`, a Python module, a script of a skill.
Each of them is a `RunEntry`; `policy.acceptance_rule` decides whether it may run, or must wait until a person accepts it. Used by `load`,
`agents`, `workflows` and the CLI.

Decided: the digest covers the entry as written, and the content of files that `${file:…}` reads. Because: an attacker who can write files
can change both. Environment variables and the keyring are not covered, because a file cannot change them; the program for `${cmd:…}` is a
separate entry. Revisit when: references read another kind of file.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from gateway.config.expand import SENSITIVE_NAME
from gateway.config.read_entries import started_part
from gateway.config.references import MAX_SECRET_BYTES
from gateway.json_types import JsonObject, JsonValue, items_of, members_of

_FILE_REFERENCE = re.compile(r"\$\{file:([^}]*)\}")


@dataclass(frozen=True, slots=True)
class RunEntry:
    """An entry of the configuration that makes the gateway execute a command, Python module or script.

    A person must accept new and changed entries before a running gateway executes them.
    """

    key: str
    """Name of the entry for `moongate lock --accept`: a server's name, or for example `secrets.docs` or `agent/clerk`."""
    place: str
    """Place of the entry: its JSON path in the configuration, or the path of an agent's or workflow's file."""
    digest: str
    """SHA-256, in hex, of the parts of the entry that decide what is executed, and of the files that `${file:…}` in its `env` reads.

    If it changes, a person must accept the entry again.
    """
    shown: str
    """Text that describes the command, module or script to a person. Literal secrets are masked."""


class Admission(Protocol):
    """Protocol of an object that decides which commands and modules of a configuration may be executed. Its methods block."""

    def open(self, configuration: Path, state_folder: str | None) -> None:
        """Read which entries of a configuration file a person has accepted. Called once per load of the file, before `refusal`.

        `state_folder` is `storage.dir` of the configuration.
        """
        ...

    def refusal(self, entry: RunEntry) -> str | None:
        """Return why the command, module or script of an entry may not be executed, and what to do about it; `None` if it may."""
        ...


def run_entries(root: JsonObject, base_dir: Path) -> tuple[RunEntry, ...]:
    """Return the entries of a configuration that make the gateway execute a command, module or script. Blocks, because it reads files.

    `root` is the decoded configuration, `base_dir` the folder of its file. Invalid parts are left out.
    """
    return tuple(_entries(root, base_dir))


def secret_entry(name: str, written: JsonValue) -> RunEntry:
    """Return the `RunEntry` (what a person accepts) of the program under `secrets.<name>`, which the reference `${cmd:NAME}` executes.

    `written` is the value of `secrets.<name>`.
    """
    command = members_of(written).get("command")
    return _entry(f"secrets.{name}", f"secrets.{name}", command, shlex.join(map(str, items_of(command))))


def file_entry(key: str, path: Path, content: JsonValue, names: set[str]) -> RunEntry:
    """Return the `RunEntry` of an agent's or workflow's file: the record that a person accepts before the gateway runs code for the file.

    `names` are the Python objects that the file imports. The digest of the record covers `content`, the content of the file.
    """
    return _entry(key, str(path), content, f"{path} imports {', '.join(sorted(names))}")


def middleware_entry(written: JsonValue) -> RunEntry:
    """Return the `RunEntry` (what a person accepts) of the Python modules that the gateway imports because of `agents.middleware`.

    `written` is the value of this key.
    """
    return _entry("agents.middleware", "agents.middleware", written, f"imports {json.dumps(written)}")


def _entries(root: JsonObject, base_dir: Path) -> Iterator[RunEntry]:
    for name, raw in members_of(root.get("mcpServers")).items():
        part = started_part(raw)
        if part is not None:
            material: JsonValue = [part, _contents(part, base_dir)]
            yield _entry(name, f"mcpServers.{name}", material, _shown(part))
    for name, written in members_of(root.get("secrets")).items():
        yield secret_entry(name, written)
    expose, skills = members_of(root.get("expose")), members_of(root.get("skills"))
    for section, values in (("expose.functions", expose.get("functions")), ("skills.objects", skills.get("objects"))):
        for name in items_of(values):
            yield _entry(f"{section}.{name}", section, name, f"imports {name}")
    middleware = members_of(root.get("agents")).get("middleware")
    if middleware:
        yield middleware_entry(middleware)
    scripts = members_of(skills.get("scripts"))
    if scripts.get("enabled") is True:
        yield _entry("skills.scripts", "skills.scripts", scripts, f"runs scripts as set in {json.dumps(scripts)}")


def _entry(key: str, place: str, material: JsonValue, shown: str) -> RunEntry:
    text = json.dumps(material, sort_keys=True, separators=(",", ":"))
    return RunEntry(key, place, hashlib.sha256(text.encode()).hexdigest(), shown)


def _contents(part: JsonObject, base_dir: Path) -> JsonObject:
    """Return path → digest of each file that a `${file:…}` in a server entry's `env` reads. The digest of an unreadable file is `None`.

    `part` contains those keys of the entry that decide which program is started.
    """
    found: JsonObject = {}
    for value in members_of(part.get("env")).values():
        for name in _FILE_REFERENCE.findall(value) if isinstance(value, str) else ():
            try:
                with (base_dir / Path(name).expanduser()).open("rb") as stream:
                    found[name] = hashlib.sha256(stream.read(MAX_SECRET_BYTES + 1)).hexdigest()
            except (OSError, ValueError, RuntimeError):
                found[name] = None
    return found


def _shown(part: JsonObject) -> str:
    written: JsonValue = part.get("args", [])
    args = cast("list[JsonValue]", written) if isinstance(written, list) else [written]  # a mistake, which disables the entry
    text = shlex.join([str(part.get("command")), *map(str, args)])
    for name, value in members_of(part.get("env")).items():
        is_written_out = SENSITIVE_NAME.search(name) is not None and "${" not in str(value)
        text += f"\n  {name}={'[hidden]' if is_written_out else value}"
    return f"{text}\n  in {part['cwd']}" if part.get("cwd") else text
