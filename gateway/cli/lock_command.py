"""`moongate lock`: pins definitions of remote tools in the lock file, compares them with the pins, and accepts changes.

Starts the configured servers once and reads the definitions that they list, before any policy applies. `policy.pin_check` decides what a
difference means for a running gateway, which reads a changed lock file without a restart.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from gateway.cli.common import data_options, load, require_servers, run_async, state_folder_of, with_servers
from gateway.cli.failures import CommandFailed
from gateway.cli.output import clean, print_json, print_note, print_text
from gateway.cli.shared_state import in_worker, shared_database
from gateway.config.paths import is_bundled_config
from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, NotFound, NotSent
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.config.load import LoadedConfig
    from gateway.policy.pin_check import PinChange
    from gateway.upstream.accepted_definitions import DefinitionRecord
    from gateway.upstream.pins import Pins

Forms = Mapping[str, JsonObject]


@dataclass(frozen=True, slots=True)
class Difference:
    """A tool whose definition differs from its pin or, without pins of its server, from the definition that the server listed first."""

    server: str
    tool: str
    change: PinChange
    before: JsonObject | None
    """The pinned definition or, without pins, the first listed one; `None` for a new tool."""
    after: JsonObject | None
    """The definition that the server lists now; `None` if it no longer lists the tool."""

    def to_json(self) -> JsonObject:
        """Return the JSON object that `moongate lock --json` prints for this difference."""
        return {"server": self.server, "tool": self.tool, "change": self.change, "before": self.before, "after": self.after}


@click.command()
@click.argument("servers", nargs=-1, metavar="[SERVER]...")
@click.option("--check", is_flag=True, help="Write nothing; show what differs, and exit with 5 if anything does.")
@click.option("--diff", is_flag=True, help="Write nothing; show what differs.")
@click.option("--accept", "accepted", multiple=True, metavar="NAME", help="Accept a changed command, or SERVER[/TOOL]; repeatable.")
@click.option("--yes", "assume_yes", is_flag=True, help="Accept a command without confirmation; needed outside a terminal.")
@data_options
def lock(
    servers: tuple[str, ...],
    check: bool,
    diff: bool,
    accepted: tuple[str, ...],
    assume_yes: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Pin the tools that servers list now, or accept changes.

    Writes the current definitions of the tools of all servers, or of the named servers, to the lock file. A running gateway hides a tool
    whose definition differs from its pin until you accept the new definition. Tools of a server that is not in the lock file are compared
    with the definitions that the server listed first. A new or changed command or module does not run, either, until you `--accept` it.
    """
    if sum((check, diff, bool(accepted))) > 1 or (accepted and servers):
        raise click.UsageError("--check, --diff and --accept exclude each other; --accept names its servers itself.")
    from gateway.cli.accepting import accept_commands
    from gateway.upstream.pins import read_pins

    if accepted and accept_commands(config_path, accepted, assume_yes=assume_yes, as_json=as_json):
        return
    loaded = load(config_path)
    require_servers(loaded, [name.partition("/")[0] for name in accepted] or servers)
    comparing = check or diff or bool(accepted)
    path = _lock_file(loaded, is_written=not comparing)
    pins = _pins_to_change(path, full=not servers and not comparing) if not (check or diff) else read_pins(path)
    if check and not pins.servers:
        raise CommandFailed(f"Nothing is locked: {path} pins no server. `moongate lock` pins all of them.", code="not-found")
    first = {} if check else _first_listings(loaded, pins)
    wanted = sorted({name.partition("/")[0] for name in accepted}) if accepted else list(servers)
    if not wanted:
        known = {*pins.servers, *(name for name, record in first.items() if diff and in_worker(record.read) is not None)}
        wanted = [name for name in loaded.config.mcp_servers if name in known] if comparing else list(loaded.config.mcp_servers)
    for text in _floating(loaded, wanted):
        print_note(text)
    listed = run_async(lambda: _listed(loaded, wanted)) if wanted else {}
    if check or diff:
        for name in loaded.config.mcp_servers:
            if name not in pins.servers and loaded.config.policy(name).pins != "off":
                text = f"server {name!r} is not in {path.name}, so each tool is held to its first listing"
                print_note(f"note: {text}; `moongate lock {name}` pins the server")
        found = [d for name, forms in listed.items() for d in _found(name, forms, pins, first)]
        _compare(found, must_match=check, as_json=as_json)
        return
    if accepted:
        found = _accept_first(first, listed, accepted)
        listed = {name: forms for name, forms in listed.items() if name not in first}
        if not listed:
            _report_accepted(sorted(set(accepted)), found, as_json=as_json)
            return
    _write(path, pins, listed, accepted, full=not servers and not accepted, as_json=as_json)


