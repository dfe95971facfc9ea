"""`ToolBatch`: executes the tool calls of one model answer, concurrently by default, and returns their results in call order.

A call that fails does not end the run: the model receives the error as the call's result. The run ends if a call needs a
person's answer, if middleware terminates the run, or on `MiddlewareFailure`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import anyio
from anyio.abc import TaskGroup

from gateway.agents.tracing import Failed, traced_tool
from gateway.chat.loop_options import LoopOptions
from gateway.errors import (
    CODE_ERRORS,
    GatewayError,
    MiddlewareFailure,
    MiddlewareTermination,
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
from gateway.tools.toolbox import guard_in
from gateway.types.call_arguments import read_arguments
from gateway.types.content import Content

logger = logging.getLogger(__name__)

FUNCTION_FAILED = "Error: Function failed."
ARGUMENTS_FAILED = "Error: Argument parsing failed."
NO_DETAILS = "Tool requires user input but no request details were provided."

RESERVED = frozenset({"conversation_id", "middleware", "chat_options", "options", "response_format", "tool_choice", "thread"})
"""Keys of `function_invocation_kwargs` (run-time values for tools) that agent-framework uses itself and that tools do not receive."""


@dataclass(slots=True)
class BatchResult:
    """Results of one batch (the tool calls of one model answer), and whether the batch ends the run."""

    results: list[Content]
    """One content per tool call, in call order: its `function_result`, or the first request for input if a person must answer the call."""
    executed: int = 0
    failed: bool = False
    terminated: bool = False
    """Whether function middleware ended the run."""
    extra: list[Content] = field(default_factory=lambda: list[Content]())
    """The second and later requests for input of calls that need several answers from a person; `results` contains the first."""
    failure: Exception | None = None
    """The `MiddlewareFailure` that ends the run, or `None`."""

    @property
    def waits(self) -> bool:
        """Whether the run must end because a person must answer a request before it can continue."""
        return any(content.user_input_request for content in (*self.results, *self.extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBatch:
    """Executes the batches of one agent run; a batch is the tool calls of one model answer."""

    tools: list[Tool]
    """The tools of the run. Tools and middleware may change this list between batches."""
    hidden_tools: Sequence[Tool] = ()
    """Tools that may be called although the model does not receive their definitions (`additional_tools`)."""
    ctx: CallContext
    options: LoopOptions
    middleware: Sequence[Middleware[FunctionInvocationContext]] = ()
    session: SessionData | None = None
    kwargs: JsonMapping = field(default_factory=dict[str, JsonValue])
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)
    """Yields the numbers of the run's batches, from 1. In a durable task, which survives restarts, labels of tool calls contain them."""

    async def run(self, calls: Sequence[Content], approvals: Sequence[Content | None] = ()) -> BatchResult:
        """Execute the tool calls of one model answer.

        `approvals` has one entry per call (the response that approved it, or `None`), or is empty if no call was approved.

        Raises:
            MiddlewareFailure: Middleware failed the run.
        """
        self.guard_tools()
        by_name = {tool.definition.name: tool for tool in (*self.hidden_tools, *self.tools)}
        outcome = BatchResult([Content("function_result")] * len(calls))
        number = next(self._numbers)

        async def one(index: int, call: Content) -> None:
            approval = approvals[index] if approvals else None
            tool = by_name.get(call.name or "")
            outcome.results[index] = await self._call(tool, call, approval, outcome, f"call {number}.{index}")

        numbered = list(enumerate(calls))
        for group in [numbered] if self.options.allow_concurrent_invocation else [[call] for call in numbered]:
            async with anyio.create_task_group() as tasks:  # a task per call, so that calls do not share context variables

                async def guarded(index: int, call: Content, tasks: TaskGroup = tasks) -> None:
                    try:
                        await one(index, call)
                    except MiddlewareFailure as failure:  # raised below, because the task group would wrap it in an ExceptionGroup
                        outcome.failure = failure
                        tasks.cancel_scope.cancel()

                for index, call in group:
                    tasks.start_soon(guarded, index, call)
            if outcome.failure is not None:
                raise outcome.failure
        return outcome

    def guard_tools(self) -> None:
        """Wrap tools that were added to `tools` during the run, so that the gate (authorization, approvals, limits) checks their calls.

        Tools that policy hides are removed from the list.
        """
        if (guard := guard_in(self.ctx)) is not None:
            self.tools[:] = guard.guarded(self.tools)

    async def _call(self, tool: Tool | None, call: Content, approval: Content | None, outcome: BatchResult, label: str) -> Content:
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await traced_tool(tool, call, lambda failed: self._answer(tool, call, approval, outcome, label, failed))
        return await self._answer(tool, call, approval, outcome, label, _ignore)

    async def _answer(
        self, tool: Tool | None, call: Content, approval: Content | None, outcome: BatchResult, label: str, failed: Failed
    ) -> Content:
        call_id = call.call_id or ""
        if tool is None:
            outcome.failed = True
            failed("UnknownTool")
            return Content.from_function_result(call_id, f'Error: Requested function "{call.name}" not found.', "unknown function")
        arguments, unread, refused = self._read(tool, call)
        context = self._context(tool, arguments, call_id, approval, label)
        if (wrong := unread or refused) is not None:
            # Middleware still receives the call, because it may repair the arguments.
            context.metadata["argument_error"], context.metadata["raw_arguments"] = str(wrong), call.arguments
        try:
            await compose(self.middleware, context, lambda: self._invoke(context, unread, outcome, failed))
        except MiddlewareTermination as stop:
            outcome.terminated = True
            return _result(call, stop.result if context.result is None else context.result)
        except UserInputRequired as ask:
            return _as_input_request(ask, call_id, outcome)
        except MiddlewareFailure:
            raise
        except CODE_ERRORS as error:  # an exception of a tool or middleware becomes the result of the tool call
            outcome.failed = True
            failed(cause_of(error))
            return self._failure(tool, call_id, error)
        outcome.terminated = outcome.terminated or context.terminate
        return _result(call, context.result)

    def _read(self, tool: Tool, call: Content) -> tuple[JsonObject, ValueError | None, ArgumentsRefused | None]:
        """Return three values: the call's arguments, the error if they cannot be parsed, and the error if they do not fit the parameters.

        Arguments of a Python function are converted to the types of its parameters if the run has function middleware, or if the function
        takes the call's context. Other arguments are returned as the model wrote them; the gate (authorization, approvals, limits) receives
        them in this form.
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
        """Build the context that function middleware and the tool receive for a call.

        `label` identifies the call's requests for input in a durable task, which continues after a restart of the gateway.
        """
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
        context.ctx = self.ctx.child(context)
        if (durable := self.ctx.ports.durable) is not None:
            context.ctx = context.ctx.with_durable(durable.asking(label))
        return context

    async def _invoke(self, context: FunctionInvocationContext, unread: ValueError | None, outcome: BatchResult, failed: Failed) -> None:
        if unread is not None and not context.arguments:
            raise ArgumentsRefused(str(unread))
        failure: Exception | None = None
        result = None
        try:
            result = await drive(self._guarded(context.function), context.arguments, context.ctx)
        except FunctionFailed as error:
            cause = cause_of(error)
            failure = cause if isinstance(cause, Exception) else error
        if failure is not None:
            raise failure  # the function's own exception, so that middleware around the call can catch it
        outcome.executed += 1
        if isinstance(result, Complete):
            if result.is_error:
                outcome.failed = True
                failed("tool_error")
            context.result = to_contents(result)
        else:
            context.result = to_contents("The tool works in the background; its result is not available in this run.")

    def _guarded(self, function: Tool) -> Tool:
        """Return `function` wrapped so that the gate (authorization, approvals, limits) checks its calls.

        The tool is wrapped for each call, because middleware may have replaced the tool that the model called. Calls of a tool that policy
        hides are refused and recorded.
        """
        guard = guard_in(self.ctx)
        return function if guard is None else next(iter(guard.guarded([function])), None) or guard.step(function)

    def _failure(self, tool: Tool, call_id: str, error: BaseException) -> Content:
        """Return the tool result for a failed call: a text for the model, and the exception's text in a field hidden from the model."""
        detailed = self.options.include_detailed_errors
        cause = cause_of(error)
        if isinstance(error, ArgumentsRefused):
            text = f"{ARGUMENTS_FAILED} {'Exception: ' if detailed else ''}{error.args[0]}"
        elif isinstance(error, GatewayError) and not isinstance(error, FunctionFailed):
            text = f"Error: {text_for_caller(error)}"
        else:
            logger.warning("tool call failed tool=%s error=%s", tool.definition.name, type(cause).__name__, exc_info=cause)
            text = f"{FUNCTION_FAILED} Exception: {cause}" if detailed else FUNCTION_FAILED
        return Content.from_function_result(call_id, text, str(cause) or repr(cause))


def cause_of(error: BaseException) -> BaseException:
    """Return the exception that a tool's function raised, if `error` is the `FunctionFailed` that wraps it; else `error` itself."""
    return error.__cause__ if isinstance(error, FunctionFailed) and error.__cause__ is not None else error


def _ignore(error: BaseException | str) -> None:
    """Do nothing. Used in place of the function that records a call's failure in a span, if tool calls are not traced."""


def _result(call: Content, result: object) -> Content:
    """Convert the result of a tool call, from the tool or from middleware, to content for the model."""
    if isinstance(result, Content) and result.type in ("function_result", "function_approval_request"):
        return result
    given = "" if result is None else result if isinstance(result, str) else to_contents(result)
    return Content.from_function_result(call.call_id or "", given, additional_properties=call.additional_properties or None)


def _as_input_request(ask: UserInputRequired, call_id: str, outcome: BatchResult) -> Content:
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
