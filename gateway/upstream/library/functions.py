"""`MCPFunction`: makes a tool or prompt of a remote server available as a function for agents (`MCPTool.functions`)."""

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
"""Maximum characters of the name of a function (`tools.function.FunctionTool`)."""

_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]")

Parse = Callable[[Complete], str | list[Content]]
"""Function that converts the result of a call to the value that the program gets."""


class Invoke(Protocol):
    """The type of a function that runs one call of an `MCPFunction` on its server, and returns the result."""

    async def __call__(self, arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
        """Run the call with `arguments`. With `by_program`, the program makes the call, not a model, so no approval is needed.

        Raises:
            ToolFailed: The call failed.
        """
        ...


def normalize_name(name: str) -> str:
    """Return the name of a remote tool or prompt with each character outside `[A-Za-z0-9_.-]` replaced by `-`."""
    return _OUTSIDE.sub("-", name)


def local_name(remote: str, prefix: str | None) -> str:
    """Return the name that a remote tool or prompt has in the program: the prefix, `_` and the normalised remote name.

    Without a prefix, return the normalised remote name alone.
    """
    name = normalize_name(remote)
    stem = normalize_name(prefix).rstrip("_.-") if prefix else ""
    if not stem:
        return name
    rest = name.lstrip("_.-")
    return f"{stem}_{rest}" if rest else stem


class MCPFunction(FunctionTool[..., Any]):
    """A tool or prompt of a remote server as a `FunctionTool` for agents. It has a local name, and calls run on the server."""

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
        """Create a function for `remote_name` of the server `source`. `definition` has the local name, and `invoke` runs the calls.

        `approval` is true if a person must approve calls that a model makes (`None`: not configured). `parse` converts results; without it,
        they become `Content` objects.
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
        """The name on the server. Rules refer to the function as `<source>/<native name>`."""
        self.source = source
        """The name of the server."""

    @cached_property
    def _definition(self) -> ToolDefinition:
        """The definition with the local name. Its input schema always has `properties` if it is an object schema."""
        return dataclasses.replace(self._listed, name=self.name, description=self._description or None)

    @property
    def known_as(self) -> tuple[str, str, str]:
        """The names by which settings may refer to the function: its local, normalised and remote name."""
        return (self.name, normalize_name(self.remote_name), self.remote_name)

    async def run(self, arguments: JsonObject, ctx: CallContext) -> JsonValue | ToolOutcome:
        """Call the function on the server for an agent, and return the result, converted by the custom parser if there is one.

        If the gateway's rules (the gate) refuse the call, the refusal is returned as a result, not raised.

        Raises:
            ToolFailed: The server could not be reached or rejected the call, or the tool failed.
        """
        self._count()
        try:
            outcome = await self._invoke(arguments, ctx, by_program=False)
            refused = RULE_META_KEY in (outcome.result.get("_meta") or {})  # the gate refused the call, so it did not run
            if not refused and (self._parse is not None or outcome.is_error):
                return read_outcome(outcome, self._parse)
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
        return read_outcome(await self._invoke(arguments, ctx, by_program=True), self._parse)


def read_outcome(outcome: Complete, parse: Parse | None) -> str | list[Content]:
    """Convert the outcome of a call with `parse`, or to contents if `parse` is `None`. Raises `ToolFailed` if the outcome is an error."""
    parsed = parse(outcome) if parse is not None else to_contents(outcome.result)
    if outcome.is_error:
        raise ToolFailed(error_text(parsed))
    return parsed
