"""Functional workflows: async functions that call `@step` functions, whose results are recorded.

A run executes the function from its start to its end, or to the first request to the caller (`request_info`) that has no response yet. When
the workflow continues, the function runs from its start again, and calls of finished steps return their recorded results
(`functional_steps`). A checkpoint is saved after each step, and at the end of a run that has not failed. Public names are those of
Microsoft's agent-framework.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, Unpack, overload

import anyio

from gateway.errors import CODE_ERRORS, WorkflowFailed, without_exit
from gateway.former_names import FormerMethods
from gateway.sessions.session_context import ContextProvider
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage, WorkflowCheckpoint
from gateway.workflows.encoding import TypeBook, settle
from gateway.workflows.events import EventLog, OnEvent, WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.executor_failures import failed_executor
from gateway.workflows.functional_agent import FunctionalWorkflowAgent
from gateway.workflows.functional_steps import Function, RunContext, StepWrapper, WorkflowInterrupted, context_parameter, within
from gateway.workflows.run_lock import RunLock, RunSlot
from gateway.workflows.run_request import RunOptions, RunRequest
from gateway.workflows.run_stream import EventStream, start_run
from gateway.workflows.tracing import traced_run
from gateway.workflows.type_hints import checked_response, hints_of, is_instance_of, members, types_in

logger = logging.getLogger(__name__)

_STEPS = "_step_cache"
_ASKED = "_step_requests"
"""Key in checkpoints of earlier versions, which stored how many requests each step made (`RunContext.asked`).