def _lock_file(loaded: LoadedConfig, *, is_written: bool) -> Path:
    """Return the path of a configuration's lock file. `is_written` is whether the command will write the file.

    Raises:
        ConfigError: The configuration file does not exist, or it ships with Moongate and the lock file would be written beside it.
    """
    path = loaded.lock_path
    if path is None:
        raise ConfigError("Nothing can be pinned without a configuration file; `moongate add` makes one.", path="server.lockFile")
    if is_written and loaded.path is not None and is_bundled_config(loaded.path):
        text = f"{loaded.path} ships with Moongate, so no lock file is written beside it; its tools are held to their first listings."
        raise ConfigError(f"{text} Name a file of your own with `--config FILE`.", path=str(loaded.path))
    return path


def _first_listings(loaded: LoadedConfig, pins: Pins) -> dict[str, DefinitionRecord]:
    """Return, for each server outside the lock file, the record of the tool definitions that it listed first.

    Without pins, the server's current tools are compared with this record.
    """
    from gateway.catalog.remote_servers import definition_record

    state, shared = state_folder_of(loaded), shared_database(loaded)
    servers = loaded.config.mcp_servers.items()
    return {name: definition_record(name, loaded.located(entry), state, shared) for name, entry in servers if name not in pins.servers}


def _floating(loaded: LoadedConfig, wanted: Sequence[str]) -> list[str]:
    """Return a warning for each server whose command installs an unpinned version of a package."""
    from gateway.config.models import StdioServer
    from gateway.policy.packages import floating_packages

    entries = [(name, loaded.config.mcp_servers.get(name)) for name in wanted]
    return [
        f"warning: server {name!r}: {text}; its definitions are pinned, its program is not"
        for name, entry in entries
        if isinstance(entry, StdioServer)
        for text in floating_packages(entry.command, entry.args)
    ]


def _pins_to_change(path: Path, *, full: bool) -> Pins:
    """Return the current pins in the lock file, which the command `moongate lock` then changes.

    If `full` is true, the command replaces all pins, so an unusable file counts as empty. Otherwise an unusable file raises `ConfigError`.
    """
    from gateway.upstream.pins import NO_PINS, read_pins

    try:
        return read_pins(path)
    except ConfigError:
        if full:
            return NO_PINS
        raise


async def _listed(loaded: LoadedConfig, names: Sequence[str]) -> dict[str, dict[str, JsonObject]]:
    """Return the tool definitions that each named server lists now, by server and tool. Every server must respond.

    Raises:
        NotSent: A server cannot be reached.
    """
    from gateway.cli.hub import open_own
    from gateway.config.models import Expose
    from gateway.upstream.pins import forms_of

    chosen = with_servers(loaded, names, pins="off")
    config = chosen.config.model_copy(update={"expose": Expose(agents=[], skills=[], functions=[])})
    async with open_own(replace(chosen, config=config, disabled=[])) as own:
        definitions = own.gateway.inspection.definitions()
        for status in own.gateway.inspection.sources():
            if status.name in names and status.name not in definitions:
                text = f"Server {status.name!r} cannot be read: {status.error or status.state}. Nothing was written."
                raise NotSent(f"{text} Name the servers to pin, to leave this one out.", server=status.name)
        return {name: forms_of(definitions[name]) for name in names}


def _found(server: str, listed: Forms, pins: Pins, first: Mapping[str, DefinitionRecord]) -> list[Difference]:
    """Return the differences between a server's tools and its pins or, without pins, the definitions that the server listed first."""
    if server in first:
        return _differences(server, in_worker(first[server].read) or {}, listed, first_use=True)
    return _differences(server, pins.servers.get(server, {}), listed)


def _differences(server: str, before: Forms, after: Forms, *, first_use: bool = False) -> list[Difference]:
    """Return how one server's tools differ between two listings, sorted by tool. A running gateway uses the same rule to hide tools."""
    from gateway.policy.pin_check import judge_pins, pin_digest

    digests = {name: pin_digest(form) for name, form in after.items()}
    pinned = {name: pin_digest(form) for name, form in before.items()}
    found = judge_pins(digests, pinned, "quarantine", first_use=first_use)
    return [Difference(server, name, found[name].change, before.get(name), after.get(name)) for name in sorted(found)]


