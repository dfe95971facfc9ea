"""`FunctionInvocationContext`: one tool call of an agent's run, for function middleware and for the tool.

A tool receives it in a parameter annotated with this class. Outside a run the tool receives one whose tool list cannot be changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.middleware import CallNext, MiddlewareType, mark
from gateway.tools.base import NamedTool, Tool, ToolSource
from gateway.tools.context import CallContext
from gateway.tools.given import by_name, normalize_tools
from gateway.tools.wrappers import named

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


class SessionData(Protocol):
    """The part of a conversation that tools may read and write."""

    service_session_id: str | None
    state: JsonObject

    @property
    def session_id(self) -> str:
        """Id of the conversation."""
        ...


class FunctionInvocationContext:
    """A tool call. Middleware may change `arguments` before `call_next`, `result` after it, or set `result` instead of calling it."""

    def __init__(
        self,
        function: Tool,
        arguments: JsonMapping,
        session: SessionData | None = None,
        metadata: JsonMapping | None = None,
        result: JsonValue = None,
        kwargs: JsonMapping | None = None,
        tools: list[Tool] | None = None,
        ctx: CallContext | None = None,
    ) -> None:
        """`tools` is the tool list of the run, and `ctx` the context of the gateway call to which the run belongs."""
        self.function: NamedTool = named(function)
        """The tool that is called. Middleware may replace it."""
        self.arguments: JsonObject = _as_dict(arguments)
        """The arguments of the call. For a function, they are validated, converted to the annotated types, and complete with defaults.

        Invalid arguments are as the model wrote them, with the reason in `metadata["argument_error"]`. Middleware may repair them: the
        call validates them again.
        """
        self.session = session
        self.metadata: JsonObject = dict(metadata) if metadata else {}
        """Values that the middleware of this call share; contains `call_id`."""
        self.result = result
        """After the call, a list of contents; `str` of the list is their text. Middleware may set any other value as the result."""
        self.kwargs: JsonObject = dict(kwargs) if kwargs else {}
        """The run's `function_invocation_kwargs`."""
        self.tools = tools
        self.terminate = False
        """If true, no inner middleware runs and the model is not called again, as in agent-framework's first versions. New code
        raises `MiddlewareTermination` instead.
        """
        self.ctx = ctx if ctx is not None else CallContext()

    @classmethod
    def for_call(cls, function: Tool, arguments: JsonMapping, ctx: CallContext) -> FunctionInvocationContext:
        """Return the object for a tool's parameter annotated with this class: the run's own, or a new one outside a run."""
        current = ctx.run.invocation
        return current if isinstance(current, cls) else cls(function, arguments, ctx=ctx)

    def add_tools(self, tools: Tool | ToolSource | Callable[..., object] | Sequence[Tool | ToolSource | Callable[..., object]]) -> None:
        """Add tools to the run, from the next model call on. Adding a tool again has no effect.

        Raises:
            RuntimeError: The call does not belong to a run.
            ValueError: A different tool has one of the names; no tool is added.
        """
        live = self._live("add")
        added = [tool for tool in normalize_tools(tools) if not isinstance(tool, ToolSource)]
        live[:] = by_name([*live, *added]).values()

    def remove_tools(self, tools: str | Tool | Callable[..., object] | Sequence[str | Tool | Callable[..., object]]) -> None:
        """Remove tools from the run, by name or object, from the next model call on. Unknown tools are ignored.

        Raises:
            RuntimeError: The call does not belong to a run.
        """
        live = self._live("remove")
        given = cast("Sequence[object]", [tools] if isinstance(tools, str) or not isinstance(tools, Sequence) else tools)
        names = {item if isinstance(item, str) else _name(item) for item in given}
        live[:] = [tool for tool in live if tool.definition.name not in names]

    def _live(self, verb: str) -> list[Tool]:
        if self.tools is None:
            raise RuntimeError(f"Cannot {verb} tools: this function was not called by an agent's run, so it has no tool list.")
        return self.tools


class FunctionMiddleware(ABC):
    """Base class of middleware around the tool calls of an agent's run."""

    middleware_type = MiddlewareType.FUNCTION

    @abstractmethod
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Handle a call; `await call_next()` runs the inner middleware and the tool."""


FunctionMiddlewareTypes = FunctionMiddleware | Callable[[FunctionInvocationContext, CallNext], Awaitable[None]]
"""Middleware around tool calls: a class or a function."""


def function_middleware(func: FunctionT) -> FunctionT:
    """Mark a function as middleware around tool calls."""
    return mark(func, MiddlewareType.FUNCTION)


def _name(item: object) -> str:
    definition = getattr(item, "definition", None)
    return str(definition.name if definition is not None else getattr(item, "__name__", ""))


def _as_dict(arguments: Any) -> JsonObject:
    """Return arguments, an object or a pydantic model, as a dict."""
    return dict(cast("JsonMapping", arguments)) if isinstance(arguments, Mapping) else cast("JsonObject", arguments.model_dump())
