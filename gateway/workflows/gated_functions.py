"""Python functions that a workflow file names, each run behind the gate (`tools.context.ToolGuard`).

Used by `plan`, `steps` and `team`. Outside a gateway the functions run directly, without a gate.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.function import run_function
from gateway.workflows.definition import WorkflowFile

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Reference:
    """A Python function that a workflow file names, with its imported object."""

    written: str
    """The text in the file: `package.module:name`."""
    found: object
    """The imported object."""


def admit(file: WorkflowFile, reference: str, found: object, rules: FunctionRules | None) -> None:
    """Check whether the configured rules for Python functions allow a function that the workflow file names.

    Raises:
        WorkflowInvalid: Policy does not allow it; the text names the rule.
    """
    verdict = rules.admit(f"workflow/{file.name}", reference, found) if rules is not None else None
    if verdict is not None:
        raise WorkflowInvalid(f"{reference} may not run: {verdict.reason}")


async def run_gated(reference: Reference, tool: Tool, arguments: JsonObject, call: CallContext) -> Complete:
    """Call `tool`, which runs the function of `reference`, through the gate (policy, approval, time limit) of the tool call `call`.

    Raises:
        ToolFailed: The call was refused by policy, not approved, or timed out.
    """
    guard = call.run.tool_guard
    behind = tool if guard is None else guard.function(reference.written, reference.found, tool)
    outcome = await drive(behind, arguments, call)
    if not isinstance(outcome, Complete):
        raise ToolFailed(f"{reference.written} started a background task; a workflow cannot wait for one.")
    if outcome.is_error:
        raise ToolFailed(outcome.as_text() or f"{reference.written} failed without an error text.")
    return outcome


def gated_function(reference: Reference, call: CallContext, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the function of `reference`, wrapped so that each call passes the gate. Arguments and results may be any Python objects.

    The gate does not see the arguments, because orchestrations pass Python objects, which are not JSON. With `function`, the calls run
    this function in place of the object of `reference`, by whose names policy judges the call.
    """
    function = function or cast("Callable[..., Any]", reference.found)
    if call.run.tool_guard is None:
        return function

    async def run(*given: Any) -> Any:
        work = _Work(reference.written.rpartition(":")[2], lambda: run_function(function, list(given), {}))
        await run_gated(reference, work, {}, call)
        return work.values[0]

    try:
        return functools.wraps(function)(run)
    except (AttributeError, TypeError):  # a callable object without a name
        return run


class _Work:
    """Runs a coroutine function as a `Tool`, and keeps the returned Python object in `values`."""

    def __init__(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        self.definition = ToolDefinition(name, input_schema=NO_ARGUMENTS)
        self._work = work
        self.values: Sequence[Any] = ()

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the function, and keep its result in `values`."""
        self.values = (await self._work(),)
        return Complete({"content": []})
