"""`RunContext` and the decorator `@step`, which the async function of a functional workflow uses.

When a workflow continues, its function runs from the start again (`functional`): calls of finished steps return their recorded results, and
answered requests return their responses. Code outside of steps runs again each time, so it must be deterministic. Public names are those of
Microsoft's agent-framework.
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
"""Prefix of the request ids that are generated for requests of a functional workflow without an explicit `request_id`."""

_NAMED = "named:"
"""Prefix of some keys in `RunContext.places`, which maps the keys of a run's requests to request ids.

The key of a request has this prefix if the function passed a `request_id` to `request_info`.
"""

_running: ContextVar[RunContext | None] = ContextVar("gateway_functional_run", default=None)
"""The context of the current run of a functional workflow. Steps read this variable, because user code calls steps without a context."""

_inside: ContextVar[tuple[RunContext, str, CallContext] | None] = ContextVar("gateway_functional_step", default=None)
"""The step of a functional workflow that is running now.

A tuple of the run's context, the step's key followed by a slash, and the `CallContext` for tool calls inside the step."""


class WorkflowInterrupted(BaseException):  # not an `Exception`, so that `except Exception` in the function does not catch it
    """Raised by `request_info` in the function of a functional workflow, to end the run because the request has no response yet."""


class RunContext:
    """The context of a run of a functional workflow (an async function). The function and its steps use it for requests and state."""

    def __init__(
        self, workflow_name: str, emit: OnEvent | None = None, call: CallContext | None = None, *, is_streaming: bool = False
    ) -> None:
        """Create a context. `emit` receives the run's events, `call` is the tool call that the run serves.

        The workflow creates a context for each run. User code may create one to call a step outside of a run; that context only stores
        state.
        """
        self._call = call or CallContext()
        self.state: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        """Results of finished calls of steps, by key: name of the step and number of the call."""
        self.places: dict[str, str] = {}
        """Key of each request that the function has made → id of the request. The keys are equal each time the function runs again.

        A key consists of the enclosing step, a digest of the request, and the number of equal requests that the step made before. The
        number does not count other requests, because concurrent steps and branches may make their requests in another order each time. The
        key of a request with an explicit `request_id` consists of this id and the digest."""
        self.asked: dict[str, int] = {}
        """Number of requests that each finished step made, by the step's key. Set only from checkpoints of earlier versions."""
        self.is_flat = False
        """Whether calls of nested steps are numbered over the whole run instead of within the enclosing step.

        True after restoring a checkpoint of an earlier version, which numbered them this way."""
        self.answers: dict[str, Any] = {}
        self.pending: dict[str, WorkflowEvent[Any]] = {}
        self.after_step: Callable[[], Awaitable[None]] | None = None
        self._name = workflow_name
        self._emit = emit
        self._is_streaming = is_streaming
        self._counts: dict[str, int] = {}

    @property
    def call(self) -> CallContext:
        """The context of the tool call that the run serves, for calls of other tools.

        In a durable task (background call that resumes after a restart), calls made with this context inside a step are recorded as parts
        of that step.
        """
        around = self._around()
        return self._call if around is None else around[2]

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> Any:
        """Request a response of type `response_type` from the caller of the workflow, and return the response.

        Without a response, this method ends the run by raising `WorkflowInterrupted`. When the caller continues the workflow with a
        response, the function runs again and this call returns the response. A request without a `request_id` gets a numbered id.

        A response belongs to one pair of `request_data` and `response_type`. If either differs in a later run, the request is new, even
        with the same `request_id`. Equal requests of concurrent branches must have different `request_id`s or be in different `@step`s.
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
        """Report an event of any type to the caller of the run."""
        if self._emit is not None:
            await self._emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return the value that was stored under the key with `set_state`, or `default`."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Store a value for later runs of the function. Checkpoints contain the value.

        Raises:
            ValueError: The key begins with an underscore. Such keys are reserved for the workflow engine.
        """
        if key.startswith("_"):
            raise ValueError(f"State key {key!r} begins with '_', which is reserved for framework state.")
        self.state[key] = value

    def is_streaming(self) -> bool:
        """Return whether the caller reads the run's events as a stream, so that partial outputs are useful."""
        return self._is_streaming

    def next_key(self, name: str) -> str:
        """Return the key under which the next call of the step `name` is recorded: enclosing step, name and number of the call.

        Calls are numbered within the enclosing step.
        """
        around = self._around()
        return self._numbered(name if around is None or self.is_flat else f"{around[1]}{name}")

    def skip(self, key: str) -> None:
        """Assign ids to the requests of the finished step `key`, which is skipped, so that later requests get the same ids as before.

        This method has an effect only after a checkpoint of an earlier version was restored. That checkpoint has the number of requests per
        step, but not their ids.
        """
        for number in range(self.asked.get(key, 0)):
            self._id_at(f"{key}/{_REQUESTS}::{number}")

    def within_step(self, key: str) -> tuple[RunContext, str, CallContext]:
        """Return the value of the context variable `_inside` for the step `key`: this context, `key` with a slash, and a `CallContext`.

        In a durable task (background call that resumes after a restart), tool calls inside a step are numbered separately, because a
        finished step is skipped as a whole.
        """
        call, durable = self.call, self._call.ports.durable
        if durable is not None and durable.version > 1:
            call = call.with_durable(durable.scoped(f"step {key}"))
        return self, f"{key}/", call

    def _around(self) -> tuple[RunContext, str, CallContext] | None:
        around = _inside.get()
        return around if around is not None and around[0] is self else None

    def _id_of(self, request_data: Any, response_type: Any, request_id: str | None) -> str:
        """Return the id of a request of the function. The same request gets the same id each time the function runs again."""
        around = self._around()
        scope = "" if around is None else around[1]
        if self.is_flat:
            return request_id or self._id_at(self._numbered(f"{scope}{_REQUESTS}"))
        asked = _digest(request_data, response_type)
        if request_id:
            return self._id_at(f"{_NAMED}{request_id}/{asked}", request_id)
        return self._id_at(self._numbered(f"{scope}{_REQUESTS}/{asked}"))

    def _id_at(self, place: str, wanted: str = "") -> str:
        """Return the id of the request with the key `place` in `places`.

        A new request gets the id `wanted`, or a numbered id if `wanted` is empty or another request has this id.
        """
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
    """Return the context of the functional workflow run in which this function is called, or `None` outside of a run."""
    return _running.get()


