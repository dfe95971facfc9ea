"""`RunContext` and `step`: what the function of a functional workflow uses. Names are agent-framework's.

When a workflow continues, its function runs from the start again (`functional`): finished steps return their recorded result, and
answered requests their response. Code outside steps runs again each time, so it must do the same each time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast, overload

from gateway.errors import CODE_ERRORS, WorkflowCheckpointException
from gateway.tools.context import CallContext
from gateway.tools.drive import digest_of
from gateway.workflows.encoding import encode, type_name
from gateway.workflows.events import OnEvent, WorkflowErrorDetails, WorkflowEvent
from gateway.workflows.executor_failures import failing
from gateway.workflows.type_hints import hints_of, name_of
from gateway.workflows.workflow_context import copied

ResultT = TypeVar("ResultT")
Function = Callable[..., Awaitable[Any]]

_REQUESTS = "auto"
"""Start of the request ids that the workflow makes for requests without a `request_id`."""

_NAMED = "named:"
"""Start of the key in `RunContext.places` of a request with a `request_id`."""

_running: ContextVar[RunContext | None] = ContextVar("gateway_functional_run", default=None)
"""The current run. Steps read it here, because user code calls steps like functions, without passing a context."""

_inside: ContextVar[tuple[RunContext, str, CallContext] | None] = ContextVar("gateway_functional_step", default=None)
"""The step that is running now: its run, its key followed by a slash, and the `CallContext` for calls inside the step."""


class WorkflowInterrupted(BaseException):  # agent-framework's name; it must pass `except Exception`
    """Ends the function at a request without a response. Raised by `request_info`."""


class RunContext:
    """The current run, as the function of the workflow and its steps use it."""

    def __init__(
        self, workflow_name: str, emit: OnEvent | None = None, call: CallContext | None = None, *, is_streaming: bool = False
    ) -> None:
        """The workflow makes one for each run. A context that user code makes, to call a step outside a run, only keeps state."""
        self._call = call or CallContext()
        self.state: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        """Results of finished steps, by name and number of the call."""
        self.places: dict[str, str] = {}
        """Place in the code → id of the request made there. A place is the enclosing step, a digest of the request, and how many equal
        requests the step made before.

        Steps and branches may run concurrently, so the order of their requests differs from run to run. The place of a request with a
        `request_id` is made of this id and the digest only."""
        self.asked: dict[str, int] = {}
        """Only after restoring a checkpoint of an earlier version, without `places`: the number of requests that each finished step
        made."""
        self.is_flat = False
        """Whether calls of nested steps are numbered over the whole run, as checkpoints of earlier versions (without `places`) require,
        instead of within the enclosing step."""
        self.answers: dict[str, Any] = {}
        self.pending: dict[str, WorkflowEvent[Any]] = {}
        self.after_step: Callable[[], Awaitable[None]] | None = None
        self._name = workflow_name
        self._emit = emit
        self._is_streaming = is_streaming
        self._counts: dict[str, int] = {}

    @property
    def call(self) -> CallContext:
        """The tool call that the run serves. In a durable task, calls made with it inside a step are recorded as parts of that step."""
        around = self._around()
        return self._call if around is None else around[2]

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> Any:
        """Ask the caller of the workflow, and return the response once there is one. A request without a `request_id` gets a numbered id.

        A response belongs to `request_data` and `response_type`. If the function asks for something else in a later run, that is a new
        request, even with the same `request_id`. Equal requests of concurrent branches need a `request_id` each, or a `@step` around each.
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
        """Pass an event to the caller of the run."""
        if self._emit is not None:
            await self._emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return a value that was stored with `set_state`."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Store a value; checkpoints contain it.

        Raises:
            ValueError: The key begins with an underscore, which is reserved for the engine.
        """
        if key.startswith("_"):
            raise ValueError(f"State key {key!r} begins with '_', which is reserved for framework state.")
        self.state[key] = value

    def is_streaming(self) -> bool:
        """Return whether the caller reads events while the run continues."""
        return self._is_streaming

    def next_key(self, name: str) -> str:
        """Return the key of the next call of a step: its name, numbered within the enclosing step."""
        around = self._around()
        return self._numbered(name if around is None or self.is_flat else f"{around[1]}{name}")

    def skip(self, key: str) -> None:
        """Assign ids to the requests of a finished step if a checkpoint of an earlier version has only their number.

        Later requests then get the same ids as before.
        """
        for number in range(self.asked.get(key, 0)):
            self._id_at(f"{key}/{_REQUESTS}::{number}")

    def within_step(self, key: str) -> tuple[RunContext, str, CallContext]:
        """Return the value of `_inside` while the step `key` runs.

        In a durable task, calls inside a step are numbered separately, because a finished step is skipped as a whole.
        """
        call, durable = self.call, self._call.ports.durable
        if durable is not None and durable.version > 1:
            call = call.with_durable(durable.scoped(f"step {key}"))
        return self, f"{key}/", call

    def _around(self) -> tuple[RunContext, str, CallContext] | None:
        around = _inside.get()
        return around if around is not None and around[0] is self else None

    def _id_of(self, request_data: Any, response_type: Any, request_id: str | None) -> str:
        """Return the id of a request, which is the same each time the function runs."""
        around = self._around()
        scope = "" if around is None else around[1]
        if self.is_flat:
            return request_id or self._id_at(self._numbered(f"{scope}{_REQUESTS}"))
        asked = _digest(request_data, response_type)
        if request_id:
            return self._id_at(f"{_NAMED}{request_id}/{asked}", request_id)
        return self._id_at(self._numbered(f"{scope}{_REQUESTS}/{asked}"))

    def _id_at(self, place: str, wanted: str = "") -> str:
        """Return the id of the request at `place` (`places`). A new request gets the id `wanted`, unless another request has that id."""
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
    """Return the run of a functional workflow in which this code is called; `None` outside a run."""
    return _running.get()


class StepWrapper(Generic[ResultT]):
    """An async function as a step. Each call records its result; if the workflow continues, the same call returns the recorded result."""

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
        """The wrapped function."""
        return self._func

    async def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Call the function and record the result, or return the result that this call recorded before the workflow continued."""
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
        except CODE_ERRORS as error:  # steps are user code
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
        """Call the function. If it takes a `RunContext` and the caller gave none, pass the current one."""
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
    """Make a step of an async function: when the workflow continues, its finished calls do not run again. `@step`, or `@step(name=…)`."""

    def wrap(wrapped: Function) -> StepWrapper[Any]:
        return StepWrapper(wrapped, name=name)

    return wrap if func is None else wrap(func)


@contextmanager
def within(ctx: RunContext) -> Generator[None]:
    """Make `ctx` the current run (`get_run_context`) inside the `with` block."""
    token = _running.set(ctx)
    try:
        yield
    finally:
        _running.reset(token)


def _digest(request_data: Any, response_type: Any) -> str:
    """Return a digest of a request. For data that cannot be written to a checkpoint, only the type is used."""
    try:
        data = encode(request_data)
    except WorkflowCheckpointException:
        data = type_name(cast("type[Any]", type(request_data)))
    return digest_of([data, name_of(response_type)])


def context_parameter(func: Callable[..., Any]) -> str | None:
    """Return the name of the parameter for the `RunContext`; `None` if the function has none."""
    hints = hints_of(func)
    return next((name for name in inspect.signature(func).parameters if hints.get(name) is RunContext or name == "ctx"), None)


def _positions(func: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, item in inspect.signature(func).parameters.items() if item.kind in kinds]
