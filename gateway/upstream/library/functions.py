"""`MCPFunction`: a remote tool or prompt as a function for agents, as in `MCPTool.functions`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from gateway.errors import ToolFailed
from gateway.gate.refusals import RULE_META_KEY
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool
from gateway.types.content import Content
from gateway.upstream.library.tool_contents import error_text, to_contents

MAX_NAME_CHARS = 128
"""Maximum characters of a function's name (`FunctionTool`)."""

_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]")

Parse = Callable[[Complete], str | list[Content]]
"""Converts the result of a call to the value that the program gets."""


class Invoke(Protocol):
    """Runs one call of an `MCPFunction` on its server, and returns the result."""

    async def __call__(self, arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
        """Run the call with `arguments`. If `by_program`, no model makes the call, so it needs no approval. Raises `ToolFailed`."""
        ...


def normalize_name(name: str) -> str:
    """Return a remote name with characters outside `[A-Za-z0-9_.-]` replaced by `-`."""
    return _OUTSIDE.sub("-", name)


def local_name(remote: str, prefix: str | None) -> str:
    """Return the name of a function in the program: the prefix, `_` and the normalised remote name."""
    name = normalize_name(remote)
    stem = normalize_name(prefix).rstrip("_.-") if prefix else ""
    if not stem:
        return name
    rest = name.lstrip("_.-")
    return f"{stem}_{rest}" if rest else stem


class MCPFunction(FunctionTool[..., Any]):
    """A remote tool or prompt as a `FunctionTool`: it has a local name, and runs on the server."""

    def __init__(
        self,
        definition: ToolDefinition,
        remote_name: str,
        invoke: Invoke,
        *,
        source: str,
        approval: bool | None = None,
        parse: Parse | None = None,
    ) -> None:
        """`definition` has the local name, and `source` is the server's name.

        `approval` tells whether a person must approve calls of a model (`None`: not configured). Without `parse`, results become `Content`
        objects.
        """
        super().__init__(
            self._from_program,
            name=definition.name,
            description=definition.description or "",
            schema=definition.input_schema,
            approval_mode="always_require" if approval else "never_require",
        )
        self._listed = definition
        self._invoke = invoke
        self._parse = parse
        self.remote_name = remote_name
        self.native_name = remote_name
        """The function's name on the server, for rules that name `<source>/<tool>`."""
        self.source = source
        """The server's name."""

    @cached_property
    def _definition(self) -> ToolDefinition:
        """The definition as listed, under the local name. An object schema always has `properties`."""
        return dataclasses.replace(self._listed, name=self.name, description=self._description or None)

    @property
    def known_as(self) -> tuple[str, str, str]:
        """The names by which settings may refer to the function: local, normalised and remote."""
        return (self.name, normalize_name(self.remote_name), self.remote_name)

    async def run(self, arguments: JsonObject, ctx: CallContext) -> JsonValue | ToolOutcome:
        """Call the function on the server as an agent does, and return the result, or what a custom parser made of it.

        Raises:
            ToolFailed: The server could not be reached or rejected the call, or the tool failed.
        """
        self._count()
        try:
            outcome = await self._invoke(arguments, ctx, by_program=False)
            refused = RULE_META_KEY in (outcome.result.get("_meta") or {})  # the gate refused the call, so nothing failed
            if not refused and (self._parse is not None or outcome.is_error):
                return self._read(outcome)
        except ToolFailed:
            self.invocation_exception_count += 1
            raise
        return outcome

    async def _value(self, arguments: JsonObject, ctx: CallContext, *, raw: bool = False) -> Any:
        self._count()
        try:
            return await self._parsed(arguments, ctx)
        except ToolFailed:
            self.invocation_exception_count += 1
            raise

    async def _from_program(self, **arguments: JsonValue) -> str | list[Content]:
        return await self._parsed(arguments, CallContext())

    async def _parsed(self, arguments: JsonObject, ctx: CallContext) -> str | list[Content]:
        return self._read(await self._invoke(arguments, ctx, by_program=True))

    def _read(self, outcome: Complete) -> str | list[Content]:
        parsed = self._parse(outcome) if self._parse is not None else to_contents(outcome.result)
        if outcome.is_error:
            raise ToolFailed(error_text(parsed))
        return parsed
