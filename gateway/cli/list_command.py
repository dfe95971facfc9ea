"""`moongate list`: lists the sources, tools, agents, skills, workflows, prompts or resources that the gateway serves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast, get_args

import click

from gateway.cli.common import CHARS_PER_TOKEN, Choice, Target, data_options, gateway_options, load, run_async, with_servers
from gateway.cli.output import camel_keys, first_line, print_json, print_note, print_table, remark_text, since_text
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from gateway.cli.hub import Hub, HubTool
    from gateway.config.load import LoadedConfig

ListKind = Literal["sources", "servers", "tools", "agents", "skills", "workflows", "prompts", "resources"]
KINDS = cast("tuple[ListKind, ...]", get_args(ListKind))

_OF_FILES: dict[ListKind, str] = {"agents": "agent", "workflows": "workflow", "skills": "skill"}
"""Kind of entries that are defined in files → id of the source that serves all entries of this kind, such as `agent`."""

_EMPTY: dict[ListKind, str] = {
    "servers": "No server is configured. `moongate add NAME URL` or `moongate add NAME -- COMMAND` adds one.",
    "tools": "No tools are served.",
    "agents": "No agents are served. `expose.agents` of the configuration names folders with `*.agent.md` files.",
    "workflows": "No workflows are served. `expose.agents` of the configuration names folders with `*.workflow.yaml` files.",
    "skills": "No skills are served. `expose.skills` of the configuration names folders of skills.",
    "prompts": "No prompts are served.",
    "resources": "No resources are served.",
}
"""Kind of entries → message that is printed if the gateway serves no entry of this kind."""

_SKILL_URI = re.compile(r"skill://.+/SKILL\.md\Z")
"""Matches the URI of the resource that describes one skill."""


_COLUMNS: dict[ListKind, dict[str, tuple[str, ...]]] = {
    "tools": {"name": ("name",), "source": ("source",), "description": ("description", "title")},
    "agents": {"name": ("name",), "description": ("description",)},
    "workflows": {"name": ("name",), "description": ("description",)},
    "skills": {"name": ("name",), "uri": ("uri",), "description": ("description",)},
    "prompts": {"name": ("name",), "description": ("description", "title")},
    "resources": {"uri": ("uri", "uriTemplate"), "type": ("mimeType",), "name": ("title", "name")},
}
"""Columns of the printed table for each kind of entries.

Each column has a header and a list of keys. For each entry, it shows the value of the first key that has a value.
"""


@click.command("list")
@click.argument("kind", type=Choice(KINDS), default="sources")
@gateway_options
@click.option("--tokens", is_flag=True, help="Estimate the tokens that tools take in a model's context, most first.")
@data_options
def list_command(kind: ListKind, target: Target, tokens: bool, config_path: str | None, as_json: bool) -> None:
    """List what the gateway serves: sources, tools, …

    Without an argument, the command lists the sources. A source is one server, or for example all agents of the gateway. The command asks
    the running gateway. If no gateway runs, the command reads the files of agents and workflows itself, and starts the configured sources
    for the other kinds.
    """
    if tokens and kind not in ("tools", "servers", "sources"):
        raise click.UsageError("--tokens can only be used with tools, servers or sources.")
    loaded = load(config_path, fetches=False)
    if tokens:
        _list_tokens(kind, loaded, target, as_json=as_json)
        return
    items, has_key = run_async(lambda: _items(kind, loaded, target))
    if as_json:
        print_json({kind: items})
    elif kind in ("sources", "servers"):
        _print_sources(items)
    else:
        _print_items(kind, items, f"No {kind} are served to this API key." if has_key else _EMPTY[kind])


def _list_tokens(kind: ListKind, loaded: LoadedConfig, target: Target, *, as_json: bool) -> None:
    from gateway.cli.hub import open_hub

    async def read() -> tuple[list[HubTool], set[str]]:
        async with open_hub(loaded, target) as hub:
            shown = [str(source["name"]) for source in await hub.sources() if source["kind"] == "server"] if hub.shows_sources else []
            return await hub.tools(), {*loaded.config.mcp_servers, *shown}

    tools, servers = run_async(read)
    costs = [(tool.name, tool.source or "", estimate_tokens(tool.wire)) for tool in tools]
    rows: list[JsonObject]
    if kind == "tools":
        rows = [{"name": name, "source": source, "tokens": tokens} for name, source, tokens in costs]
    else:
        sources = {source for _, source, _ in costs if kind == "sources" or source in servers}
        rows = [
            {"name": name, "tools": sum(s == name for _, s, _ in costs), "tokens": sum(t for _, s, t in costs if s == name)}
            for name in sources
        ]
    rows.sort(key=lambda row: (-row["tokens"], row["name"]))
    total = sum(row["tokens"] for row in rows)
    if as_json:
        print_json({kind: rows, "total": total, "estimate": "characters / 4"})
        return
    columns = ("name", "source", "tokens") if kind == "tools" else ("name", "tools", "tokens")
    print_table(columns, [*[[str(row[column]) for column in columns] for row in rows], ["total (estimate)", "", str(total)]], empty="")


def estimate_tokens(wire: JsonMapping) -> int:
    """Return the estimated tokens that a tool takes in a model's context: its name, description and input schema.

    `CHARS_PER_TOKEN` characters count as one token.
    """
    shown = {key: wire[key] for key in ("name", "description", "inputSchema") if key in wire}
    return -(-len(json.dumps(shown, ensure_ascii=False, separators=(",", ":"))) // CHARS_PER_TOKEN)


async def _items(kind: ListKind, loaded: LoadedConfig, target: Target) -> tuple[list[JsonObject], bool]:
    """Return the entries of a kind (sources, tools, …) that the gateway serves, and whether an API key was used to list them.

    With an API key, entries outside the key's scopes are missing.
    """
    from gateway.cli.hub import open_hub, open_own, open_running
    from gateway.cli.skill_commands import may_start_servers

    if kind in _OF_FILES:
        starts = kind == "skills" and may_start_servers(loaded)
        async with open_running(loaded, target, instead="starts the sources" if starts else f"reads the {kind}") as running:
            if running is not None:
                return await _of_files(kind, running), running.has_key
        if kind == "skills":
            return await _own_skills(loaded), False
        async with open_own(replace(with_servers(loaded, ()), is_complete=True)) as own:
            return await _of_files(kind, own), False
    async with open_hub(loaded, target) as hub:
        return await _of_hub(kind, hub), hub.has_key


async def _of_hub(kind: ListKind, hub: Hub) -> list[JsonObject]:
    """Return the sources, tools, resources or prompts of a gateway; print the gateway's problems on stderr."""
    if kind in ("sources", "servers"):
        for problem in await hub.problems():
            print_note(f"problem: {problem}")
        sources = [camel_keys(source) for source in await hub.sources()]
        return [source for source in sources if kind == "sources" or source["kind"] == "server"]
    if kind == "tools":
        for source in await hub.sources() if hub.shows_sources else ():
            if source.get("loop"):
                print_note(f"problem: server {source['name']!r}: {source['loop']}")
        return [{**tool.wire, "source": tool.source} for tool in await hub.tools()]
    if kind == "resources":
        return [*await hub.listing("resources"), *await hub.listing("templates")]
    return await hub.listing("prompts")


