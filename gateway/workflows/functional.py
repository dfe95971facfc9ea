"""Functional workflows: an async function as a workflow, with steps whose results are remembered. Names are agent-framework's.

A run is the function from its start to its end, or to the first request that nobody has answered (`functional_steps`). Its
checkpoints are taken after each step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, overload

import anyio

from gateway.errors import CODE_ERRORS, WorkflowFailed, without_exit
from gateway.former import FormerMethods
from gateway.sessions.context import ContextProvider
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.types.streams import ResponseStream
from gateway.workflows.annotations import coerced, hints_of, is_instance_of, members, name_of, types_in
from gateway.workflows.checkpoints import CheckpointStorage, WorkflowCheckpoint
from gateway.workflows.encoding import TypeBook, settle
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.exclusive import OneRun, Turn
from gateway.workflows.functional_agent import FunctionalWorkflowAgent
from gateway.workflows.functional_steps import Function, RunContext, StepWrapper, WorkflowInterrupted, context_parameter, within
from gateway.workflows.request import RunRequest
from gateway.workflows.runner import OnEvent, failed_executor
from gateway.workflows.stream import live
from gateway.workflows.tracing import traced_run

logger = logging.getLogger(__name__)

_STEPS = "_step_cache"
_ASKED = "_step_requests"
"""Only in checkpoints of earlier versions, which have no places."""

_PLACES = "_request_places"
_FLAT = "_flat_steps"
_MESSAGE = "_original_message"
_ANSWERS = "_responses"


class FunctionalWorkflow(FormerMethods):
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
        self._context_name = context_parameter(func)
        self._messages = [item for item in inspect.signature(func).parameters if item != self._context_name]
        if len(self._messages) > 1:
            raise ValueError(
                f"@workflow function {self.name!r} has multiple non-RunContext parameters ({', '.join(self._messages)}): give it one."
            )
        self._last: RunContext | None = None
        self._message: Any = None
        self._one_run = OneRun()
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

    @property
    def entry_id(self) -> str:
        """The function itself."""
        return self.name

    @property
    def input_types(self) -> list[Any]:
        """What the message may be, by its annotation; empty where the function takes none."""
        hints = hints_of(self._func)
        return [hints.get(name, Any) for name in self._messages]

    @property
    def result_types(self) -> list[Any]:
        """What it returns, by its annotation."""
        return [kind for kind in members(hints_of(self._func).get("return")) if kind is not NoneType]

    def takes(self, message: object) -> bool:
        """Whether the message is of the annotated type."""
        return any(is_instance_of(message, kind) for kind in self.input_types)

    def book(self) -> TypeBook:
        """The classes that its checkpoints may hold: those that it and its steps name, and all of the modules they come from."""
        names = getattr(self._func, "__globals__", {})
        called = [names.get(name) for name in getattr(getattr(self._func, "__code__", None), "co_names", ())]
        functions = [self._func, *(item.func for item in called if isinstance(item, StepWrapper))]
        classes = types_in(kind for function in functions for kind in hints_of(function).values())
        modules = {function.__module__ for function in functions} | {kind.__module__ for kind in classes} - {"builtins"}
        return TypeBook(known=classes, modules=modules)

    def build(self, *, checkpoint_storage: CheckpointStorage | None = None) -> FunctionalWorkflow:
        """Make another workflow of the same function, with no run behind it, for runs side by side."""
        storage = checkpoint_storage or self._storage
        return FunctionalWorkflow(self._func, name=self.name, description=self.description, checkpoint_storage=storage)

    def reset(self) -> None:
        """Forget earlier runs."""
        self._last, self._message, self.status = None, None, WorkflowRunState.IDLE

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
        """Run the function, as `Workflow.run` does; what it returns, unless nothing, is the output.

        Raises:
            RuntimeError: A run is going on; raised at once, before anything is awaited.
        """
        request = RunRequest(message, responses, checkpoint_id, checkpoint_storage, None, ctx)
        request.check()
        turn = self._one_run.begin(self.name)
        events: list[WorkflowEvent[Any]] = []

        async def follow(emit: OnEvent) -> None:
            await self.perform(request, emit, events=events, is_streaming=True, turn=turn)

        async def collect() -> WorkflowRunResult:
            await self.perform(request, None, events=events, turn=turn)
            return WorkflowRunResult.of(events, include_status_events=include_status_events)

        if not stream:
            return collect()
        return ResponseStream(live(follow), lambda _: WorkflowRunResult.of(events, include_status_events=include_status_events))

    async def perform(
        self,
        request: RunRequest,
        emit: OnEvent | None,
        *,
        events: list[WorkflowEvent[Any]],
        is_streaming: bool = False,
        turn: Turn | None = None,
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
        call = request.ctx or CallContext()
        if call.durable is not None and call.durable.version > 1:
            # Each pass runs the function from its start, so steps outside `@step` start again at number 1.
            call = dataclasses.replace(call, durable=call.durable.scoped("function"))
        with turn or self._one_run.begin(self.name):
            ctx = RunContext(self.name, note, call, is_streaming=is_streaming)
            await self._prepare(ctx, request, storage)
            self._last = ctx
            await note(WorkflowEvent[Any].started())
            await status(WorkflowRunState.IN_PROGRESS)
            try:
                work: Awaitable[None] = self._call(ctx, storage, note)
                if OBSERVABILITY_SETTINGS.enable_instrumentation:
                    work = traced_run(self.name, self.description, None, work)
                await work
            except CODE_ERRORS as raised:  # the boundary to the function's code
                error = without_exit(raised, lambda text: WorkflowFailed(f"The workflow failed: {text}", executor=""))
                await note(WorkflowEvent[Any].failed(WorkflowErrorDetails.from_exception(error, executor_id=failed_executor(error))))
                await status(WorkflowRunState.FAILED)
                raise error from raised.__cause__
            except anyio.get_cancelled_exc_class():
                self.status = WorkflowRunState.CANCELLED
                events.append(WorkflowEvent[Any].status(WorkflowRunState.CANCELLED))
                raise
            await status(WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if ctx.pending else WorkflowRunState.IDLE)

    def as_agent(
        self, name: str | None = None, *, description: str | None = None, context_providers: Sequence[ContextProvider] | None = None
    ) -> FunctionalWorkflowAgent:
        """The workflow as an agent."""
        return FunctionalWorkflowAgent(self, name=name, description=description, context_providers=context_providers)

    async def _prepare(self, ctx: RunContext, request: RunRequest, storage: CheckpointStorage | None) -> None:
        """What the run goes on from."""
        if request.message is not None:
            if not self._messages:
                raise ValueError(f"@workflow function {self.name!r} has no non-RunContext parameter, so it takes no message.")
            self._message = request.message
            return
        if request.checkpoint_id is not None:
            await self._restore(ctx, request.checkpoint_id, storage)
        elif self._last is not None:
            last = self._last
            ctx.state, ctx.steps, ctx.asked = dict(last.state), dict(last.steps), dict(last.asked)
            ctx.places, ctx.is_flat = dict(last.places), last.is_flat
            ctx.answers, ctx.pending = dict(last.answers), dict(last.pending)
        answers = request.responses or {}
        if answers and not ctx.pending:
            raise ValueError(f"Workflow {self.name!r} has no pending request_info events, so there is nothing to answer.")
        for key, value in answers.items():
            if key in ctx.answers:  # given before; callers may hand over all answers so far
                continue
            if key not in ctx.pending:
                raise ValueError(f"Response provided for unknown request ID: {key}. The responses do not answer what is pending.")
            if value is None:
                logger.warning("workflow %s: the response to request %s is None", self.name, key)
            wanted = ctx.pending[key].response_type
            answer = coerced(value, wanted)
            if value is not None and not is_instance_of(answer, wanted):
                raise ValueError(f"Response type mismatch for request ID {key}: expected {name_of(wanted)}, got {type(value).__name__}.")
            ctx.answers[key] = answer
        ctx.pending = {key: event for key, event in ctx.pending.items() if key not in ctx.answers}

    async def _restore(self, ctx: RunContext, checkpoint_id: str, storage: CheckpointStorage | None) -> None:
        if storage is None:
            raise ValueError("Cannot restore from checkpoint: either provide checkpoint_storage parameter here or to @workflow.")
        checkpoint = await storage.load(checkpoint_id)
        if checkpoint.graph_signature_hash != self.graph_signature_hash:
            text = f"Checkpoint {checkpoint_id!r} is not compatible: another version of workflow {checkpoint.workflow_name!r} made it."
            raise ValueError(text)
        book = self.book()
        state: dict[str, Any] = settle(dict(checkpoint.state), book)
        ctx.steps, ctx.answers = state.pop(_STEPS), state.pop(_ANSWERS)
        ctx.is_flat = state.pop(_FLAT, _PLACES not in state)
        ctx.places, ctx.asked = state.pop(_PLACES, {}), state.pop(_ASKED, {})
        self._message, ctx.state = state.pop(_MESSAGE), state
        ctx.pending = settle(dict(checkpoint.pending_request_info_events), book)

    async def _call(self, ctx: RunContext, storage: CheckpointStorage | None, note: OnEvent) -> None:
        previous: str | None = None

        async def keep() -> None:
            nonlocal previous
            if storage is not None:
                own = {_STEPS: dict(ctx.steps), _ANSWERS: dict(ctx.answers), _MESSAGE: self._message, _PLACES: dict(ctx.places)}
                old = {_ASKED: dict(ctx.asked), _FLAT: True} if ctx.is_flat else {}
                state = {**ctx.state, **own, **old}
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
        try:
            with within(ctx):
                value = await self._func(**arguments)
        except WorkflowInterrupted:
            await keep()
            return
        except BaseExceptionGroup as group:  # it asked in a task group
            if group.split(WorkflowInterrupted)[1] is not None:
                raise
            await keep()
            return
        ctx.pending.clear()
        await keep()
        if value is not None:
            await note(WorkflowEvent("output", value, self.name))


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
