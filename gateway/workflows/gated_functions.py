"""Runs the Python functions of workflow files through the gate (`ToolGuard`), which applies policy, approval and time limit as for a tool.

`plan`, `steps` and `team` use it. A call context outside a gateway has no gate; the functions are then called directly.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.function import run_function
from gateway.tools.functions_source import import_object
from gateway.tools.toolbox import guard_in
from gateway.workflows.definition import WorkflowFile
from gateway.workflows.runnable import Runnable

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference in a workflow file to a Python function or workflow, with the imported object."""

    written: str
    """The text of the reference in the file: `package.module:name`."""
    found: Callable[..., Any] | Runnable
    """The imported object that the reference names."""


async def import_named(file: WorkflowFile, reference: str, base_dir: Path, rules: FunctionRules | None) -> object:
    """Import the Python object that a workflow file names, unless a rule denies the name. The folder `base_dir` is searched first.

    The caller must then check the imported object with `admit`.

    Raises:
        ConfigError: The object cannot be imported.
        WorkflowInvalid: A rule denies the name; the text names the rule. The module is not imported.
    """
    admit(file, reference, None, rules)
    return await import_object(reference, base_dir=base_dir)


def admit(file: WorkflowFile, reference: str, found: object, rules: FunctionRules | None) -> None:
    """Check whether the configured rules for Python functions allow the imported object `found`, which a workflow file names `reference`.

    If `found` is `None`, because the object is not imported yet, only rules that deny the name in the file apply.

    Raises:
        WorkflowInvalid: A rule forbids the function; the text names the rule.
    """
    verdict = rules.admit(f"workflow/{file.name}", reference, found, by_allow=found is not None) if rules is not None else None
    if verdict is not None:
        raise WorkflowInvalid(f"{reference} may not run: {verdict.reason}")


async def run_gated(reference: Reference, tool: Tool, arguments: JsonObject, call: CallContext) -> Complete:
    """Run a Python function of a workflow file through the gate (policy, approval, time limit), and return its tool result.

    `tool` wraps the function as a tool. Policy judges the call by the function's name in `reference`. `call` is the tool call that runs the
    workflow; if it has no gate, the function runs directly.

    Raises:
        ToolFailed: `tool` returned an error, or the gate refused the call, got no approval, or stopped it at the time limit.
        Exception: Any exception that `tool` raised.
    """
    guard = guard_in(call)
    behind = tool if guard is None else guard.function(reference.written, reference.found, tool)
    outcome = await drive(behind, arguments, call)
    if not isinstance(outcome, Complete):
        raise ToolFailed(f"{reference.written} started a background task; a workflow cannot wait for one.")
    if outcome.is_error:
        raise ToolFailed(outcome.as_text() or f"{reference.written} failed without an error text.")
    return outcome


def gated_function(reference: Reference, call: CallContext, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function of a workflow file, wrapped so that each call passes the gate (policy, approval, time limit).

    Policy judges the calls by the name in `reference`, but does not see the arguments, which may be any Python objects and not only JSON.
    With `function`, the wrapper calls this function instead of the object in `reference`. `call` is the tool call that runs the workflow;
    if it has no gate, the function is returned without a wrapper.
    """
    function = function or cast("Callable[..., Any]", reference.found)
    if guard_in(call) is None:
        return function

    async def run(*given: Any) -> Any:
        work = _Work(reference.written.rpartition(":")[2], lambda: run_function(function, list(given), {}))
        await run_gated(reference, work, {}, call)
        return work.values[0]

    try:
        return functools.wraps(function)(run)
    except (AttributeError, TypeError):  # `function` is a callable object without a name
        return run


class _Work:
    """Wraps a coroutine function as a `Tool`. The tool result is empty; the returned Python object is stored in `values`."""

    def __init__(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        self.definition = ToolDefinition(name, input_schema=NO_ARGUMENTS)
        self._work = work
        self.values: Sequence[Any] = ()

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the function, and store its result in `values` as a tuple with one item."""
        self.values = (await self._work(),)
        return Complete({"content": []})
