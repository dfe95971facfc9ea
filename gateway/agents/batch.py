"""One batch of tool calls: everything a model asked for in one answer, run concurrently, answered in order.

Nothing that goes wrong with one call ends the run: the model reads what happened and goes on (requirements TL7-TL9).
What ends it is a call that somebody else must answer, a termination, or a `MiddlewareFailure`.
"""

from __future__ import annotations

import dataclasses
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import anyio

from gateway.agents.tracing import Failed, traced_tool
from gateway.chat.limits import LoopOptions
from gateway.errors import (
    CODE_ERRORS,
    GatewayError,
    MiddlewareFailure,
    MiddlewareTermination,
    PolicyDenied,
    UserInputRequired,
    text_for_caller,
)
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.middleware import Middleware, compose
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.base import Complete, Tool
from gateway.tools.contents import to_contents
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.function import FunctionFailed, FunctionTool
from gateway.tools.invocation import FunctionInvocationContext, SessionData
from gateway.tools.schema import ArgumentsRefused
from gateway.types.arguments import read_arguments
from gateway.types.content import Content

logger = logging.getLogger(__name__)

FUNCTION_FAILED = "Error: Function failed."
ARGUMENTS_FAILED = "Error: Argument parsing failed."
NO_DETAILS = "Tool requires user input but no request details were provided."

RESERVED = frozenset({"conversation_id", "middleware", "chat_options", "options", "response_format", "tool_choice", "thread"})
"""Names of the framework's own that no tool gets among its run-time values (requirements TL16)."""


