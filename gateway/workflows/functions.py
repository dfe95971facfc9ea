"""Python functions that a workflow file refers to, each run behind the gate (`tools.toolbox.ToolGuard`).

Used by `plan`, `steps` and `team`. Outside a gateway there is no gate, and the functions run as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.function import run_function
from gateway.tools.function_rules import FunctionRules
from gateway.workflows.definition import WorkflowFile

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Reference:
    """A function as a file names it."""

    written: str
    """`package.module:name`."""
    found: object
    """The imported object."""


def admit(file: WorkflowFile, reference: str, found: object, rules: FunctionRules | None) -> None:
    """Judge a function that `file` refers to.

    Raises:
        WorkflowInvalid: It may not run; the text names the rule.
    """
    verdict = rules.judge(f"workflow/{file.name}", reference, found) if rules is not None else None
    if verdict is not None:
        raise WorkflowInvalid(f"{reference} may not run: {verdict.reason}")


async def run_gated(reference: Reference, tool: Tool, arguments: JsonObject, call: CallContext) -> Complete:
    """Call `tool`, which runs a function, behind the gate of the workflow that the call belongs to.

    Raises:
        PolicyDenied: The rules do not let it run.
        ToolFailed: The call was refused, not approved or timed out.
    """
    guard = call.tool_guard
    behind = tool if guard is None else guard.function(reference.written, reference.found, tool)
    outcome = await drive(behind, arguments, call)
    if not isinstance(outcome, Complete):
        raise ToolFailed(f"{reference.written} started a background task; a workflow cannot wait for one.")
    if outcome.is_error:
        raise ToolFailed(outcome.as_text() or f"{reference.written} failed without saying why.")
    return outcome


def gated_function(reference: Reference, call: CallContext) -> Callable[..., Any]:
    """The function of a reference, which takes and returns any values, with each call behind the gate.

    The gate sees a call without arguments, because the values of orchestrations are Python objects.
    """
    function = cast("Callable[..., Any]", reference.found)
    if call.tool_guard is None:
        return function

    async def run(*given: Any) -> Any:
        work = _Work(reference.written.rpartition(":")[2], lambda: run_function(function, list(given), {}))
        await run_gated(reference, work, {}, call)
        return work.values[0]

    try:
        return functools.wraps(function)(run)
    except (AttributeError, TypeError):  # an object that is called like a function
        return run


class _Work:
    """Implements `Tool` over one piece of work, and keeps what it returned."""

    def __init__(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        self.definition = ToolDefinition(name, input_schema=NO_ARGUMENTS)
        self._work = work
        self.values: Sequence[Any] = ()

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Do it."""
        self.values = (await self._work(),)
        return Complete({"content": []})