def _compare(found: Sequence[Difference], *, must_match: bool, as_json: bool) -> None:
    if as_json:
        print_json({"differences": [difference.to_json() for difference in found]})
    for difference in () if as_json else found:
        _print_difference(difference)
    if found and must_match:
        names = sorted({difference.server for difference in found})
        accept = "; ".join(f"`moongate lock --accept {name}`" for name in names)
        number = f"{len(found)} tool{' differs' if len(found) == 1 else 's differ'}"
        raise CommandFailed(f"{number} from the lock file. To accept what is listed now: {accept}.", code="lock-differs")
    if not found and not as_json:
        click.echo("Nothing differs.")


def _print_difference(difference: Difference) -> None:
    print_text(f"{difference.server}/{difference.tool}: {difference.change}")
    sides = (_lines(difference.before), _lines(difference.after))
    for line in list(difflib.unified_diff(*sides, "accepted", "listed now", lineterm=""))[2:]:
        click.echo(clean(f"  {line}"))


def _lines(form: JsonMapping | None) -> list[str]:
    # Escaped, so that a difference in invisible characters can be seen.
    return json.dumps(form, indent=2, ensure_ascii=True).splitlines() if form is not None else []


def _accept_first(first: Mapping[str, DefinitionRecord], listed: Mapping[str, Forms], accepted: Sequence[str]) -> list[Difference]:
    """Accept the current tools of servers that are not in the lock file. Return the accepted differences."""
    found: list[Difference] = []
    for name, forms in listed.items():
        if name in first:
            tools = _tools_of(name, accepted)
            differences = _differences(name, in_worker(first[name].read) or {}, forms, first_use=True)
            found += [difference for difference in differences if not tools or difference.tool in tools]
            in_worker(partial(first[name].accept, partial(_accepted, name, forms, tools)))
    return found


def _accepted(server: str, listed: Forms, tools: Sequence[str], before: dict[str, JsonObject]) -> Forms:
    return _accept_tools(server, before, listed, tools) if tools else listed


def _tools_of(server: str, accepted: Sequence[str]) -> list[str]:
    """Return the tools of `server` that the user accepts by name; an empty list if all its tools are to be accepted."""
    tools = [written.partition("/")[2] for written in accepted if written.partition("/")[0] == server]
    return tools if all(tools) else []


def _report_accepted(accepted: Sequence[str], found: Sequence[Difference], *, as_json: bool) -> None:
    if as_json:
        print_json({"accepted": list(accepted), "changes": [difference.to_json() for difference in found]})
        return
    for difference in found:
        _print_difference(difference)
    print_text(f"accepted {', '.join(accepted)} as listed now; a running gateway applies it without a restart")


def _write(
    path: Path, pins: Pins, listed: Mapping[str, Forms], accepted: Sequence[str], *, full: bool, as_json: bool
) -> None:
    """Write the definitions of the tools that `accepted` names (`SERVER` or `SERVER/TOOL`; default: all listed tools) to the lock file.

    If `full` is true, servers that are not in `listed` are removed from the file.
    """
    from gateway.upstream.pins import Pins as NewPins
    from gateway.upstream.pins import write_pins

    servers: dict[str, Forms] = {} if full else dict(pins.servers)
    for name, forms in listed.items():
        tools = _tools_of(name, accepted)
        servers[name] = _accepted(name, forms, tools, dict(servers.get(name, {})))
    found = [d for name in listed for d in _differences(name, pins.servers.get(name, {}), servers[name])]
    write_pins(path, NewPins(servers))
    if as_json:
        print_json({"lockFile": str(path), "servers": sorted(listed), "changes": [d.to_json() for d in found]})
        return
    for difference in found:
        print_text(f"{difference.server}/{difference.tool}: {difference.change}")
    count = sum(len(forms) for forms in servers.values())
    print_text(f"{path}: {count} tool{'' if count == 1 else 's'} of {len(servers)} server{'' if len(servers) == 1 else 's'} pinned")


def _accept_tools(server: str, before: dict[str, JsonObject], listed: Forms, tools: Sequence[str]) -> Forms:
    """Replace the pinned definitions (`before`) of a server's `tools` with those that the server lists now. Return all pins of the server.

    The pin of a tool that the server does not list any more is removed. `before` is changed in place.

    Raises:
        NotFound: The server neither lists nor pins a tool of that name.
    """
    for tool in tools:
        if tool not in listed and tool not in before:
            hint = did_you_mean(tool, [*listed, *before])
            raise NotFound("tool", tool, f"Server {server!r} has no tool {tool!r}. {hint}".rstrip())
        if tool in listed:
            before[tool] = listed[tool]
        else:
            del before[tool]
    return before
