"""Functional workflows: an async function as a workflow, with steps whose results are remembered. Names are agent-framework's.

The function runs from the start each time it goes on; steps that are done give their remembered result, and requests
that were answered their answer. So what is not a step runs again, and must be the same each time.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar, cast, overload

from gateway.sessions.context import ContextProvider
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.workflows.agent_events import answers_in, updates_of
from gateway.workflows.annotations import coerced, hints_of, is_instance_of, name_of, types_in
from gateway.workflows.checkpoints import CheckpointStorage, WorkflowCheckpoint
from gateway.workflows.context import copied
from gateway.workflows.encoding import TypeBook, settle
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.request import RunRequest
from gateway.workflows.runner import OnEvent
from gateway.workflows.stream import live

ResultT = TypeVar("ResultT")
Function = Callable[..., Awaitable[Any]]

_STEPS = "_step_cache"
_MESSAGE = "_original_message"
_ANSWERS = "_responses"

_running: ContextVar[RunContext | None] = ContextVar("gateway_functional_run", default=None)
"""The run around a step, which is called like any function and so cannot be handed one."""


class WorkflowInterrupted(BaseException):  # agent-framework's name; it must pass `except Exception`
    """Ends the function where it asked something; raised by `request_info`."""


class RunContext:
    """A run, as its function sees it."""

    def __init__(self, name: str, emit: OnEvent, call: CallContext, *, is_streaming: bool) -> None:
        self.call = call
        """The call the run serves."""
        self.state: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        """Results of finished steps, by name and number of the call."""
        self.answers: dict[str, Any] = {}
        self.pending: dict[str, WorkflowEvent[Any]] = {}
        self.after_step: Callable[[], Awaitable[None]] | None = None
        self._name = name
        self._emit = emit
        self._is_streaming = is_streaming
        self._counts: dict[str, int] = {}

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> Any:
        """Ask whoever runs the workflow; the answer, once there is one. Ids are numbered in order where not given."""
        key = request_id or self.next_key("auto")
        if key in self.answers:
            self.pending.pop(key, None)
            return self.answers[key]
        event = WorkflowEvent[Any].request_info(key, self._name, request_data, response_type)
        self.pending[key] = event
        await self._emit(event)
        raise WorkflowInterrupted(key)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Report an event."""
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
            raise ValueError(f"State key {key!r} begins with '_', which is reserved.")
        self.state[key] = value

    def is_streaming(self) -> bool:
        """Whether the run is seen event by event."""
        return self._is_streaming

    def next_key(self, name: str) -> str:
        """The key of the next call of a step or request."""
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
        self._context_name = _context_parameter(func)
        functools.update_wrapper(self, func)

    async def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Call it, or give what it gave before."""
        ctx = _running.get()
        if ctx is None:
            return await self._func(*args, **kwargs)
        key = ctx.next_key(self.name)
        if key in ctx.steps:
            await ctx.add_event(WorkflowEvent[Any].executor_bypassed(self.name, ctx.steps[key]))
            return ctx.steps[key]
        if (
            self._context_name is not None
            and self._context_name not in inspect.signature(self._func).bind_partial(*args, **kwargs).arguments
        ):
            kwargs[self._context_name] = ctx
        data = {"args": args, "kwargs": {name: value for name, value in kwargs.items() if value is not ctx}}
        await ctx.add_event(WorkflowEvent[Any].executor_invoked(self.name, copied(data)))
        try:
            result = await self._func(*args, **kwargs)
        except Exception as error:  # the boundary to a step's code
            details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
            await ctx.add_event(WorkflowEvent[Any].executor_failed(self.name, details))
            raise
        ctx.steps[key] = result
        await ctx.add_event(WorkflowEvent[Any].executor_completed(self.name, copied(result)))
        if ctx.after_step is not None:
            await ctx.after_step()
        return result


@overload
def step(func: Callable[..., Awaitable[ResultT]], /) -> StepWrapper[ResultT]: ...
@overload
def step(*, name: str | None = None) -> Callable[[Callable[..., Awaitable[Any]]], StepWrapper[Any]]: ...
def step(func: Function | None = None, /, *, name: str | None = None) -> Any:
    """Remember the result of an async function within each run of a workflow: `@step`, or `@step(name=…)`."""

    def wrap(wrapped: Function) -> StepWrapper[Any]:
        return StepWrapper(wrapped, name=name)

    return wrap if func is None else wrap(func)


class FunctionalWorkflow:
    """An async function of one message, and maybe a `RunContext`, as a workflow; does one run at a time."""

    def __init__(
        self,
        func: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
    ) -> None:
        """
        Raises:
            ValueError: The function takes more than one message.
        """
        self.name: str = name or getattr(func, "__name__", "workflow")
        self.description = description
        self._func = func
        self._storage = checkpoint_storage
        self._context_name = _context_parameter(func)
        self._messages = [item for item in inspect.signature(func).parameters if item != self._context_name]
        if len(self._messages) > 1:
            raise ValueError(
                f"@workflow function {self.name!r} takes several parameters ({', '.join(self._messages)}); one message is all."
            )
        self._last: RunContext | None = None
        self._message: Any = None
        self._is_running = False
        self.status = WorkflowRunState.IDLE
        code = getattr(func, "__code__", None)
        names = sorted(getattr(code, "co_names", ()))
        body = hashlib.sha256(getattr(code, "co_code", b"")).hexdigest()
        self.graph_signature_hash = hashlib.sha256(json.dumps([self.name, names, body]).encode()).hexdigest()
        self.__doc__ = func.__doc__

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests without an answer, by id."""
        return self._last.pending if self._last is not None else {}

    @overload
    def run(
        self,
        message: Any = None,
        *,
        stream: Literal[False] = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        ctx: CallContext | None = None,
    ) -> Awaitable[WorkflowRunResult]: ...
    @overload
    def run(
        self,
        message: Any = None,
        *,
        stream: Literal[True],
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        ctx: CallContext | None = None,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...
    def run(
        self,
        message: Any = None,
        *,
        stream: bool = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        include_status_events: bool = False,
        ctx: CallContext | None = None,
    ) -> Awaitable[WorkflowRunResult] | ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Run the function, as `Workflow.run` does; what it returns, unless nothing, is the output."""
        request = RunRequest(message, responses, checkpoint_id, checkpoint_storage, None, ctx)
        request.check()
        events: list[WorkflowEvent[Any]] = []

        async def follow(emit: OnEvent) -> None:
            await self.perform(request, emit, events=events, is_streaming=True)

        async def collect() -> WorkflowRunResult:
            await self.perform(request, None, events=events)
            return WorkflowRunResult.of(events, include_status_events=include_status_events)

        if not stream:
            return collect()
        return ResponseStream(live(follow), lambda _: WorkflowRunResult.of(events, include_status_events=include_status_events))

    async def perform(
        self, request: RunRequest, emit: OnEvent | None, *, events: list[WorkflowEvent[Any]], is_streaming: bool = False
    ) -> None:
        """Run; every event is put into `events` and told to `emit`."""

        async def note(event: WorkflowEvent[Any]) -> None:
            events.append(event)
            if emit is not None:
                await emit(event)
            if event.type == "request_info":
                await status(WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS)

        async def status(state: WorkflowRunState) -> None:
            self.status = state
            await note(WorkflowEvent[Any].status(state))

        storage = request.checkpoint_storage or self._storage
        with self._exclusively():
            ctx = RunContext(self.name, note, request.ctx or CallContext(), is_streaming=is_streaming)
            await self._prepare(ctx, request, storage)
            self._last = ctx
            await note(WorkflowEvent[Any].started())
            await status(WorkflowRunState.IN_PROGRESS)
            try:
                await self._call(ctx, storage, note)
            except Exception as error:  # the boundary to the function's code
                await note(WorkflowEvent[Any].failed(WorkflowErrorDetails.from_exception(error)))
                await status(WorkflowRunState.FAILED)
                raise
            await status(WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if ctx.pending else WorkflowRunState.IDLE)

    def as_agent(
        self, name: str | None = None, *, description: str | None = None, context_providers: Sequence[ContextProvider] | None = None
    ) -> FunctionalWorkflowAgent:
        """The workflow as an agent."""
        return FunctionalWorkflowAgent(self, name=name, description=description)

    async def _prepare(self, ctx: RunContext, request: RunRequest, storage: CheckpointStorage | None) -> None:
        """What the run goes on from."""
        if request.message is not None:
            if not self._messages:
                raise ValueError(f"@workflow function {self.name!r} takes no message.")
            self._message = request.message
            return
        if request.checkpoint_id is not None:
            await self._restore(ctx, request.checkpoint_id, storage)
        elif self._last is not None:
            last = self._last
            ctx.state, ctx.steps, ctx.answers, ctx.pending = dict(last.state), dict(last.steps), dict(last.answers), dict(last.pending)
        answers = request.responses or {}
        if answers and not ctx.pending:
            raise RuntimeError("No pending requests found: this workflow waits for no response.")
        for key, value in answers.items():
            if key not in ctx.pending:
                raise ValueError(f"Response provided for unknown request ID: {key}")
            wanted = ctx.pending[key].response_type
            answer = coerced(value, wanted)
            if not is_instance_of(answer, wanted):
                raise ValueError(f"Response type mismatch for request ID {key}: expected {name_of(wanted)}, got {type(value).__name__}.")
            ctx.answers[key] = answer
        ctx.pending = {key: event for key, event in ctx.pending.items() if key not in ctx.answers}

    async def _restore(self, ctx: RunContext, checkpoint_id: str, storage: CheckpointStorage | None) -> None:
        if storage is None:
            raise ValueError("Cannot restore from a checkpoint without storage: pass checkpoint_storage here or to @workflow.")
        checkpoint = await storage.load(checkpoint_id)
        if checkpoint.graph_signature_hash != self.graph_signature_hash:
            raise ValueError(f"Checkpoint {checkpoint_id!r} was made by another version of workflow {checkpoint.workflow_name!r}.")
        hints = hints_of(self._func)
        book = TypeBook(known=types_in(hints.values()), modules={self._func.__module__})
        state: dict[str, Any] = settle(dict(checkpoint.state), book)
        ctx.steps, ctx.answers = state.pop(_STEPS), state.pop(_ANSWERS)
        self._message, ctx.state = state.pop(_MESSAGE), state
        ctx.pending = settle(dict(checkpoint.pending_request_info_events), book)

    async def _call(self, ctx: RunContext, storage: CheckpointStorage | None, note: OnEvent) -> None:
        previous: str | None = None

        async def keep() -> None:
            nonlocal previous
            if storage is not None:
                state = {**ctx.state, _STEPS: dict(ctx.steps), _ANSWERS: dict(ctx.answers), _MESSAGE: self._message}
                previous = await storage.save(
                    WorkflowCheckpoint(
                        self.name,
                        self.graph_signature_hash,
                        previous_checkpoint_id=previous,
                        state=state,
                        pending_request_info_events=dict(ctx.pending),
                        iteration_count=len(ctx.steps),
                    )
                )

        ctx.after_step = keep
        arguments = dict.fromkeys(self._messages, self._message)
        if self._context_name is not None:
            arguments[self._context_name] = ctx
        token = _running.set(ctx)
        try:
            value = await self._func(**arguments)
        except WorkflowInterrupted:
            await keep()
            return
        finally:
            _running.reset(token)
        ctx.pending.clear()
        await keep()
        if value is not None:
            await note(WorkflowEvent("output", value, self.name))

    @contextmanager
    def _exclusively(self) -> Generator[None]:
        if self._is_running:
            raise RuntimeError(f"Workflow {self.name!r} is already running. Concurrent executions are not allowed.")
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False


@overload
def workflow(func: Function, /) -> FunctionalWorkflow: ...
@overload
def workflow(
    *, name: str | None = None, description: str | None = None, checkpoint_storage: CheckpointStorage | None = None
) -> Callable[[Function], FunctionalWorkflow]: ...
def workflow(
    func: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    checkpoint_storage: CheckpointStorage | None = None,
) -> Any:
    """Make an async function a workflow: `@workflow`, or `@workflow(name=…)`."""

    def wrap(wrapped: Function) -> FunctionalWorkflow:
        return FunctionalWorkflow(wrapped, name=name, description=description, checkpoint_storage=checkpoint_storage)

    return wrap if func is None else wrap(func)


class FunctionalWorkflowAgent:
    """A functional workflow as an agent: the text of the messages in, the output as text, requests as function calls."""

    def __init__(self, workflow: FunctionalWorkflow, *, name: str | None = None, description: str | None = None) -> None:
        self.name = name or workflow.name
        self.id = f"FunctionalWorkflowAgent_{self.name}"
        self.description = description or workflow.description
        self._workflow = workflow

    @property
    def pending_requests(self) -> Mapping[str, WorkflowEvent[Any]]:
        """What it waits for, by request id."""
        return self._workflow.pending

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new conversation."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """A conversation that a model provider keeps."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[False] = False, session: AgentSession | None = None, ctx: CallContext | None = None
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[True], session: AgentSession | None = None, ctx: CallContext | None = None
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse]: ...
    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, ctx: CallContext | None = None
    ) -> Awaitable[AgentResponse] | ResponseStream[AgentResponseUpdate, AgentResponse]:
        """Run the workflow with what is given, or with the answers in it when it waits for some."""
        updates = ResponseStream(self._updates(messages, ctx), AgentResponse.from_updates)
        return updates if stream else updates.get_final_response()

    async def _updates(self, messages: Any, ctx: CallContext | None) -> AsyncGenerator[AgentResponseUpdate, None]:
        if self._workflow.pending:
            request = RunRequest(responses=answers_in(to_messages(cast("list[str | Message]", messages))), ctx=ctx)
        else:
            request = RunRequest(messages, ctx=ctx)
        events: list[WorkflowEvent[Any]] = []
        stream = live(lambda emit: self._workflow.perform(request, emit, events=events, is_streaming=True))
        try:
            async for event in stream:
                for update in updates_of(event):
                    yield update
        finally:
            await stream.aclose()


def _context_parameter(func: Callable[..., Any]) -> str | None:
    hints = hints_of(func)
    return next((name for name in inspect.signature(func).parameters if hints.get(name) is RunContext or name == "ctx"), None)
