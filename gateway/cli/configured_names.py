"""Reads the names of the sources, agents, workflows and tools of a configuration from its files, without starting anything. Commands use
the names for suggestions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig


def source_names(loaded: LoadedConfig) -> list[str]:
    """Return the names of all sources of tools: servers (disabled servers included), local sources, and the gateway's own tools."""
    from gateway.config.models import RESERVED_SOURCES

    return [*loaded.config.mcp_servers, *(entry.name for entry in loaded.disabled), *sorted(RESERVED_SOURCES)]


def agent_names(loaded: LoadedConfig) -> list[str]:
    """Return the names of the agents that the configuration exposes. An invalid agent file is listed by its file name."""
    from gateway.agents.definition import read_agent
    from gateway.agents.source import find_files

    names: list[str] = []
    for path in find_files(_folders(loaded)):
        try:
            names.append(read_agent(path).file.name)
        except GatewayError:
            names.append(path.name.removesuffix(".md").removesuffix(".agent"))
    return names


def workflow_files(loaded: LoadedConfig) -> dict[str, Path]:
    """Return the files of the workflows that the configuration exposes, by workflow name."""
    from gateway.workflows.loader import examine
    from gateway.workflows.source import find_files

    found: dict[str, Path] = {}
    for path in find_files(_folders(loaded)):
        file, _ = examine(path)
        found.setdefault(file.name if file is not None else path.name.split(".workflow.")[0], path)
    return found


def tool_names(loaded: LoadedConfig, wanted: str) -> list[str]:
    """Return exposed tool names that a command may suggest instead of the unknown name `wanted`, without starting a server.

    The result has the names of all agents and workflows. If `wanted` has a prefix, the result also has the name with the prefix of each
    server instead.
    """
    from gateway.catalog.names import NAME_BUDGET, expose_name

    config = loaded.config
    _, separator, native = wanted.partition("__")
    names = [(server, native) for server in config.mcp_servers] if separator else []
    names += [("agent", name) for name in agent_names(loaded)] + [("workflow", name) for name in workflow_files(loaded)]
    return [expose_name(config.prefix_of(source), name, NAME_BUDGET - len(config.server.client_prefix)) for source, name in names]


def _folders(loaded: LoadedConfig) -> Sequence[Path]:
    return [loaded.base_dir / folder for folder in loaded.config.expose.agents]
