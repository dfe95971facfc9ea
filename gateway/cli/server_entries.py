"""`moongate add` and `moongate remove`: add and remove entries of MCP servers in the configuration file.

Comments and layout of the file do not change. No server is started.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import click

from gateway.cli.common import data_options
from gateway.cli.output import print_json, print_note, print_text
from gateway.config.paths import CONFIG_VARIABLE, find_config, is_bundled_config
from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, NotFound, StorageError
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig

NEW_FILE = "gateway.json"
"""File that `add` creates in the working directory if the user has no configuration."""

EMPTY_FILE = "{\n}\n"
"""Content of a new configuration file before the first entry."""


@click.command()
@click.argument("name")
@click.argument("target", nargs=-1, metavar="(URL | -- COMMAND [ARGS]...)")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="HTTP header; repeatable. Write secrets as ${VAR}.")
@click.option("--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable of the program; repeatable.")
@click.option("--sse", is_flag=True, help="The server uses the old HTTP+SSE transport.")
@click.option("--replace", is_flag=True, help="Replace an entry of the same name.")
@data_options
def add(
    name: str,
    target: tuple[str, ...],
    headers: tuple[str, ...],
    variables: tuple[str, ...],
    sse: bool,
    replace: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Add an MCP server to the configuration.

    The server is remote, given by its URL, or is started on this machine by a command.

    \b
    moongate add docs https://docs.example.com/mcp --header "Authorization=Bearer ${DOCS_TOKEN}"
    moongate add files -- npx -y @modelcontextprotocol/server-filesystem .
    """
    from gateway.config.models import judge_server_name

    if (problem := judge_server_name(name)) is not None:
        raise click.UsageError(f"The {problem}.")
    entry = _entry(target, _pairs(headers, "--header"), _pairs(variables, "--env"), sse=sse)
    file = _own_file(config_path)
    _write_entry(file, name, entry, replace=replace, as_json=as_json)


def _write_entry(file: Path, name: str, entry: JsonObject, *, replace: bool, as_json: bool) -> None:
    from gateway.config.jsonc import EntryExists, insert_entry
    from gateway.config.load import load_text, read_text
    from gateway.gate.acceptance import Acceptance
    from gateway.storage.atomic_files import write_atomic

    is_new = not file.exists()
    text = EMPTY_FILE if is_new else read_text(file)
    try:
        edited = insert_entry(text, (_section(text, file), name), entry, replace=replace)
        loaded = load_text(edited, file.absolute(), os.environ, admission=Acceptance())
        _accept_own(loaded, name)
        write_atomic(file, edited.encode(), mode=None)
    except EntryExists:
        raise ConfigError(f"{file}: server {name!r} exists already; add `--replace`.", path=f"mcpServers.{name}") from None
    except (ConfigError, OSError) as error:
        print_note(f"{file} was not changed. Add this entry by hand:")
        print_note(json.dumps({"mcpServers": {name: entry}}, indent=2, ensure_ascii=False), folds=False)
        raise ConfigError(str(error), path=getattr(error, "path", "")) from None
    problem = next((f"{server.json_path}: {server.reason}" for server in loaded.disabled if server.name == name), None)
    if as_json:
        print_json({"added": name, "file": str(file), "entry": entry, "problem": problem})
        return
    print_text(f"added {name} to {file}")
    if is_new and file == Path.cwd() / NEW_FILE:
        print_note("This file is new. Commands in this folder read it from now on, instead of the configuration that ships with Moongate.")
    if problem:
        print_note(f"It stays disabled for now: {problem}")
    if "command" in entry and not problem and _is_missing(str(entry["command"]), loaded):
        print_note(f"Program {entry['command']!r} was not found. An address of a server begins with https:// or http://.")
    for key in _literal_secrets(entry):
        print_note(f"{key} is written out in the file; `${{VAR}}` or `${{file:PATH}}` keeps it out.")


def _accept_own(loaded: LoadedConfig, name: str) -> None:
    """Record the entry `name` as accepted, because the user typed it. A running gateway then starts it without `moongate lock --accept`."""
    from gateway.gate.acceptance import Acceptance

    own = [entry for entry in loaded.runs if entry.key == name]
    if not own or loaded.path is None:
        return
    acceptance = Acceptance()
    try:
        acceptance.open(loaded.path, loaded.config.storage.dir)
        acceptance.accept(own)
    except StorageError as error:
        print_note(f"A running gateway will not start it before `moongate lock --accept {name}`: {error}")


