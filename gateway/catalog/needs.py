"""Finds tools, agents and skills that files of agents and workflows name, but that this gateway does not serve. Used by `moongate doctor`.

Tools of a server that is not connected are not reported, because the status of the server explains why they are missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gateway.catalog.catalog import Catalog
from gateway.config.models import GatewayConfig
from gateway.config.suggest import did_you_mean
from gateway.errors import AgentError, ModelError
from gateway.tools.base import SourceStatus, ToolSource

if TYPE_CHECKING:
    from gateway.agents.definition import AgentDefinition
    from gateway.agents.source import AgentSource
    from gateway.skills.source import SkillSource
    from gateway.workflows.source import WorkflowSource

_GLOB = frozenset("*?[")

_OWN = ("agent", "workflow", "function", "skill")
"""Ids of the sources that run in the gateway itself, with which a tool pattern may begin (`agent/…`). No server can have such a name."""

REACH_SECONDS = 10.0
"""Timeout in seconds for the request that checks whether a remote agent responds, such as fetching its A2A agent card."""


@dataclass(frozen=True, slots=True)
class UnmetNeed:
    """A tool, agent, workflow, skill or server that a file of an agent or workflow names, but that the gateway does not serve."""

    kind: str
    """Kind of the file that contains the name: `agent` or `workflow`."""
    where: str
    """Path of the file that contains the name."""
    text: str
    """Message for the user: what is missing, and what to do."""
    is_fatal: bool
    """Whether `moongate doctor` reports an error, not a warning. It is a warning if a pattern with wildcards matches no tool, unless it
    names an unknown server, because the author may intend this."""


async def unmet_needs(
    local: Mapping[str, ToolSource], catalog: Catalog, statuses: Sequence[SourceStatus], *, idle: Collection[str] = ()
) -> list[UnmetNeed]:
    """Return the tools and agents, and then the skills, that files of agents and workflows name, but that no source serves.

    Both are in the order of the files, agents first. `local` has the sources that run in the gateway, by id; `statuses` has the statuses of
    all sources. Tools of the servers in `idle`, which are disabled examples of the bundled configuration, are not reported.
    """
    known = {status.name: status for status in statuses}
    tools = [f"{tool.source}/{tool.definition.name}" for tool in await catalog.tools()]
    found = [
        UnmetNeed(kind, where, text, is_fatal=not _GLOB & set(pattern) or _names_unknown_server(pattern, known))
        for kind, where, patterns in _patterns(local)
        for pattern in dict.fromkeys(patterns)
        if pattern.partition("/")[0] not in idle
        if not await catalog.tools([pattern]) and (text := _missing(pattern, known, tools))
    ]
    return found + _unknown_skills(local)


async def unreachable_agents(local: Mapping[str, ToolSource]) -> dict[str, str]:
    """Send a request to each remote agent, without running it; return file → reason for agents that fail to answer in `REACH_SECONDS`."""
    import anyio

    found: dict[str, str] = {}
    loaded = cast("AgentSource", local["agent"]).loaded.values() if "agent" in local else ()
    for one in loaded:
        remote = (one.remote.agent or one.remote.client) if one.remote is not None else None
        if remote is None:
            continue
        try:
            with anyio.fail_after(REACH_SECONDS):
                await remote.reach()
        except (AgentError, ModelError) as error:
            found[str(one.definition.path)] = str(error)
        except TimeoutError:
            found[str(one.definition.path)] = f"The remote agent did not answer within {REACH_SECONDS:g} s."
    return found


def models_used(local: Mapping[str, ToolSource], config: GatewayConfig) -> dict[str, list[str]]:
    """Return each model spec (such as `openai:NAME`) in use, with the names of the agents and policies that use it."""
    used: dict[str, list[str]] = {}
    if "agent" in local:
        for definition in cast("AgentSource", local["agent"]).definitions:
            file = definition.file
            if file.remote is None:
                judge = [file.loop_until.judge] if file.loop_until is not None and file.loop_until.judge else []
                for spec in dict.fromkeys([file.model, *judge]):
                    used.setdefault(spec, []).append(f"agent {file.name}")
    for name in config.mcp_servers:
        sampling = config.policy(name).sampling
        if sampling.mode == "answer" or (sampling.mode == "ask" and sampling.model):
            used.setdefault(sampling.model or "auto", []).append(f"policies.{name}.sampling")
    return used


def _definitions(local: Mapping[str, ToolSource]) -> list[AgentDefinition]:
    """Return the definitions of all agents that loaded, and of agents that failed to load only because a file or tool is missing."""
    source = cast("AgentSource", local["agent"])
    return list({definition.path: definition for definition in (*source.definitions, *source.unloaded)}.values())


def _patterns(local: Mapping[str, ToolSource]) -> list[tuple[str, str, list[str]]]:
    """Return the tool patterns of every agent and workflow, as `(kind, path of the file, patterns)`; `kind` is `agent` or `workflow`."""
    found: list[tuple[str, str, list[str]]] = []
    if "agent" in local:
        found += [("agent", str(definition.path), definition.file.tools) for definition in _definitions(local)]
    if "workflow" in local:
        found += [("workflow", where, patterns) for where, patterns in cast("WorkflowSource", local["workflow"]).needs().items()]
    return found


def _names_unknown_server(pattern: str, known: Mapping[str, SourceStatus]) -> bool:
    source = pattern.partition("/")[0]
    return source not in _OWN and source not in known and not _GLOB & set(source)


def _missing(pattern: str, known: Mapping[str, SourceStatus], tools: Collection[str]) -> str:
    """Return a message that says why a tool pattern (`<source>/<name>`) matches no tool; empty if the server is not connected.

    The status of a server that is not connected already explains why its tools are missing. `tools` are all served tools, as
    `<source>/<name>`.
    """
    source, _, name = pattern.partition("/")
    if source in _OWN:
        names = [tool.partition("/")[2] for tool in tools if tool.startswith(f"{source}/")]
        hint = did_you_mean(name, names) or f"`moongate list {'tools' if source == 'function' else f'{source}s'}` shows what is served."
        return f"unknown {source} {name!r}. {hint}"
    status = known.get(source)
    if status is None:
        return f"{pattern!r}: unknown server {source!r}. {did_you_mean(source, known) or 'Add it under mcpServers.'}"
    if status.state not in ("ready", "idle"):
        return ""
    if (why := status.quarantined.get(name)) is not None:
        return f"{pattern!r} is quarantined: {why}"
    hint = did_you_mean(pattern, tools) or f"`moongate list tools` shows the tools of {source!r}."
    return f"{pattern!r}: server {source!r} has no such tool. {hint}"


def _unknown_skills(local: Mapping[str, ToolSource]) -> list[UnmetNeed]:
    if "agent" not in local:
        return []
    index = cast("SkillSource", local["skill"]).index if "skill" in local else None
    found: list[UnmetNeed] = []
    for definition in _definitions(local):
        for name in definition.file.skills:
            if index is None or not index.named(name):
                names = [skill.name for skill in index.for_models] if index is not None else []
                hint = did_you_mean(name, names) or "`moongate list skills` shows what is served."
                found.append(UnmetNeed("agent", str(definition.path), f"unknown skill {name!r}. {hint}", is_fatal=True))
    return found
