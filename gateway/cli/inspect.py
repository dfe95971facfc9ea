"""`moongate inspect`: shows the full definition of one tool, server, prompt or resource, as clients receive it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import click

from gateway.cli.common import Target, data_options, gateway_options, load, run_async
from gateway.cli.output import camel_keys, masked, print_json, print_text
from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from gateway.cli.hub import HubTool
    from gateway.config.load import LoadedConfig
    from gateway.tools.base import Kind


_READABLE: tuple[tuple[Kind, str, str], ...] = (
    ("resources", "uri", "resource"),
    ("templates", "uriTemplate", "template"),
    ("prompts", "name", "prompt"),
)


@click.command()
@click.argument("name")
@gateway_options
@data_options
def inspect(name: str, target: Target, config_path: str | None, as_json: bool) -> None:
    """Show one tool, server, prompt or resource in full.

    A tool is shown with its schema as clients see it, a server with its state and its policy.
    """
    loaded = load(config_path, fetches=False)
    found = run_async(lambda: _find(name, loaded, target))
    shown = cast("JsonObject", masked(found, loaded.secrets))
    print_json(shown) if as_json else _print(shown)


async def _find(name: str, loaded: LoadedConfig, target: Target) -> JsonObject:
    from gateway.cli.hub import open_hub

    async with open_hub(loaded, target) as hub:
        sources = [camel_keys(source) for source in await hub.sources()] if hub.shows_sources else []
        tools = await hub.tools()
        for source in sources:
            if source["name"] == name:
                return _source(source, tools, loaded if hub.is_own else None)
        others: list[str] = [str(source["name"]) for source in sources]
        for kind, key, label in _READABLE:
            for wire in await hub.listing(kind):
                if wire[key] == name:
                    return {"kind": label, "name": name, "definition": wire}
                others.append(str(wire[key]))
        try:
            return _tool(name, tools, sources, loaded if hub.is_own else None, others)
        except NotFound as error:
            if not hub.has_key:
                raise
            scopes = "The scopes of the API key may leave it out."
            raise NotFound(error.kind, error.name, f"{error} {scopes}") from None


def _source(source: JsonObject, tools: list[HubTool], loaded: LoadedConfig | None) -> JsonObject:
    name = str(source["name"])
    entry = loaded.config.mcp_servers.get(name) if loaded is not None else None
    return {
        **source,
        "entry": entry.model_dump(by_alias=True) if entry is not None else None,
        "policy": _policy(name, loaded),
        "toolNames": [tool.name for tool in tools if tool.source == name],
    }


def _tool(name: str, tools: list[HubTool], sources: list[JsonObject], loaded: LoadedConfig | None, others: Iterable[str]) -> JsonObject:
    from gateway.cli.hub import missing_source, pick_tool, suggestion

    try:
        found = pick_tool(tools, name, sources)
    except NotFound:
        hint = missing_source(name, sources) or suggestion(name, tools, others)
        hint = hint or "`moongate list` and `moongate list tools` show what there is."
        text = f"Unknown tool, server, prompt or resource {name!r}. {hint}"
        raise NotFound("tool", name, text) from None
    state = next((source["state"] for source in sources if source["name"] == found.source), None)
    return {
        "kind": found.source if found.source in ("agent", "workflow") else "tool",
        "name": found.name,
        "source": found.source,
        "state": state,
        "definition": found.wire,
        "policy": _policy(found.source, loaded) if found.source else None,
    }


def _policy(source: str, loaded: LoadedConfig | None) -> JsonObject | None:
    """Return the policy of a source as JSON; `None` if `loaded` is `None`.

    `loaded` is the local configuration, or `None` if the user named a gateway by its URL, because it may serve another configuration.
    """
    return None if loaded is None else loaded.config.policy(source).model_dump(by_alias=True, mode="json")


def _print(found: JsonMapping) -> None:
    for key, value in found.items():
        if value is None or value in ([], {}):
            continue
        if isinstance(value, float):
            value = f"{value:.0f}"
        if isinstance(value, (dict, list)):
            print_text(f"{key}:")
            text = json.dumps(value, indent=2, ensure_ascii=False)
            print_text("\n".join(f"  {line}" for line in text.splitlines()))
        else:
            print_text(f"{key}: {value}")