@dataclass(slots=True)
class BatchOutcome:
    """What a batch gave."""

    results: list[Content]
    """A `function_result` per call, in the order of the calls; for a call that needs a person, what it waits for."""
    executed: int = 0
    failed: bool = False
    terminated: bool = False
    """A function middleware ended the loop."""
    extra: list[Content] = field(default_factory=lambda: list[Content]())
    """More that a person must answer, where one call needs several answers."""
    failure: Exception | None = None
    """What ends the run."""

    @property
    def waits(self) -> bool:
        """Whether a person must answer before the run can go on."""
        return any(content.user_input_request for content in (*self.results, *self.extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Runs batches for one run of an agent."""

    tools: list[Tool]
    """The run's live list."""
    hidden_tools: Sequence[Tool] = ()
    """Tools that may be called though the model is not told of them (`additional_tools`)."""
    ctx: CallContext
    options: LoopOptions
    middleware: Sequence[Middleware[FunctionInvocationContext]] = ()
    session: SessionData | None = None
    kwargs: JsonMapping = field(default_factory=dict[str, JsonValue])
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)
    """Of the batches of the run."""

    async def run(self, calls: Sequence[Content], approvals: Sequence[Content | None] = ()) -> BatchOutcome:
        """Run the calls; `approvals` are the answers that let them, where they needed one.

        Raises:
            MiddlewareFailure: Middleware failed the run.
        """
        self.guard_tools()
        by_name = {tool.definition.name: tool for tool in (*self.hidden_tools, *self.tools)}
        outcome = BatchOutcome([Content("function_result")] * len(calls))
        number = next(self._numbers)

        async def one(index: int, call: Content) -> None:
            approval = approvals[index] if approvals else None
            tool = by_name.get(call.name or "")
            outcome.results[index] = await self._call(tool, call, approval, outcome, f"call {number}.{index}")

        if len(calls) == 1:
            await _in_own_context(one(0, calls[0]))
        elif not self.options.allow_concurrent_invocation:
            for index, call in enumerate(calls):
                await _in_own_context(one(index, call))
        else:
            async with anyio.create_task_group() as tasks:

                async def guarded(index: int, call: Content) -> None:
                    try:
                        await one(index, call)
                    except MiddlewareFailure as failure:  # out of the group by itself, not in an ExceptionGroup
                        outcome.failure = failure
                        tasks.cancel_scope.cancel()

                for index, call in enumerate(calls):
                    tasks.start_soon(guarded, index, call)
        if outcome.failure is not None:
            raise outcome.failure
        return outcome

    def guard_tools(self) -> None:
        """Put the gate around what the run's own code added to the live list since the last time."""
        if self.ctx.tool_guard is not None:
            self.tools[:] = self.ctx.tool_guard.guarded(self.tools)

    async def _call(
        self, tool: Tool | None, call: Content, approval: Content | None, outcome: BatchOutcome, label: str
    ) -> Content:
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await traced_tool(tool, call, lambda failed: self._answer(tool, call, approval, outcome, label, failed))
        return await self._answer(tool, call, approval, outcome, label, _ignore)

    async def _answer(
        self, tool: Tool | None, call: Content, approval: Content | None, outcome: BatchOutcome, label: str, failed: Failed
    ) -> Content:
        call_id = call.call_id or ""
        if tool is None:
            outcome.failed = True
            failed("UnknownTool")
            return Content.from_function_result(call_id, f'Error: Requested function "{call.name}" not found.', "unknown function")
        arguments, unread, refused = self._read(tool, call)
        context = self._context(tool, arguments, call_id, approval, label)
        if (wrong := unread or refused) is not None:
            # Middleware still sees such a call, and may repair it.
            context.metadata["argument_error"], context.metadata["raw_arguments"] = str(wrong), call.arguments
        try:
            await compose(self.middleware, context, lambda: self._invoke(context, unread, outcome, failed))
        except MiddlewareTermination as stop:
            outcome.terminated = True
            return _result(call, stop.result if context.result is None else context.result)
        except UserInputRequired as ask:
            return _asked(ask, call_id, outcome)
        except MiddlewareFailure:
            raise
        except CODE_ERRORS as error:  # a tool or middleware that fails must not end the run
            outcome.failed = True
            failed(cause_of(error))
            return self._failure(tool, call_id, error)
        outcome.terminated = outcome.terminated or context.terminate
        return _result(call, context.result)

    def _read(self, tool: Tool, call: Content) -> tuple[JsonObject, ValueError | None, ArgumentsRefused | None]:
        """Return the arguments as middleware and the tool see them, and why they cannot be read or do not fit.

        A function that is not behind the gate has its arguments converted here; the gate gets them as the model wrote them.
        """
        try:
            arguments = read_arguments(call.arguments)
        except ValueError as error:
            return {}, error, None
        if isinstance(tool, FunctionTool) and tool.func is not None and (self.middleware or tool.takes_context):
            try:
                return tool.coerce(arguments), None, None
            except ArgumentsRefused as error:
                return arguments, None, error
        return arguments, None, None

    def _context(
        self, tool: Tool, arguments: JsonObject, call_id: str, approval: Content | None, label: str
    ) -> FunctionInvocationContext:
        """Build what middleware sees of the call. `label` is the call's place in the run: the calls of a batch ask side by side."""
        context = FunctionInvocationContext(
            tool,
            arguments,
            self.session,
            {"call_id": call_id},
            kwargs={key: value for key, value in self.kwargs.items() if key not in RESERVED},
            tools=self.tools,
        )
        if approval is not None:
            context.metadata["approval_response"] = approval
        context.ctx = self.ctx.child(run_tools=self.tools, invocation=context)
        if (durable := self.ctx.durable) is not None:
            context.ctx = dataclasses.replace(context.ctx, durable=durable.asking(label))
        return context

    async def _invoke(
        self, context: FunctionInvocationContext, unread: ValueError | None, outcome: BatchOutcome, failed: Failed
    ) -> None:
        if unread is not None and not context.arguments:
            raise ArgumentsRefused(f"Argument parsing failed. {unread}")
        failure: Exception | None = None
        result = None
        try:
            result = await drive(self._guarded(context.function), context.arguments, context.ctx)
        except FunctionFailed as error:
            cause = cause_of(error)
            failure = cause if isinstance(cause, Exception) else error
        if failure is not None:
            raise failure  # middleware around the call may catch what the function itself raised
        outcome.executed += 1
        if isinstance(result, Complete):
            if result.is_error:
                outcome.failed = True
                failed("tool_error")
            context.result = to_contents(result)
        else:
            context.result = to_contents("The tool works in the background; its result is not available in this run.")

    def _guarded(self, function: Tool) -> Tool:
        """The tool behind the gate: middleware may have put another one in the place of what was called.

        Raises:
            PolicyDenied: Policy does not let it exist.
        """
        guard = self.ctx.tool_guard
        behind = [function] if guard is None else guard.guarded([function])
        if not behind:
            name = function.definition.name
            raise PolicyDenied(f"Tool {name!r} is denied by policy.", rule="tools.deny", subject=name)
        return behind[0]

    def _failure(self, tool: Tool, call_id: str, error: BaseException) -> Content:
        """What the model reads of an error, and what only the caller sees."""
        detailed = self.options.include_detailed_errors
        cause = cause_of(error)
        if isinstance(error, ArgumentsRefused):
            told = str(error).removeprefix("Argument parsing failed. ")
            text = f"{ARGUMENTS_FAILED} {'Exception: ' if detailed else ''}{told}"
        elif isinstance(error, GatewayError) and not isinstance(error, FunctionFailed):
            text = f"Error: {text_for_caller(error)}"
        else:
            logger.warning("tool %r of an agent failed: %s", tool.definition.name, type(cause).__name__, exc_info=cause)
            text = f"{FUNCTION_FAILED} Exception: {cause}" if detailed else FUNCTION_FAILED
        return Content.from_function_result(call_id, text, str(cause) or repr(cause))


def cause_of(error: BaseException) -> BaseException:
    """Return what a function raised, or the error itself."""
    return error.__cause__ if isinstance(error, FunctionFailed) and error.__cause__ is not None else error


def _ignore(error: BaseException | str) -> None:
    """Take a failure where nothing is traced."""


@types.coroutine
def _in_own_context(work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Await `work` with context variables of its own, as calls of a batch have them, without the price of a task."""
    context = copy_context()
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        try:
            waits_for = context.run(step)
        except StopIteration:
            return
        try:
            step = partial(work.send, (yield waits_for))
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # whatever it is: it is the work's to see
            step = partial(work.throw, error)


def _result(call: Content, result: object) -> Content:
    """What a call gave, from a tool or from middleware in its stead, as the model reads it."""
    if isinstance(result, Content) and result.type in ("function_result", "function_approval_request"):
        return result
    given = "" if result is None else result if isinstance(result, str) else to_contents(result)
    return Content.from_function_result(call.call_id or "", given, additional_properties=call.additional_properties or None)


def _asked(ask: UserInputRequired, call_id: str, outcome: BatchOutcome) -> Content:
    contents = [item for item in ask.contents if isinstance(item, Content)]
    if not contents:
        outcome.failed = True
        return Content.from_function_result(call_id, NO_DETAILS, "UserInputRequired")
    for item in contents:
        item.call_id = call_id
        item.id = item.id or call_id
        item.user_input_request = True
    outcome.extra += contents[1:]
    return contents[0]
