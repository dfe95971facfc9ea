"""One batch of tool calls: everything a model asked for in one answer, run concurrently, answered in order.

Nothing that goes wrong with one call ends the run: the model reads what happened and goes on (requirements TL7-TL9).
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import anyio

from gateway.agents.options import LoopOptions
from gateway.errors import AgentError, GatewayError
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import Middleware, MiddlewareTermination, compose
from gateway.tools.base import Complete, Tool
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.content import Content

logger = logging.getLogger(__name__)

FUNCTION_FAILED = "Error: Function failed."
ARGUMENTS_FAILED = "Error: Argument parsing failed."


@dataclass(slots=True)
class BatchOutcome:
    """What a batch gave."""

    results: list[Content]
    """A `function_result` per call, in the order of the calls."""
    failed: bool = False
    terminated: bool = False
    """A function middleware ended the loop."""


class Batch:
    """Runs batches for one run of an agent."""

    def __init__(
        self, tools: list[Tool], ctx: CallContext, options: LoopOptions, middleware: Sequence[Middleware[FunctionInvocationContext]]
    ) -> None:
        """`tools` is the run's live list."""
        self._tools = tools
        self._ctx = ctx
        self._options = options
        self._middleware = middleware

    async def run(self, calls: Sequence[Content]) -> BatchOutcome:
        """Run the calls.

        Raises:
            AgentError: A tool is unknown and the options say that this ends the run.
        """
        by_name = {tool.definition.name: tool for tool in self._tools}
        outcome = BatchOutcome([Content("function_result")] * len(calls))

        async def one(index: int, call: Content) -> None:
            outcome.results[index] = await self._call(by_name.get(call.name or ""), call, outcome)

        unknown = next((call.name for call in calls if call.name not in by_name), None)
        if unknown is not None and self._options.terminate_on_unknown_calls:
            raise AgentError(f"The model called {unknown!r}, which is no tool of this agent.")
        async with anyio.create_task_group() as tasks:
            for index, call in enumerate(calls):
                tasks.start_soon(one, index, call)
        return outcome

    async def _call(self, tool: Tool | None, call: Content, outcome: BatchOutcome) -> Content:
        call_id = call.call_id or ""
        if tool is None:
            outcome.failed = True
            return Content.from_function_result(call_id, f'Error: Requested function "{call.name}" not found.', "unknown function")
        try:
            arguments = call.parse_arguments()
        except ValueError as error:
            outcome.failed = True
            detail = f" {error}" if self._options.include_detailed_errors else ""
            return Content.from_function_result(call_id, ARGUMENTS_FAILED + detail, str(error))
        context = FunctionInvocationContext(tool, arguments, dataclasses.replace(self._ctx.child(), run_tools=self._tools), self._tools)
        try:
            await compose(self._middleware, context, lambda: self._invoke(context, outcome))
        except MiddlewareTermination as stop:
            outcome.terminated = True
            return Content.from_function_result(call_id, context.result if context.result is not None else stop.result)
        except GatewayError as error:
            outcome.failed = True
            return Content.from_function_result(call_id, f"Error: {error}", str(error))
        except Exception as error:  # a tool or middleware that fails must not end the run (requirements TL7, C14)
            logger.warning("tool %r of an agent failed", tool.definition.name, exc_info=error)
            outcome.failed = True
            detail = f" Exception: {error}" if self._options.include_detailed_errors else ""
            return Content.from_function_result(call_id, FUNCTION_FAILED + detail, repr(error))
        return Content.from_function_result(call_id, context.result)

    async def _invoke(self, context: FunctionInvocationContext, outcome: BatchOutcome) -> None:
        result = await drive(context.function, context.arguments, context.ctx)
        if isinstance(result, Complete):
            outcome.failed = outcome.failed or result.is_error
            context.result = to_model_text(result)
        else:
            context.result = "The tool works in the background; its result is not available in this run."


def to_model_text(result: Complete) -> str:
    """A tool's result as the text a model reads: its texts, else its structured content; other blocks are named."""
    parts = [_block_text(block) for block in result.content]
    if not any(parts) and result.structured is not None:
        parts = [json.dumps(result.structured, ensure_ascii=False)]
    text = "\n".join(part for part in parts if part)
    return f"Error: {text}" if result.is_error and not text.startswith(("Error", "Refused")) else text or "(no output)"


def _block_text(block: JsonObject) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "resource_link":
            return f"[resource {block.get('uri')}: {block.get('name')}]"
        case "resource":
            inner = cast("JsonObject", block.get("resource") or {})
            text: JsonValue = inner.get("text")
            return text if isinstance(text, str) else f"[resource {inner.get('uri')} ({inner.get('mimeType')})]"
        case other:
            return f"[{other} ({block.get('mimeType')})]"
