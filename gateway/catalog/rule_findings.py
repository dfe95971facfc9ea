"""Checks all policies of a gateway for mistakes with `policy.lint`, for `moongate policy lint`, `moongate doctor` and the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gateway.config.load import LoadedConfig
from gateway.config.policies import OWN_SOURCE_KINDS
from gateway.json_types import JsonObject
from gateway.policy.lint import Finding, lint_names, lint_policy, lint_unlisted
from gateway.policy.own_sources import is_own_source
from gateway.tools.base import ToolSource
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.agents.source import AgentSource

logger = logging.getLogger(__name__)

Findings = Mapping[str, Sequence[Finding]]
"""Key under `policies` in the configuration → findings (mistakes and notes) on that policy."""


async def own_findings(loaded: LoadedConfig, local: Mapping[str, ToolSource]) -> dict[str, tuple[Finding, ...]]:
    """Return remarks about rules (such as a rule for an unknown tool) in all policies except those of servers, by the key of the policy.

    These are the policies of the local sources in `local` (by id), of `agent/<name>` and `workflow/<name>` (tools that this agent or
    workflow defines), and policies whose key is not the name of a source.
    """
    policies = loaded.config.policies
    servers = {*loaded.config.mcp_servers, *(server.name for server in loaded.disabled)}
    known = cast("AgentSource", local["agent"]).file_schemas() if "agent" in local else {}
    found = {name: lint_unlisted(policy, known.get(name, {})) for name, policy in policies.items() if is_own_source(name)}
    own: list[str] = []
    for name, source in local.items():
        schemas = {tool.definition.name: tool.definition.input_schema for tool in await source.tools()}
        found[name] = lint_policy(loaded.config.policy(name), schemas, is_local=True)
        own += [f"{name}/{tool}" for tool in schemas] if name in OWN_SOURCE_KINDS else []
    return found | lint_names(policies, servers, own)


def server_findings(loaded: LoadedConfig, definitions: Mapping[str, Sequence[JsonObject]]) -> dict[str, tuple[Finding, ...]]:
    """Return the findings on the policies of connected servers, by server. `definitions` maps each server to all tools that it lists."""
    schemas = {server: {str(wire["name"]): wire.get("inputSchema") for wire in tools} for server, tools in definitions.items()}
    return {server: lint_policy(loaded.config.policy(server), of_server) for server, of_server in schemas.items()}


def remarks_of(findings: Findings) -> list[str]:
    """Return one line, with JSON path and text, for each finding that needs repair; findings of the kind `note` are left out.

    Findings about policies of unknown servers (the policy's key is not the name of a server) are left out too, because loading the
    configuration has already reported them.
    """
    return [
        f"policies.{name}{'.' if finding.path else ''}{finding.path}: {finding.text}"
        for name, of_name in findings.items()
        for finding in of_name
        if finding.kind != "note" and (finding.path or "/" in name)
    ]


def server_remarks(loaded: LoadedConfig, upstream: UpstreamSource) -> list[str]:
    """Return one line for each fault in the policy of a server, and for each tool in the lock file that the server no longer lists; empty
    if the server is not connected."""
    if upstream.status().state != "ready":
        return []
    return remarks_of(server_findings(loaded, {upstream.id: upstream.lists.entries["tools"]})) + upstream.lists.pins.remarks()


async def log_own_faults(loaded: LoadedConfig, local: Mapping[str, ToolSource]) -> None:
    """Log a warning for each fault in the policies of local sources (skills, functions, agents, workflows)."""
    log_faults(remarks_of(await own_findings(loaded, local)))


def log_faults(remarks: Sequence[str]) -> None:
    """Log a warning for each fault in a policy. `remarks` are the texts of the faults."""
    for remark in remarks:
        logger.warning("policy needs repair finding=%s", remark)
