"""The part of `moongate lock --accept` for configuration entries that execute a command or import a module, such as stdio servers.

The gateway executes a new or changed entry only after the user has accepted it. This module shows such entries, asks the user, and records
that the user accepts their current content. It reads the configuration without executing any part of it. Used by `lock`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.output import is_interactive, print_json, print_note, print_text
from gateway.config.paths import find_config
from gateway.config.suggest import did_you_mean
from gateway.errors import GatewayError, NotFound

if TYPE_CHECKING:
    from gateway.config.executes import RunEntry
    from gateway.gate.acceptance import Acceptance


def accept_commands(config_path: str | None, names: Sequence[str], *, assume_yes: bool, as_json: bool) -> bool:
    """Record that the user accepts the configuration entries `names`; return false if no such entry waits for acceptance.

    An entry is a server, or an agent or workflow file, for example. A new or changed entry with a command or module waits for acceptance:
    the gateway does not execute it until the user has accepted it. On false, the caller treats `names` as names of servers or tools whose
    definitions changed.

    Raises:
        click.UsageError: Only some of the names are entries that wait, or the user cannot be asked.
        click.Abort: The user does not confirm the entries.
        NotFound: A name has the form of an entry that is not a server, such as `agent/NAME`, and no such entry waits.
        StorageError: The record of accepted entries cannot be read or written.
    """
    from gateway.config.load import read_runs, read_text
    from gateway.gate.acceptance import Acceptance

    file = find_config(config_path, os.environ)
    if file is None:
        return False
    runs, state_folder = read_runs(read_text(file), file)
    acceptance = Acceptance(is_start=False)
    acceptance.open(file, state_folder)
    written = {entry.key: entry for entry in runs}
    waiting: list[RunEntry] = []
    for name in names:
        entry = written.get(name) or _of_file(name, acceptance)
        if entry is not None and acceptance.waits(entry):
            waiting.append(entry)
        elif "." in name.partition("/")[0] or name.startswith(("agent/", "workflow/")):  # no server or tool has such a name
            hint = did_you_mean(name, [*written, *acceptance.places_held()]) or "`moongate list` and `moongate doctor` show what does."
            raise NotFound("entry", name, f"Nothing waits for acceptance under {name!r}. {hint}")
    if not waiting:
        return False
    if len(waiting) < len(names):
        raise click.UsageError("Accept what the gateway executes and definitions of tools in two calls.")
    _confirm(waiting, assume_yes=assume_yes)
    acceptance.accept(waiting)
    _report(waiting, file, as_json=as_json)
    return True


def _of_file(name: str, acceptance: Acceptance) -> RunEntry | None:
    """Return the entry `name` of an agent or workflow file, as the file defines it now; `None` if it does not wait for acceptance."""
    place = acceptance.places_held().get(name)
    if place is None or not name.startswith(("agent/", "workflow/")):
        return None
    try:
        if name.startswith("agent/"):
            from gateway.agents.definition import read_agent

            entry = read_agent(Path(place)).run_entry
        else:
            from gateway.workflows.loader import load_workflow

            entry = load_workflow(Path(place)).run_entry(Path(place))
    except GatewayError as error:
        raise NotFound("entry", name, f"{name!r} cannot be accepted: {error}") from None
    return entry if entry is not None and entry.key == name else None


def _confirm(waiting: Sequence[RunEntry], *, assume_yes: bool) -> None:
    for entry in waiting:
        print_note(f"{entry.place}:")
        print_note(f"  {entry.shown}")
    if assume_yes:
        return
    if not is_interactive():
        raise click.UsageError("The gateway would execute this; without a terminal, add `--yes` to accept it.")
    if not click.confirm("Let the gateway execute this?", default=False, err=True):
        raise click.Abort


def _report(waiting: Sequence[RunEntry], file: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"accepted": [entry.key for entry in waiting], "file": str(file)})
        return
    for entry in waiting:
        print_text(f"accepted {entry.key}; a running gateway applies it without a restart")