class StepWrapper(Generic[ResultT]):
    """Wraps an async function as a step of a functional workflow (another async function, which calls its steps).

    Each call records its result. When the workflow continues, its function runs again, and the same call returns the recorded result.
    """

    def __init__(self, func: Callable[..., Awaitable[ResultT]], *, name: str | None = None) -> None:
        """Wrap `func`. The default name of the step is that of the function.

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
        """The wrapped async function, whose calls are not recorded."""
        return self._func

    async def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Return the recorded result of this call, or call the function and record its result. Outside of a run, only call the function."""
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
        """Call the function of the step. Pass `ctx` if the function has a `RunContext` parameter and the arguments contain no context."""
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
    """Make a step of a functional workflow from an async function: use it as `@step`, or with a name as `@step(name=…)`.

    When the workflow continues, finished calls of a step do not run again; they return their recorded results.
    """

    def wrap(wrapped: Function) -> StepWrapper[Any]:
        return StepWrapper(wrapped, name=name)

    return wrap if func is None else wrap(func)


@contextmanager
def within(ctx: RunContext) -> Generator[None]:
    """Make `ctx` the current run, which `get_run_context` returns, inside the `with` block."""
    token = _running.set(ctx)
    try:
        yield
    finally:
        _running.reset(token)


def _digest(request_data: Any, response_type: Any) -> str:
    """Return a digest of a request's data and response type. If the data cannot be encoded as JSON, only the type of the data is used."""
    try:
        data = encode(request_data)
    except WorkflowCheckpointException:
        data = type_name(cast("type[Any]", type(request_data)))
    return digest_of([data, name_of(response_type)])


def context_parameter(func: Callable[..., Any]) -> str | None:
    """Return the name of the first parameter that is annotated as `RunContext` or named `ctx`; `None` if no parameter is."""
    hints = hints_of(func)
    return next((name for name in inspect.signature(func).parameters if hints.get(name) is RunContext or name == "ctx"), None)


def _positions(func: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, item in inspect.signature(func).parameters.items() if item.kind in kinds]
