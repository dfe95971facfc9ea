"""`Executor`, `handler`, `FunctionExecutor` and `WorkflowContext`: what people write to make a graph.

An executor handles one message at a time and acts through its context only; when its effects count is `runner`'s
business. Knows nothing of files, tools or MCP, except that a context carries the `CallContext` of the run.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Never, Union, get_args, get_origin, get_type_hints, overload

from typing_extensions import TypeVar

from gateway.errors import WorkflowError, WorkflowInvalid
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.context import CallContext
from gateway.tools.function import run_function
from gateway.workflows.events import WorkflowEvent

OutT = TypeVar("OutT", default=Any)
W_OutT = TypeVar("W_OutT", default=Never)
F = TypeVar("F", bound=Callable[..., Awaitable[None]])

_MARK = "__workflow_handler__"


@dataclass(slots=True)
class Effects:
    """What one delivery did; applied when its round ends, dropped when the round fails."""

    sent: list[tuple[Any, str | None]] = field(default_factory=list[tuple[Any, str | None]])
    """Message and, where the sender chose one, target."""
    outputs: list[Any] = field(default_factory=list[Any])
    writes: JsonObject = field(default_factory=dict[str, Any])


class WorkflowContext(Generic[OutT, W_OutT]):
    """One delivery's way to act on its run: `OutT` is what it sends on, `W_OutT` what it yields."""

    def __init__(
        self,
        executor_id: str,
        source_executor_ids: tuple[str, ...],
        state: JsonMapping,
        effects: Effects,
        emit: Callable[[WorkflowEvent], Awaitable[None]],
        call: CallContext,
    ) -> None:
        """Made by the runner. `state` is the committed shared state, `effects` collects what is done."""
        self.executor_id = executor_id
        self.source_executor_ids = source_executor_ids
        """Who sent the message; empty for the first one."""
        self.call = call
        """The call this run serves: the way to ask and tell the caller. Derive with `child` for calls of tools."""
        self._state = state
        self._effects = effects
        self._emit = emit

    async def send_message(self, message: OutT, target_id: str | None = None) -> None:
        """Send along every outgoing edge, or only the one to `target_id`; delivered in the next round."""
        self._effects.sent.append((message, target_id))

    async def yield_output(self, output: W_OutT) -> None:
        """Give an output of the workflow. It reaches the caller where the workflow selects this executor."""
        self._effects.outputs.append(output)
        await self._emit(WorkflowEvent("output", output, self.executor_id))

    async def add_event(self, event: WorkflowEvent) -> None:
        """Report a `warning` or `error` of one's own."""
        await self._emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """A value of the shared state: this delivery's own write, else what earlier rounds committed."""
        if key in self._effects.writes:
            return self._effects.writes[key]
        return self._state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Set a shared value, seen by others from the next round on; later messages win. Keep values JSON-able."""
        self._effects.writes[key] = value


@dataclass(frozen=True, slots=True)
class _Handler:
    name: str
    message_type: Any


class Executor:
    """A node of a graph. Subclass it and mark async methods `(self, message, ctx)` with `@handler`."""

    joins: ClassVar[bool] = False
    """Whether the messages that arrive in one round are handled together, as one list, instead of one by one."""

    def __init__(self, id: str) -> None:
        """`id` is unique within a workflow.

        Raises:
            WorkflowInvalid: The id is empty, or no method is a handler.
        """
        if not id:
            raise WorkflowInvalid(f"{type(self).__name__} needs an id.")
        self.id = id
        self._handlers = _read_handlers(type(self))
        if not self._handlers:
            raise WorkflowInvalid(f"Executor {id!r} handles nothing: mark a method of {type(self).__name__} with @handler.")

    @property
    def input_types(self) -> list[Any]:
        """Message types it handles, in the order in which they are tried."""
        return [item.message_type for item in self._handlers]

    def can_handle(self, message: object) -> bool:
        """Whether a handler takes this message."""
        return any(_fits(message, item.message_type) for item in self._handlers)

    async def execute(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Hand the message to the first handler whose type fits.

        Raises:
            WorkflowError: No handler takes it.
        """
        for item in self._handlers:
            if _fits(message, item.message_type):
                await getattr(self, item.name)(message, ctx)
                return
        known = ", ".join(_name(kind) for kind in self.input_types)
        raise WorkflowError(f"It takes {known}, not {type(message).__name__}.")


def handler(method: F) -> F:
    """Mark an async method `(self, message, ctx)` as a handler of messages of the annotated type."""
    setattr(method, _MARK, True)
    return method


class FunctionExecutor(Executor):
    """A plain function as an executor: `func(message)` or `func(message, ctx)`, sync or async.

    What it returns, unless `None`, is both sent on and yielded; with a context it may also do that itself. A sync
    function runs in a worker thread.
    """

    def __init__(self, func: Callable[..., Any], id: str | None = None) -> None:
        """The id is the function's name where not given.

        Raises:
            WorkflowInvalid: The function takes no message.
        """
        super().__init__(id or getattr(func, "__name__", ""))
        names = list(inspect.signature(func).parameters)
        if not names:
            raise WorkflowInvalid(f"Function of executor {self.id!r} must take the message as its first parameter.")
        self._func = func
        self._wants_context = len(names) > 1
        self._message_type = _hints_of(func).get(names[0], Any)

    @property
    def input_types(self) -> list[Any]:
        """The annotation of the message parameter."""
        return [self._message_type]

    def can_handle(self, message: object) -> bool:
        """Whether the message fits the annotation."""
        return _fits(message, self._message_type)

    @handler
    async def run(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function."""
        if not _fits(message, self._message_type):
            raise WorkflowError(f"It takes {_name(self._message_type)}, not {type(message).__name__}.")
        value = await run_function(self._func, [message, ctx] if self._wants_context else [message], {})
        if value is not None:
            await ctx.send_message(value)
            await ctx.yield_output(value)


@overload
def executor(func: Callable[..., Any], /) -> FunctionExecutor: ...


@overload
def executor(*, id: str | None = None) -> Callable[[Callable[..., Any]], FunctionExecutor]: ...


def executor(func: Callable[..., Any] | None = None, /, *, id: str | None = None) -> Any:
    """Make a function a `FunctionExecutor`: `@executor`, or `@executor(id=…)`."""

    def wrap(wrapped: Callable[..., Any]) -> FunctionExecutor:
        return FunctionExecutor(wrapped, id)

    return wrap if func is None else wrap(func)


def _read_handlers(cls: type[Executor]) -> tuple[_Handler, ...]:
    found: list[_Handler] = []
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for name in names:
        method = inspect.getattr_static(cls, name)
        if not getattr(method, _MARK, False):
            continue
        parameters = list(inspect.signature(method).parameters)
        if len(parameters) != 3 or not inspect.iscoroutinefunction(method):
            raise WorkflowInvalid(f"Handler {cls.__name__}.{name} must be `async def {name}(self, message, ctx)`.")
        found.append(_Handler(name, _hints_of(method).get(parameters[1], Any)))
    return tuple(found)


def _hints_of(func: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations; where one cannot be resolved, none: the message then is of any type."""
    try:
        return get_type_hints(func if inspect.isroutine(func) else type(func).__call__)
    except NameError:
        return {}


def _fits(message: object, annotation: Any) -> bool:
    if annotation is Any or isinstance(annotation, TypeVar):
        return True
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_fits(message, member) for member in get_args(annotation))
    if annotation is float:
        return isinstance(message, float | int)
    kind = origin or annotation
    return isinstance(message, kind) if isinstance(kind, type) else True


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and get_origin(annotation) is None else str(annotation)
