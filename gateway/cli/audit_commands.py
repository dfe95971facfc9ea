"""`moongate audit` shows, follows, verifies and exports the audit log, and verifies exports.

The commands read the gateway's database, so no gateway needs to run. Verifying an export needs no database either.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from gateway.cli.common import Group, config_option, data_options, json_option, load, state_folder_of
from gateway.cli.configured_names import source_names
from gateway.cli.failures import CommandFailed
from gateway.cli.output import clean, json_line, moment, show, show_table
from gateway.cli.stored_rows import with_records
from gateway.config.suggest import did_you_mean
from gateway.storage.record_types import CALL_KINDS, AuditEntry, ChainReport

if TYPE_CHECKING:
    from gateway.json_types import JsonObject
    from gateway.storage.audit import StoredEntry
    from gateway.storage.audit_export import Export
    from gateway.storage.audit_formats import Format
    from gateway.storage.records import Records

FOLLOW_SECONDS = 0.5
"""Seconds between two reads of the log by `moongate audit tail --follow`."""

_SPAN = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

since_option = click.option("--since", metavar="SPAN", default="1d", show_default=True, help="How far back: a number with s, m, h or d.")
server_option = click.option("--server", metavar="NAME", help="Only entries of this source.")
calls_option = click.option("--calls", is_flag=True, help="Also show allowed calls and reads.")


class _AuditGroup(Group):
    """The command group `audit`, which runs the subcommand `show` if none is named."""

    default = ("show",)


@click.group(cls=_AuditGroup)
def audit() -> None:
    """The audit log: refusals, approvals and other decisions, and the calls that were allowed.

    Arguments are recorded only as far as the section `audit` of the configuration says. Results are never recorded.
    """


@audit.command("show")
@since_option
@server_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Maximum number of entries (the newest).")
@calls_option
@click.option("--verify", is_flag=True, help="Check that no entry was changed or removed, instead of showing entries.")
@data_options
def show_entries(since: str, server: str | None, limit: int, calls: bool, verify: bool, config_path: str | None, as_json: bool) -> None:
    """Show the newest entries, oldest first."""
    start = _start(since)
    if verify:
        _verify_log(config_path, as_json=as_json)
        return

    async def read(records: Records) -> list[AuditEntry]:
        return await (await records.audit()).read(since=start, source=server, limit=limit, with_calls=calls)

    found = with_records(config_path, read)
    rows = [[moment(e.at), e.kind, e.source, e.name, e.principal, _facts(e)] for e in found]
    headers = ("time", "kind", "source", "name", "caller", "decision")
    empty = "" if found else _no_decision(server, since, config_path)
    show_table({"entries": [entry.to_json() for entry in found]}, headers, rows, empty=empty, as_json=as_json, whole_last=True)


@audit.command("tail")
@click.option("--number", "-n", type=click.IntRange(0, 100_000), default=20, show_default=True, help="Number of entries to begin with.")
@click.option("--follow", "-f", is_flag=True, help="Print new entries as they are stored, until interrupted.")
@server_option
@click.option("--decisions", is_flag=True, help="Leave out allowed calls and reads.")
@data_options
def tail(number: int, follow: bool, server: str | None, decisions: bool, config_path: str | None, as_json: bool) -> None:
    """Print the newest entries, allowed calls included, one per line; with --json, one JSON object per line."""

    def is_shown(stored: StoredEntry) -> bool:
        entry = stored.entry
        return (server is None or entry.source == server) and not (decisions and entry.kind in CALL_KINDS)

    async def work(records: Records) -> None:
        import anyio

        log = await records.audit()
        last = await log.last()
        for entry in await log.read(source=server, limit=number, with_calls=not decisions) if number else ():
            _print(entry, as_json=as_json)
        while follow:
            await anyio.sleep(FOLLOW_SECONDS)
            while found := await log.after(last):
                last = found[-1].id
                for stored in filter(is_shown, found):
                    _print(stored.entry, as_json=as_json)

    with_records(config_path, work)


@audit.command("export")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@since_option
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "ocsf"]), default="jsonl", show_default=True, help="Format.")
@data_options
def export(file: Path, since: str, form: str, config_path: str | None, as_json: bool) -> None:
    """Write all entries, allowed calls included, to FILE, and a signed manifest beside it. `audit verify FILE` checks both."""
    from gateway import __version__
    from gateway.storage.audit_export import PURPOSE, manifest_of, write_export

    start = _start(since)

    async def work(records: Records) -> Export:
        seed = await records.key(PURPOSE)
        return await write_export(await records.audit(), file, cast("Format", form), since=start, seed=seed, version=__version__)

    done = with_records(config_path, work)
    if done.problem:
        text = f"The audit log is not as it was written: {done.problem}. {str(file)!r} has the entries before, and the manifest says so."
        raise CommandFailed(text, code="tool-error")
    entries = done.manifest["entries"]
    data: JsonObject = {"file": str(file), "manifest": str(manifest_of(file)), "entries": entries, "publicKey": done.manifest["publicKey"]}
    show(data, f"{entries} entries in {file}, signed in {manifest_of(file)}", as_json=as_json)


@audit.command("verify")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--key", metavar="KEY", help="Public key of the exports, as `audit key` prints it. Default: that of this installation.")
@data_options
def verify(files: tuple[Path, ...], key: str | None, config_path: str | None, as_json: bool) -> None:
    """Check exports against their signed manifests, and that nothing is missing between them; without FILE, check the log itself.

    With --key, an export is checked without the gateway's database, configuration and keys.
    """
    if not files:
        if key is not None:
            raise click.UsageError("--key is for exports; name their files.")
        _verify_log(config_path, as_json=as_json)
        return
    from gateway.errors import StorageError
    from gateway.storage.audit_export import decode_key, verify_export, verify_sequence

    trusted = key if key is not None else _own_key(config_path)
    decode_key(trusted)
    try:
        manifests = [verify_export(file, trusted) for file in files]
    except StorageError as error:
        raise CommandFailed(str(error), code="tool-error") from None
    if gap := verify_sequence(manifests):
        raise CommandFailed(f"The exports are not complete: {gap}.", code="tool-error")
    entries = sum(cast("int", manifest["entries"]) for manifest in manifests)
    data: JsonObject = {"files": len(files), "entries": entries, "problem": None}
    show(data, f"{entries} entries in {len(files)} files, none changed", as_json=as_json)


@audit.command("key")
@config_option
@json_option
def key(config_path: str | None, as_json: bool) -> None:
    """Print the public key with which anybody can verify exports of this installation."""
    found = _own_key(config_path)
    show({"publicKey": found}, found, as_json=as_json)


def _own_key(config_path: str | None) -> str:
    from gateway.storage.audit_export import PURPOSE, public_key

    return public_key(state_folder_of(load(config_path, fetches=False)).key(PURPOSE))


def _start(since: str) -> float:
    span = _SPAN.fullmatch(since)
    if span is None:
        raise click.UsageError(f"{since!r} is not a duration. Write a number with s, m, h or d, e.g. `2h`.")
    return time.time() - int(span[1]) * _UNITS[span[2]]


def _verify_log(config_path: str | None, *, as_json: bool) -> None:
    async def check(records: Records) -> ChainReport:
        return await (await records.audit()).verify()

    report = with_records(config_path, check)
    if report.problem:
        raise CommandFailed(f"The audit log is not as it was written: {report.problem}.", code="tool-error")
    show({"entries": report.entries, "problem": None}, f"{report.entries} entries, none changed or removed", as_json=as_json)


def _facts(entry: AuditEntry) -> str:
    return " ".join(f"{key}={value}" for key, value in entry.fields.items() if value is not None)


def _print(entry: AuditEntry, *, as_json: bool) -> None:
    text = f"{moment(entry.at)} {entry.kind} source={entry.source} name={entry.name} caller={entry.principal} {_facts(entry)}"
    click.echo(json_line(entry.to_json()) if as_json else clean(text).replace("\n", "\\n"))


def _no_decision(server: str | None, since: str, config_path: str | None) -> str:
    if server is None:
        return f"No decision in the last {since}."
    known = source_names(load(config_path, fetches=False))
    hint = did_you_mean(server, known) if server not in known else ""
    return f"No decision of {server!r} in the last {since}. {hint}".rstrip()
