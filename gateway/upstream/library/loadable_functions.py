"""Progressive disclosure for an `MCPTool`: a model first sees three helper functions, and loads the functions of the server with them.

The helper functions list, load and unload functions. A loaded function is among the tools of the agent's run from the next model call on.
It stays loaded in the `MCPTool`, also for later runs. For clients of the gateway, the policy key `disclosure: on-demand` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.invocation import FunctionInvocationContext
from gateway.upstream.library.functions import MCPFunction, local_name

_NAMES: JsonObject = {
    "type": "object",
    "properties": {
        "tool": {
            "description": "One function name, or several, as listed.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        }
    },
    "required": ["tool"],
}


_NOTHING: JsonObject = {"type": "object", "properties": {}}


class Disclosure:
    """Selects which functions of an `MCPTool` a model sees, and provides the helper functions that list, load and unload them."""

    def __init__(self, server: str, prefix: str | None, always: Collection[str], available: Callable[[], Sequence[MCPFunction]]) -> None:
        """`always` are names of functions that a model sees from the start. `available` returns all functions that it may load.

        `prefix` is the prefix for the names of the helper functions, which list, load and unload functions.
        """
        self._always = frozenset(always)
        self._available = available
        self._loaded: set[str] = set()
        descriptions = {
            "list_mcp_tools": (f"Lists the functions of {server!r} that can be loaded.", _NOTHING, self._list),
            "load_tool": (f"Makes functions of {server!r} callable from the next step on.", _NAMES, self._load),
            "unload_tool": (f"Takes functions of {server!r} away again.", _NAMES, self._unload),
        }
        self._helpers: list[MCPFunction] = []
        for name, (text, schema, invoke) in descriptions.items():
            definition = ToolDefinition(local_name(name, prefix), text, schema)
            self._helpers.append(MCPFunction(definition, name, invoke, source=server))

    @property
    def visible(self) -> list[MCPFunction]:
        """The functions that a model sees now.

        These are the helper functions, with which the model lists, loads and unloads other functions; the functions that the program
        made visible from the start; and the functions that the model has loaded.
        """
        return [*self._helpers, *(f for f in self._choices() if self._is_always(f) or f.name in self._loaded)]

    def _choices(self) -> list[MCPFunction]:
        taken = {helper.name for helper in self._helpers}
        return [function for function in self._available() if function.name not in taken]

    def _is_always(self, function: MCPFunction) -> bool:
        return not self._always.isdisjoint(function.known_as)

    async def _list(self, arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
        rows: list[JsonObject] = [
            {
                "name": function.name,
                "description": function.description,
                "parameters": function.definition.input_schema,
                "loaded": self._is_always(function) or function.name in self._loaded,
            }
            for function in self._choices()
        ]
        return Complete.text("\n".join(f"{row['name']}: {row['description']}" for row in rows), structured={"tools": rows})

    async def _load(self, arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
        tools = _run_tools(ctx)
        said: list[str] = []
        for name in _names(arguments):
            function = self._find(name)
            if function is None:
                said.append(f"Unknown function {name!r}; list_mcp_tools shows them.")
                continue
            self._loaded.add(function.name)
            if not any(tool is function for tool in tools):
                tools.append(function)
            said.append(f"{function.name!r} can be called from the next step on.")
        return Complete.text("\n".join(said))

    async def _unload(self, arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
        tools = _run_tools(ctx)
        said: list[str] = []
        for name in _names(arguments):
            function = self._find(name)
            if function is None or function.name not in self._loaded:
                said.append(f"{name!r} is not loaded.")
            elif self._is_always(function):
                said.append(f"{function.name!r} is always there.")
            else:
                self._loaded.discard(function.name)
                tools[:] = [tool for tool in tools if tool is not function]
                said.append(f"{function.name!r} is gone from the next step on.")
        return Complete.text("\n".join(said))

    def _find(self, name: str) -> MCPFunction | None:
        return next((function for function in self._choices() if name in function.known_as), None)


def _run_tools(ctx: CallContext) -> list[Tool]:
    call = ctx.run.invocation
    if not isinstance(call, FunctionInvocationContext) or call.tools is None:
        raise ToolFailed("Functions are loaded and unloaded inside an agent's run only.")
    return call.tools


def _names(arguments: JsonObject) -> list[str]:
    """Return the names in the argument `tool` of a call that loads or unloads functions: one name, or a list of names.

    Raises:
        ToolFailed: The argument is neither.
    """
    value: JsonValue = arguments.get("tool")
    names = cast("list[JsonValue]", value) if isinstance(value, list) else [value]
    found = [name for name in names if isinstance(name, str)]
    if not found or len(found) < len(names):
        raise ToolFailed("`tool` must be the name of a function or a list of names; list_mcp_tools shows them.")
    return found
