"""Functions with which `Catalog` merges the tools of all sources: matching of patterns, and the text about a name clash."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.catalog.gateway_source import SOURCE_ID
from gateway.gate.tools import GuardedTool


def matching_tools(tools: Sequence[GuardedTool], patterns: Sequence[str]) -> list[GuardedTool]:
    """Return the tools that match one of the patterns `<source>/<glob>`. A pattern without `/` matches all tools of the source."""
    split = [p.split("/", 1) if "/" in p else [p, "*"] for p in patterns]
    return [
        tool for tool in tools if any(source == tool.source and fnmatchcase(tool.definition.name, glob) for source, glob in split)
    ]


def clash_text(name: str, first: str, second: str) -> str:
    """Return the error text for a tool name that two sources (ids `first` and `second`) claim, with the configuration key that fixes it."""
    if first == SOURCE_ID:  # for example a second gateway behind this one without a prefix
        return f"This gateway's own tool {name!r} hides the one of source {second!r}; give {second!r} a `prefix` under `policies`."
    claimed = f"Tool name {name!r} is claimed by source {first!r} and by source {second!r}"
    return f"{claimed}; give one of them another `prefix` under `policies`."
