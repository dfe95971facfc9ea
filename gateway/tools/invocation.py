"""`FunctionInvocationContext`: describes one tool call of an agent's run, for the middleware around the call and for the function itself.

A function receives the object in a parameter annotated with this class. Outside an agent's run, the function receives a new object, which
cannot add or remove tools.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.middleware import CallNext, MiddlewareType, mark
from gateway.tools.base import NamedTool, Tool, ToolSource
from gateway.tools.context import CallContext
from gateway.tools.tool_lists import by_name, normalize_tools
from gateway.tools.wrappers import named

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


class SessionData(Protocol):
    """Protocol of the part of an agent's session (a conversation) that tools may read and write."""

    service_session_id: str | None
    state: JsonObject

    @property
    def session_id(self) -> str:
        """Id of the session, which stays the same for the whole conversation."""
        ...


class FunctionInvocationContext:
    """One tool call of an agent's run, for middleware and for the called function.

    Middleware may change `arguments` before it calls `call_next`, change `result` afterwards, or set `result` without calling `call_next`.
    """

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
        """Store the arguments. `tools` is the list of tools of the agent's run, `ctx` the context of the gateway call around the run."""
        self.function: NamedTool = named(function)
        """The tool that is called. Middleware may replace it."""
        self.arguments: JsonObject = _as_dict(arguments)
        """The arguments of the call. Valid arguments of a Python function are converted to the annotated types, and have defaults.

        If the arguments are invalid, they stay as the model wrote them, and `metadata["argument_error"]` has the reason. Middleware may
        correct them, because the call validates them again.
        """
        self.session = session
        self.metadata: JsonObject = dict(metadata) if metadata else {}
        """Values that all middleware of this call share; contains the model's `call_id`."""
        self.result = result
        """The result, after the call: a list of `Content` objects, whose `str()` is their text. Middleware may set any other value."""
        self.kwargs: JsonObject = dict(kwargs) if kwargs else {}
        """The values that the program passed to the run of the agent as `function_invocation_kwargs`."""
        self.tools = tools
        self.terminate = False
        """If true, the remaining middleware does not run and the model is not called again, as in agent-framework's first versions.

        New code raises `MiddlewareTermination` instead.
        """
        self.ctx = ctx if ctx is not None else CallContext()

    @classmethod
    def for_call(cls, function: Tool, arguments: JsonMapping, ctx: CallContext) -> FunctionInvocationContext:
        """Return the object to pass to a function's parameter annotated with this class.

        It is the object for the current tool call of an agent's run, or a new object outside an agent's run.
        """
        current = ctx.run.invocation
        return current if isinstance(current, cls) else cls(function, arguments, ctx=ctx)

    def add_tools(self, tools: Tool | ToolSource | Callable[..., object] | Sequence[Tool | ToolSource | Callable[..., object]]) -> None:
        """Add tools to the agent's run, starting with the next call of the model. `Tool` objects that were already added are ignored.

        Functions are wrapped in new tools. Sources of tools (`ToolSource`) are ignored.

        Raises:
            RuntimeError: The call is not part of an agent's run.
            ValueError: Another tool already has the name of an added tool, for example because a function was added before. No tool is
                added.
        """
        live = self._live("add")
        added = [tool for tool in normalize_tools(tools) if not isinstance(tool, ToolSource)]
        live[:] = by_name([*live, *added]).values()

    def remove_tools(self, tools: str | Tool | Callable[..., object] | Sequence[str | Tool | Callable[..., object]]) -> None:
        """Remove tools, given by name or object, from the agent's run, starting with the next call of the model.

        Unknown tools are ignored.

        Raises:
            RuntimeError: The call is not part of an agent's run.
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
    """Base class of middleware that wraps the tool calls of an agent's run."""

    middleware_type = MiddlewareType.FUNCTION

    @abstractmethod
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Handle a tool call. `await call_next()` runs the remaining middleware and then the tool."""


FunctionMiddlewareTypes = FunctionMiddleware | Callable[[FunctionInvocationContext, CallNext], Awaitable[None]]
"""Middleware that wraps the tool calls of an agent's run: an object of a `FunctionMiddleware` class, or a function."""


def function_middleware(func: FunctionT) -> FunctionT:
    """Decorator: mark a function as middleware that wraps the tool calls of an agent's run."""
    return mark(func, MiddlewareType.FUNCTION)


def _name(item: object) -> str:
    definition = getattr(item, "definition", None)
    return str(definition.name if definition is not None else getattr(item, "__name__", ""))


def _as_dict(arguments: Any) -> JsonObject:
    """Return the arguments of a call (a mapping or a pydantic model) as a dict."""
    return dict(cast("JsonMapping", arguments)) if isinstance(arguments, Mapping) else cast("JsonObject", arguments.model_dump())
