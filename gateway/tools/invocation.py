"""`FunctionInvocationContext`: one tool call of an agent's run, as function middleware and the tool itself see it.

A tool gets it in a parameter annotated with this class. Outside a run such a tool gets one made for the call, whose
tool list cannot be changed.
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
    """What tools may read and write of the conversation they are called in."""

    service_session_id: str | None
    state: JsonObject

    @property
    def session_id(self) -> str:
        """Which conversation it is."""
        ...


class FunctionInvocationContext:
    """Edit `arguments` before `call_next`, `result` after; `result` set without `call_next` replaces the call."""

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
        """`tools` is the run's live list; `ctx` the gateway call on whose behalf the run goes on."""
        self.function: NamedTool = named(function)
        """The tool that is called. Middleware may put another one in its place."""
        self.arguments: JsonObject = _as_dict(arguments)
        """The arguments of the call. Of a function they are checked, converted to the annotated types and have their defaults.

        Arguments that do not fit are here as the model wrote them; `metadata["argument_error"]` says why, and middleware may repair
        them. The call checks them again.
        """
        self.session = session
        self.metadata: JsonObject = dict(metadata) if metadata else {}
        """Shared by all middleware of this call; `call_id` is in it."""
        self.result = result
        """After the call a list of contents, whose `str` is their text; anything that is set instead is taken as the result."""
        self.kwargs: JsonObject = dict(kwargs) if kwargs else {}
        """The run's `function_invocation_kwargs`."""
        self.tools = tools
        self.terminate = False
        """Set: nothing further in runs, and the model is not asked again. The way of agent-framework's first versions;
        `MiddlewareTermination` is today's.
        """
        self.ctx = ctx if ctx is not None else CallContext()

    @classmethod
    def for_call(cls, function: Tool, arguments: JsonMapping, ctx: CallContext) -> FunctionInvocationContext:
        """The context that a tool's parameter of this class receives."""
        current = ctx.invocation
        return current if isinstance(current, cls) else cls(function, arguments, ctx=ctx)

    def add_tools(self, tools: Tool | ToolSource | Callable[..., object] | Sequence[Tool | ToolSource | Callable[..., object]]) -> None:
        """Add tools to the run, from the next model call on. The same tool again changes nothing.

        Raises:
            RuntimeError: This is no call of a run.
            ValueError: A different tool has one of the names; the list is as it was.
        """
        live = self._live("add")
        added = [tool for tool in normalize_tools(tools) if not isinstance(tool, ToolSource)]
        live[:] = by_name([*live, *added]).values()

    def remove_tools(self, tools: str | Tool | Callable[..., object] | Sequence[str | Tool | Callable[..., object]]) -> None:
        """Take tools out of the run, from the next model call on, by name or object; what is not there is ignored.

        Raises:
            RuntimeError: This is no call of a run.
        """
        live = self._live("remove")
        given = cast("Sequence[object]", [tools] if isinstance(tools, str) or not isinstance(tools, Sequence) else tools)
        names = {item if isinstance(item, str) else _name(item) for item in given}
        live[:] = [tool for tool in live if tool.definition.name not in names]

    def _live(self, verb: str) -> list[Tool]:
        if self.tools is None:
            raise RuntimeError(f"No tools to {verb}: this function was not called by an agent's run, so there is no list of tools.")
        return self.tools


class FunctionMiddleware(ABC):
    """Middleware around tool calls, as a class."""

    middleware_type = MiddlewareType.FUNCTION

    @abstractmethod
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Do something before, call `call_next()` or not, do something after."""


FunctionMiddlewareTypes = FunctionMiddleware | Callable[[FunctionInvocationContext, CallNext], Awaitable[None]]
"""What may be given as middleware around tool calls."""


def function_middleware(func: FunctionT) -> FunctionT:
    """Mark a function as middleware around tool calls."""
    return mark(func, MiddlewareType.FUNCTION)


def _name(item: object) -> str:
    definition = getattr(item, "definition", None)
    return str(definition.name if definition is not None else getattr(item, "__name__", ""))


def _as_dict(arguments: Any) -> JsonObject:
    """Arguments as their caller has them: an object, or a pydantic model."""
    return dict(cast("JsonMapping", arguments)) if isinstance(arguments, Mapping) else cast("JsonObject", arguments.model_dump())
