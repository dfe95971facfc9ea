"""`RunContext` and `step`: what the function of a functional workflow has at hand. Names are agent-framework's.

The function runs from the start each time it goes on (`functional`); steps that are done give their remembered result, and
requests that were answered their answer. So what is not a step runs again, and must be the same each time.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast, overload

from gateway.errors import CODE_ERRORS, WorkflowCheckpointException
from gateway.tools.context import CallContext
from gateway.tools.drive import digest_of
from gateway.workflows.annotations import hints_of, name_of
from gateway.workflows.context import copied
from gateway.workflows.encoding import encode, type_name
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent
from gateway.workflows.runner import OnEvent, failing

ResultT = TypeVar("ResultT")
Function = Callable[..., Awaitable[Any]]

_REQUESTS = "auto"
"""How requests without an id of their own are called; they are numbered."""

_NAMED = "named:"
"""Begins the place of a request with an id of its own."""

_running: ContextVar[RunContext | None] = ContextVar("gateway_functional_run", default=None)
"""The run around a step, which is called like any function and so cannot be handed one."""

_inside: ContextVar[tuple[RunContext, str, CallContext] | None] = ContextVar("gateway_functional_step", default=None)
"""The step around the code: its run, its key with a slash, and the call as the step sees it."""


class WorkflowInterrupted(BaseException):  # agent-framework's name; it must pass `except Exception`
    """Ends the function where it asked something; raised by `request_info`."""


class RunContext:
    """A run, as its function sees it."""

    def __init__(
        self, workflow_name: str, emit: OnEvent | None = None, call: CallContext | None = None, *, is_streaming: bool = False
    ) -> None:
        """Made by the workflow. By hand it only keeps state: a step that is called outside a run may want one."""
        self._call = call or CallContext()
        self.state: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        """Results of finished steps, by name and number of the call."""
        self.places: dict[str, str] = {}
        """Ids of requests by place: the step around the request, a digest of what is asked, and how often it was asked there before.
        Steps and branches may run side by side, so the order of their requests differs from run to run. A request with a `request_id` has
        this and the digest as its place, wherever it stands."""
        self.asked: dict[str, int] = {}
        """From a checkpoint without places: how many such requests each finished step made."""
        self.is_flat = False
        """Whether steps inside steps are numbered through the whole run, as in checkpoints without places."""
        self.answers: dict[str, Any] = {}
        self.pending: dict[str, WorkflowEvent[Any]] = {}
        self.after_step: Callable[[], Awaitable[None]] | None = None
        self._name = workflow_name
        self._emit = emit
        self._is_streaming = is_streaming
        self._counts: dict[str, int] = {}

    @property
    def call(self) -> CallContext:
        """The call the run serves. Inside a step, what is done with it counts as the step's in a durable task."""
        around = self._around()
        return self._call if around is None else around[2]

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> Any:
        """Ask whoever runs the workflow; the answer, once there is one. Ids are numbered where not given.

        An answer belongs to `request_data` and `response_type`. If a later pass of the function asks for something else, that is a new
        request, even with the same `request_id`. Equal requests of branches that run side by side need a `request_id` each, or a `@step`
        around each.
        """
        key = self._id_of(request_data, response_type, request_id)
        if key in self.answers:
            self.pending.pop(key, None)
            return self.answers[key]
        event = WorkflowEvent[Any].request_info(key, self._name, request_data, response_type)
        self.pending[key] = event
        await self.add_event(event)
        raise WorkflowInterrupted(key)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Report an event."""
        if self._emit is not None:
            await self._emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """A value kept in checkpoints."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Keep a value.

        Raises:
            ValueError: The key begins with an underscore; those are the engine's.
        """
        if key.startswith("_"):
            raise ValueError(f"State key {key!r} begins with '_', which is reserved for framework state.")
        self.state[key] = value

    def is_streaming(self) -> bool:
        """Whether the run is seen event by event."""
        return self._is_streaming

    def next_key(self, name: str) -> str:
        """The key of the next call of a step: its name and number within the step around it."""
        around = self._around()
        return self._numbered(name if around is None or self.is_flat else f"{around[1]}{name}")

    def skip(self, key: str) -> None:
        """Assign places to the requests of a finished step, if the checkpoint lists only their number."""
        for number in range(self.asked.get(key, 0)):
            self._id_at(f"{key}/{_REQUESTS}::{number}")

    def within_step(self, key: str) -> tuple[RunContext, str, CallContext]:
        """Return what `_inside` holds for the code of a step. In a durable task each step has a scope, because replay skips it whole."""
        call, durable = self.call, self._call.durable
        if durable is not None and durable.version > 1:
            call = dataclasses.replace(call, durable=durable.scoped(f"step {key}"))
        return self, f"{key}/", call

    def _around(self) -> tuple[RunContext, str, CallContext] | None:
        around = _inside.get()
        return around if around is not None and around[0] is self else None

    def _id_of(self, request_data: Any, response_type: Any, request_id: str | None) -> str:
        """The id of a request on this way through the function."""
        around = self._around()
        scope = "" if around is None else around[1]
        if self.is_flat:
            return request_id or self._id_at(self._numbered(f"{scope}{_REQUESTS}"))
        asked = _digest(request_data, response_type)
        if request_id:
            return self._id_at(f"{_NAMED}{request_id}/{asked}", request_id)
        return self._id_at(self._numbered(f"{scope}{_REQUESTS}/{asked}"))

    def _id_at(self, place: str, wanted: str = "") -> str:
        """The id of the request at `place`; a new one is `wanted` if that is free."""
        if place not in self.places:
            number, taken = len(self.places), self.places.values()
            name = wanted if wanted and wanted not in taken else f"{wanted or _REQUESTS}::{number}"
            while name in taken:
                name = f"{name}::{number}"
            self.places[place] = name
        return self.places[place]

    def _numbered(self, name: str) -> str:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return f"{name}::{number}"


def get_run_context() -> RunContext | None:
    """The run around the code that asks; `None` outside one."""
    return _running.get()


class StepWrapper(Generic[ResultT]):
    """An async function whose result is remembered within a run."""

    def __init__(self, func: Callable[..., Awaitable[ResultT]], *, name: str | None = None) -> None:
        """
        Raises:
            TypeError: The function is not async.
        """
        if not inspect.iscoroutinefunction(func):
            raise TypeError(f"@step can only decorate async functions, but {getattr(func, '__name__', func)!r} is not one.")
        self.name: str = name or func.__name__
        self._func = func
        self._context_name = context_parameter(func)
        positions = _positions(func)
        self._position = positions.index(self._context_name) if self._context_name in positions else None
        functools.update_wrapper(self, func)

    @property
    def func(self) -> Callable[..., Awaitable[ResultT]]:
        """The function itself."""
        return self._func

    async def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Call it, or give what it gave before."""
        ctx = _running.get()
        if ctx is None:
            return await self._func(*args, **kwargs)
        key = ctx.next_key(self.name)
        if key in ctx.steps:
            ctx.skip(key)
            await ctx.add_event(WorkflowEvent[Any].executor_bypassed(self.name, ctx.steps[key]))
            return ctx.steps[key]
        await ctx.add_event(WorkflowEvent[Any].executor_invoked(self.name, copied({"args": args, "kwargs": dict(kwargs)})))
        token = _inside.set(ctx.within_step(key))
        try:
            result = await self._with_context(ctx, args, kwargs)
        except CODE_ERRORS as error:  # the boundary to a step's code
            details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
            await ctx.add_event(WorkflowEvent[Any].executor_failed(self.name, details))
            raise failing(error, self.name) from error.__cause__
        finally:
            _inside.reset(token)
        ctx.steps[key] = result
        await ctx.add_event(WorkflowEvent[Any].executor_completed(self.name, copied(result)))
        if ctx.after_step is not None:
            await ctx.after_step()
        return result

    def _with_context(self, ctx: RunContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[ResultT]:
        """The call, with the run's context put where the function wants it, unless the caller gave one."""
        name, position = self._context_name, self._position
        if name is None or any(isinstance(value, RunContext) for value in (*args, *kwargs.values())):
            return self._func(*args, **kwargs)
        if position is not None and len(args) >= position:
            return self._func(*args[:position], ctx, *args[position:], **kwargs)
        return self._func(*args, **{**kwargs, name: ctx})


@overload
def step(func: Callable[..., Awaitable[ResultT]], /) -> StepWrapper[ResultT]: ...
@overload
def step(*, name: str | None = None) -> Callable[[Callable[..., Awaitable[Any]]], StepWrapper[Any]]: ...
def step(func: Function | None = None, /, *, name: str | None = None) -> Any:
    """Remember the result of an async function within each run of a workflow: `@step`, or `@step(name=…)`."""

    def wrap(wrapped: Function) -> StepWrapper[Any]:
        return StepWrapper(wrapped, name=name)

    return wrap if func is None else wrap(func)




@contextmanager
def within(ctx: RunContext) -> Generator[None]:
    """Make `ctx` the run around the steps that are called inside."""
    token = _running.set(ctx)
    try:
        yield
    finally:
        _running.reset(token)


def _digest(request_data: Any, response_type: Any) -> str:
    """Of what is asked. Data that no checkpoint can hold counts by its type."""
    try:
        data = encode(request_data)
    except WorkflowCheckpointException:
        data = type_name(cast("type[Any]", type(request_data)))
    return digest_of([data, name_of(response_type)])


def context_parameter(func: Callable[..., Any]) -> str | None:
    """The parameter that takes the `RunContext`; `None` where there is none."""
    hints = hints_of(func)
    return next((name for name in inspect.signature(func).parameters if hints.get(name) is RunContext or name == "ctx"), None)


def _positions(func: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, item in inspect.signature(func).parameters.items() if item.kind in kinds]
