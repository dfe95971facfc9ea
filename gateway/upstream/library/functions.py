"""`MCPFunction`: a remote tool or prompt as a function for agents; what `MCPTool.functions` lists."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from gateway.json_types import JsonObject
from gateway.tools.base import ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]")

Invoke = Callable[[JsonObject, CallContext], Awaitable[ToolOutcome]]
"""Runs one call with arguments as the model gave them."""


def normalize_name(name: str) -> str:
    """A remote name within `[A-Za-z0-9_.-]` (requirements MC2)."""
    return _OUTSIDE.sub("-", name)


def local_name(remote: str, prefix: str | None) -> str:
    """The name of a function: the normalised remote name behind the prefix."""
    name = normalize_name(remote)
    stem = normalize_name(prefix).rstrip("_.-") if prefix else ""
    if not stem:
        return name
    rest = name.lstrip("_.-")
    return f"{stem}_{rest}" if rest else stem


class MCPFunction:
    """A `Tool` under its local name."""

    def __init__(self, definition: ToolDefinition, remote_name: str, invoke: Invoke, *, approval: bool | None) -> None:
        """`definition` has the local name; `approval` is what the settings say about it."""
        self._definition = definition
        self._invoke = invoke
        self.remote_name = remote_name
        self.approval_mode = None if approval is None else "always_require" if approval else "never_require"

    @property
    def definition(self) -> ToolDefinition:
        """As listed, under the local name; an object schema always has `properties` (requirements 3.A/22)."""
        return self._definition

    @property
    def name(self) -> str:
        """The local name."""
        return self._definition.name

    @property
    def known_as(self) -> tuple[str, str, str]:
        """The names that settings may use for it: local, normalised, remote."""
        return (self.name, normalize_name(self.remote_name), self.remote_name)

    @property
    def description(self) -> str:
        """As listed."""
        return self._definition.description or ""

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Call it on the server."""
        return await self._invoke(arguments, ctx)