Current checkpoints store the id of each request instead, under the key `_PLACES`."""

_PLACES = "_request_places"
_FLAT = "_flat_steps"
_MESSAGE = "_original_message"
_ANSWERS = "_responses"


class FunctionalWorkflow(FormerMethods):
    """A workflow that consists of one async function. It does one run at a time.

    The function takes the message of the run, and optionally a `RunContext`, through which it makes requests and stores state.
    """

    def __init__(
        self,
        func: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
    ) -> None:
        """Create a workflow of `func`. The default name is that of the function. Runs store checkpoints in `checkpoint_storage`.

        Raises:
            ValueError: The function has more than one parameter besides the one for the `RunContext`.
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
        self._run_lock = RunLock()
        self.status = WorkflowRunState.IDLE
        code = getattr(func, "__code__", None)
        names = sorted(getattr(code, "co_names", ()))
        body = hashlib.sha256(getattr(code, "co_code", b"")).hexdigest()
        self.graph_signature_hash = hashlib.sha256(json.dumps([self.name, names, body]).encode()).hexdigest()
        self.__doc__ = func.__doc__

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests of the workflow to its caller that have no response yet, by request id."""
        return self._last.pending if self._last is not None else {}

    @property
    def entry_id(self) -> str:
        """The name of the workflow, by default that of its function. Events name it as the source of requests and outputs."""
        return self.name

    @property
    def input_types(self) -> list[Any]:
        """A list with the annotated type of the function's message parameter; empty if the function takes no message."""
        hints = hints_of(self._func)
        return [hints.get(name, Any) for name in self._messages]

    @property
    def result_types(self) -> list[Any]:
        """Types of the function's result according to its annotation, without `None`."""
        return [kind for kind in members(hints_of(self._func).get("return")) if kind is not NoneType]

    def takes(self, message: object) -> bool:
        """Return whether a run may begin with this message: it has the annotated type of the function's parameter."""
        return any(is_instance_of(message, kind) for kind in self.input_types)

    def book(self) -> TypeBook:
        """Return the set of classes that may be decoded from checkpoints of this workflow.

        It contains the classes in the annotations of the function and of the steps that it calls by a global name, and all classes in the
        modules of these classes and functions.
        """
        names = getattr(self._func, "__globals__", {})
        called = [names.get(name) for name in getattr(getattr(self._func, "__code__", None), "co_names", ())]
        functions = [self._func, *(item.func for item in called if isinstance(item, StepWrapper))]
        classes = types_in(kind for function in functions for kind in hints_of(function).values())
        modules = {function.__module__ for function in functions} | {kind.__module__ for kind in classes} - {"builtins"}
        return TypeBook(known=classes, modules=modules)

    def build(self, *, checkpoint_storage: CheckpointStorage | None = None) -> FunctionalWorkflow:
        """Return a new workflow with the same function but without the state of earlier runs. Both workflows can run concurrently.

        Without `checkpoint_storage`, the new workflow uses the storage of this workflow.
        """
        storage = checkpoint_storage or self._storage
        return FunctionalWorkflow(self._func, name=self.name, description=self.description, checkpoint_storage=storage)

    def reset(self) -> None:
        """Drop the state of earlier runs: message, recorded steps, stored values, requests and responses."""
        self._last, self._message, self.status = None, None, WorkflowRunState.IDLE

    @overload
    def run(
        self, message: Any = None, *, stream: Literal[False] = False, include_status_events: bool = False, **options: Unpack[RunOptions]
    ) -> Awaitable[WorkflowRunResult]: ...
    @overload
    def run(
        self, message: Any = None, *, stream: Literal[True], include_status_events: bool = False, **options: Unpack[RunOptions]
    ) -> EventStream: ...
    def run(
        self, message: Any = None, *, stream: bool = False, include_status_events: bool = False, **options: Unpack[RunOptions]
    ) -> Awaitable[WorkflowRunResult] | EventStream:
        """Run the function. Await the result, or iterate the events of the run with `stream=True`.

        Begin with a `message`, or continue with `responses` to open requests (by request id), with a checkpoint, or with both. The
        function's result is the output of the workflow, unless it is `None`. `ctx` is the tool call that the run serves.

        Raises:
            RuntimeError: Another run has not ended. Raised by the call itself, before anything is awaited.
            ValueError: The arguments cannot be combined, the function takes no message, a response has an unknown id or the wrong type, no
                request is open, no storage is known for the checkpoint, or it was made by another version of the function.
            WorkflowCheckpointException: The checkpoint does not exist or cannot be read, or a new checkpoint cannot be stored.
            Exception: Any exception that the function raised.
        """
        request = RunRequest(message, **options)
        request.check()
        slot = self._run_lock.begin(self.name)
        return start_run(self, request, slot, stream=stream, include_status_events=include_status_events)

    async def perform(self, request: RunRequest, log: EventLog, *, is_streaming: bool = False, slot: RunSlot | None = None) -> None:
        """Do one run, and add every event to `log`. Raises the exceptions that `run` documents.

        `slot` is the permission for this run, if the caller already has it; a workflow permits one run at a time.
        """

        async def note(event: WorkflowEvent[Any]) -> None:
            await log.add(event)
            if event.type == "request_info":
                await status(WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS)

        async def status(state: WorkflowRunState) -> None:
            self.status = state
            await note(WorkflowEvent[Any].status(state))

        storage = request.checkpoint_storage or self._storage
        call = request.ctx or CallContext()
        if call.ports.durable is not None and call.ports.durable.version > 1:
            # Each run executes the function from its start, so calls outside `@step` must be numbered from 1 again in each run.
            call = call.with_durable(call.ports.durable.scoped("function"))
        with slot or self._run_lock.begin(self.name):
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
            except CODE_ERRORS as raised:  # the function is user code
                error = without_exit(raised, lambda text: WorkflowFailed(f"The workflow failed: {text}", executor=""))
                await note(WorkflowEvent[Any].failed(WorkflowErrorDetails.from_exception(error, executor_id=failed_executor(error))))
                await status(WorkflowRunState.FAILED)
                raise error from raised.__cause__
            except anyio.get_cancelled_exc_class():
                self.status = WorkflowRunState.CANCELLED
                log.events.append(WorkflowEvent[Any].status(WorkflowRunState.CANCELLED))
                raise
            await status(WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if ctx.pending else WorkflowRunState.IDLE)

    def as_agent(
        self, name: str | None = None, *, description: str | None = None, context_providers: Sequence[ContextProvider] | None = None
    ) -> FunctionalWorkflowAgent:
        """Return an agent that runs this workflow. Name and description default to those of the workflow."""
        return FunctionalWorkflowAgent(self, name=name, description=description, context_providers=context_providers)

    async def _prepare(self, ctx: RunContext, request: RunRequest, storage: CheckpointStorage | None) -> None:
        """Prepare `ctx` for a run: store the message of a new run, or restore the state of the run that continues.

        The state comes from the requested checkpoint, or from the last run of this object. Responses are checked and converted.
        """
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
            if key in ctx.answers:  # callers may repeat the responses of earlier runs
                continue
            if key not in ctx.pending:
                raise ValueError(f"Response provided for unknown request ID: {key}. The responses do not answer what is pending.")
            if value is None:
                logger.warning("response to a request is None workflow=%s request=%s", self.name, key)
            ctx.answers[key] = None if value is None else checked_response(key, value, ctx.pending[key].response_type)
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
        except BaseExceptionGroup as group:  # the function made requests in a task group
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
    """Make a functional workflow from an async function: use it as `@workflow`, or with arguments as `@workflow(name=…)`."""

    def wrap(wrapped: Function) -> FunctionalWorkflow:
        return FunctionalWorkflow(wrapped, name=name, description=description, checkpoint_storage=checkpoint_storage)

    return wrap if func is None else wrap(func)
