"""`moongate db`: checks, migrates, backs up and restores the database and the other files of the state folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import Group, data_options, load, run_async, state_folder_of
from gateway.cli.failures import CommandFailed
from gateway.cli.output import moment, print_note, show, working

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig
    from gateway.storage.database_location import DatabaseLocation


@click.group(cls=Group)
def db() -> None:
    """The gateway's database: check it, migrate it, back it up, restore it."""


@db.command("check")
@data_options
def check(config_path: str | None, as_json: bool) -> None:
    """Check the database's schema, its rows and its audit log, without changing anything.

    Exit code 5: something is damaged. 7: nothing is damaged, and migration steps wait.
    """
    from gateway.storage.database_check import check_database
    from gateway.storage.migrations import STEPS

    loaded = load(config_path, fetches=False)
    state, location = state_folder_of(loaded), _location(loaded)
    with working("Checking the database"):
        report = check_database(location, lambda: state.stored_key("audit"))
    marks = {"ok": "ok", "waits": "waits", "damaged": "DAMAGED"}
    lines = [f"{marks[finding.state]:<7} {finding.check:<6} {finding.text}" for finding in report.findings]
    data = {
        "schema": report.schema.version,
        "oldestSchema": report.schema.oldest,
        "knownSchema": len(STEPS),
        "waiting": list(report.waiting),
        "findings": [{"check": finding.check, "state": finding.state, "text": finding.text} for finding in report.findings],
    }
    show(data, "\n".join(lines), as_json=as_json)
    if report.is_in_state("damaged"):
        raise CommandFailed(f"{location.shown} is damaged, as printed above.", code="database-damaged")
    if report.is_in_state("waits"):
        raise CommandFailed(f"{location.shown} waits for `moongate db migrate`.", code="migration-waits")


@db.command("migrate")
@data_options
def migrate(config_path: str | None, as_json: bool) -> None:
    """Create the database, or bring it to the newest schema, as the start of a gateway does."""
    from gateway.storage.migrations import read_schema
    from gateway.storage.state_use import in_use

    loaded = load(config_path, fetches=False)
    state, location = state_folder_of(loaded), _location(loaded)
    state.ensure()
    with working("Migrating the database"), in_use(state.path):
        done = location.migrate()
        with location.snapshot() as connection:
            version = read_schema(connection).version
    text = f"nothing to do: the database has schema version {version}"
    if done:
        text = f"migrated the database from schema version {done[0] - 1} to {version}: {_steps(done)}"
    show({"schema": version, "steps": done}, text, as_json=as_json)


@db.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@data_options
def backup(file: Path, config_path: str | None, as_json: bool) -> None:
    """Write the database, keys, tokens and accepted definitions to the new file FILE, while gateways run.

    FILE contains the installation key, with which anyone can decrypt the tokens of your servers. Only you can read FILE.
    """
    from gateway import __version__
    from gateway.storage.backup import back_up

    loaded = load(config_path, fetches=False)
    with working("Writing the backup"):
        report = back_up(_location(loaded), state_folder_of(loaded).path, file, __version__)
    data = {"file": str(file), "schema": report.schema, "rows": report.rows, "files": report.files, "bytes": report.size}
    what = f"{_counted(report.rows, 'row')}, {_counted(report.files, 'file')}, {report.size} bytes"
    text = f"wrote {file}: schema version {report.schema}, {what}"
    show(data, text, as_json=as_json)
    print_note("The backup contains the installation key and key digests; keep it as safe as the state folder.")


@db.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Delete the present database and files, and restore the backup in their place.")
@data_options
def restore(file: Path, replace: bool, config_path: str | None, as_json: bool) -> None:
    """Restore the database and the state folder's files from FILE. Every gateway of this state must be stopped.

    A backup of an SQLite database can be restored to PostgreSQL, and the other way round.
    """
    from gateway.auth.key_rows import write_key_file
    from gateway.cli.running import find_running
    from gateway.storage.interrupted_restore import journal_phase
    from gateway.storage.restore import restore as restore_backup
    from gateway.storage.state_folder import state_dir

    loaded = load(config_path, fetches=False)
    state = state_dir(loaded.config.storage.dir)
    # A gateway proves that it uses this state by the installation key, which the search would create.
    has_key = loaded.config.storage.installation_key is not None or (state / "installation-key").exists()
    found = run_async(lambda: find_running(loaded)) if has_key and not journal_phase(state) else None
    if found is not None and found.is_own:
        raise CommandFailed(f"A gateway of this configuration runs at {found.url}. Stop it, then try again.", code="config-invalid")
    with working("Restoring the backup"):
        report = restore_backup(_location(loaded), state, file, replaces=replace, to_file=write_key_file)
    made = report.manifest
    data = {
        "createdAt": moment(made.created_at), "moongate": made.moongate, "schema": made.schema, "steps": list(report.steps),
        "rows": report.rows, "files": report.files,
    }  # fmt: skip
    migrated = f", migrated by {_steps(report.steps)}" if report.steps else ""
    what = f"{_counted(report.rows, 'row')} and {_counted(report.files, 'file')}"
    text = f"restored {what} of {moment(made.created_at)}: schema version {made.schema}{migrated}"
    show(data, text, as_json=as_json)


def _location(loaded: LoadedConfig) -> DatabaseLocation:
    from gateway.storage.database_location import DatabaseLocation
    from gateway.storage.state_folder import state_dir

    storage = loaded.config.storage
    return DatabaseLocation.of(state_dir(storage.dir), storage.url)


def _steps(numbers: Sequence[int]) -> str:
    return f"step{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
