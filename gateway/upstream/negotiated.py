"""`Negotiated`: result of the handshake with a server: protocol version, capabilities and instructions. `server_session` creates it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, members_of
from gateway.protocol import SKILLS_EXTENSION, TASKS_EXTENSION
from gateway.tools.ports import Era


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The protocol version that a server and the gateway agreed on, and the server's capabilities, instructions and name."""

    era: Era
    protocol_version: str
    capabilities: JsonMapping
    instructions: str | None = None
    server_info: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    has_tasks: bool = field(init=False)
    """Whether the server supports the tasks extension of MCP 2026 (SEP-2663)."""

    def __post_init__(self) -> None:
        has_tasks = self.era == "modern" and TASKS_EXTENSION in (self.capabilities.get("extensions") or ())
        object.__setattr__(self, "has_tasks", has_tasks)

    @classmethod
    def from_result(cls, era: Era, version: str, result: JsonMapping, server_info: JsonValue) -> Negotiated:
        """Create the object from a server's result of `server/discover` or `initialize`. `version` is the agreed protocol version."""
        said = result.get("instructions")
        instructions = said if isinstance(said, str) and said else None
        capabilities = cast("JsonMapping", result.get("capabilities") or {})
        return cls(era, version, capabilities, instructions, cast("JsonMapping", server_info or {}))

    @property
    def skills(self) -> JsonMapping | None:
        """The server's settings of the skills extension; `None` if it does not support the extension."""
        return as_object(members_of(self.capabilities.get("extensions")).get(SKILLS_EXTENSION)) if self.era == "modern" else None