@click.command()
@click.argument("name")
@data_options
def remove(name: str, config_path: str | None, as_json: bool) -> None:
    """Remove the entry of an MCP server from the configuration."""
    from gateway.config.jsonc import parse, remove_entry
    from gateway.config.load import read_text
    from gateway.storage.atomic_files import write_atomic

    file = find_config(config_path, os.environ)
    if file is None or is_bundled_config(file):
        raise NotFound("server", name, f"Server {name!r} cannot be removed, because you have no configuration file of your own here.")
    text = read_text(file)
    document = parse(text, name=str(file))
    section = _section(text, file)
    servers = cast("JsonObject", document.get(section) or {})
    if name not in servers:
        raise NotFound("server", name, f"{file} has no server {name!r}. {did_you_mean(name, servers)}".rstrip())
    write_atomic(file, remove_entry(text, (section, name)).encode(), mode=None)
    if as_json:
        print_json({"removed": name, "file": str(file)})
        return
    print_text(f"removed {name} from {file}")
    if name in (document.get("policies") or {}):
        print_note(f"Its rules under policies.{name} are still there.")


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        match = re.match(r"([^=:\s]+)\s*(?:=|:)\s*(.*)", value, re.DOTALL)
        if match is None:
            raise click.UsageError(f"{option} needs KEY=VALUE, not {value!r}.")
        pairs[match.group(1)] = match.group(2)
    return pairs


def _entry(target: tuple[str, ...], headers: dict[str, str], variables: dict[str, str], *, sse: bool) -> JsonObject:
    """Return the server entry for the configuration file. Raises `click.UsageError` for contradictory arguments."""
    if not target:
        raise click.UsageError("Say what to add: a URL, or `--` and the command that starts the server.")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", first := target[0])
    if scheme is not None:
        if scheme[1].lower() not in ("http", "https"):
            raise click.UsageError(f"{first!r} cannot be added: servers are reached by http:// or https://, or started by a command.")
        if len(target) > 1 or not _is_address(first):
            raise click.UsageError(f"{' '.join(target)!r} is not one URL with a host name, like https://docs.example.com/mcp.")
        if variables:
            raise click.UsageError("--env belongs to a command; for a URL there is --header.")
        entry: JsonObject = {"type": "sse" if sse else "http", "url": first}
        return {**entry, "headers": headers} if headers else entry
    if headers or sse:
        raise click.UsageError("--header and --sse belong to a URL; for a command there is --env.")
    entry = {"command": first}
    if len(target) > 1:
        entry["args"] = list(target[1:])
    if variables:
        entry["env"] = variables
    return entry


def _is_address(url: str) -> bool:
    """Return whether a URL has a host and no invalid port. A URL with a `${VAR}` reference counts as valid: its value is unknown."""
    if "${" in url:
        return True
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a port, or not an IPv6 address
        return False


def _own_file(config_path: str | None) -> Path:
    """Return the configuration file to edit: the user's file, or a new `gateway.json` here if only the bundled configuration exists.

    Raises:
        ConfigError: The file that the user named ships with Moongate and must not be edited.
    """
    if config_path is not None and not Path(config_path).expanduser().exists():
        return Path(config_path).expanduser()
    found = find_config(config_path, os.environ)
    is_named = config_path is not None or bool(os.environ.get(CONFIG_VARIABLE))
    if found is None or (is_bundled_config(found) and not is_named):
        found = Path.cwd() / NEW_FILE
    if found.exists() and is_bundled_config(found):
        raise ConfigError(f"{found} ships with Moongate and is not edited. Name a file of your own with `--config FILE`.", path=str(found))
    return found


def _section(text: str, file: Path) -> str:
    from gateway.config.jsonc import parse

    document = parse(text, name=str(file))
    return "servers" if isinstance(document, dict) and "servers" in document else "mcpServers"


def _is_missing(command: str, loaded: LoadedConfig) -> bool:
    """Return whether a command without `${VAR}` references is neither a program on the PATH nor a file."""
    return "${" not in command and shutil.which(command) is None and not (loaded.base_dir / command).expanduser().exists()


def _literal_secrets(entry: JsonObject) -> list[str]:
    pairs: dict[str, str] = {**entry.get("headers", {}), **entry.get("env", {})}
    return [key for key, value in pairs.items() if re.search(r"auth|key|passw|secret|token", key, re.IGNORECASE) and "${" not in value]
