"""Builds the capabilities that the gateway declares, and the results of `initialize` and `server/discover`, for both server paths."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.tools.base import cacheable, complete_result

_LIST = {"listChanged": True}
_SHARED: JsonMapping = {
    "completions": {},
    "logging": {},
    "prompts": _LIST,
    "resources": {**_LIST, "subscribe": True},
    "tools": _LIST,
}
_TASKS_2025: JsonMapping = {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}


def modern_capabilities(extensions: Mapping[str, JsonObject]) -> JsonObject:
    """Return the server capabilities that are declared to 2026 clients. `extensions` are the settings of MCP extensions, by their id."""
    return {**_SHARED, "extensions": dict(extensions)} if extensions else dict(_SHARED)


def legacy_capabilities() -> JsonObject:
    """Return the server capabilities that are declared to 2025 clients."""
    return {**_SHARED, "tasks": _TASKS_2025}


def discover_result(instructions: str, extensions: Mapping[str, JsonObject]) -> JsonObject:
    """Return the result of `server/discover`. `extensions` are the settings of the MCP extensions that are declared, by extension id."""
    facts: JsonObject = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": modern_capabilities(extensions),
        "instructions": instructions,
    }
    return cacheable(complete_result(facts, is_modern=True))


def initialize_result(version: str, instructions: str, identity: JsonMapping) -> JsonObject:
    """Return the result of `initialize`. `version` is the negotiated protocol version, `identity` the server's name and version."""
    return {
        "capabilities": legacy_capabilities(),
        "instructions": instructions,
        "protocolVersion": version,
        "serverInfo": dict(identity),
    }