async def _of_files(kind: ListKind, hub: Hub) -> list[JsonObject]:
    """Return the agents, workflows or skills that a gateway serves; print the files that it could not load on stderr."""
    source = _OF_FILES[kind]
    print_not_loaded([problem for problem in await hub.not_loaded() if problem["source"] == source])
    if kind == "skills":
        found = [wire for wire in await hub.listing("resources") if _SKILL_URI.match(str(wire["uri"]))]
        return [{"name": wire["name"], "description": wire.get("description") or "", "uri": wire["uri"]} for wire in found]
    return [{**tool.wire, "source": source} for tool in await hub.tools() if tool.source == source]


async def _own_skills(loaded: LoadedConfig) -> list[JsonObject]:
    from gateway.cli.skill_commands import read_index, skill_row
    from gateway.skills.model import rejected_skills

    index = await read_index(loaded)
    print_not_loaded(rejected_skills([*index.reports, *index.trouble]))
    return [skill_row(skill) for skill in index.skills]


def print_not_loaded(problems: Sequence[JsonMapping]) -> None:
    """Print on stderr each file or setting that the gateway could not load (`Hub.not_loaded`), and the reason."""
    from gateway.tools.functions_source import STAYS

    for problem in problems:
        label = "change not applied" if str(problem["message"]).endswith(STAYS) else "not served"
        print_note(f"{label}: {problem['where']}: {problem['message']}")


def _print_sources(sources: Sequence[JsonMapping]) -> None:
    rows = [
        [
            str(source["name"]),
            str(source["transport"] if source["kind"] == "server" else source["kind"]),
            str(source["protocolVersion"] or "-"),
            str(source["state"]),
            str(source["tools"]),
            f"{source['milliseconds']:.0f}" if source["milliseconds"] is not None else "-",
            ": ".join(text for text in (since_text(source), str(source["error"] or remark_text(source))) if text),
        ]
        for source in sources
    ]
    print_table(("name", "kind", "protocol", "state", "tools", "ms", "problem"), rows, empty=_EMPTY["servers"], whole_last=True)


def _print_items(kind: ListKind, items: Sequence[JsonMapping], empty: str) -> None:
    columns = _COLUMNS[kind]
    rows = [[first_line(next((item[key] for key in keys if item.get(key)), "")) for keys in columns.values()] for item in items]
    print_table(list(columns), rows, empty=empty)
