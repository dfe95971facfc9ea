"""Checks: functions that judge one `EvalItem` (a conversation of an agent) without a service.

The module contains common checks, and `evaluator`, which creates a check from any function.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, overload

from gateway.agents.evaluation.items import EvalItem
from gateway.json_types import JsonMapping, JsonObject

PASSING_SCORE = 0.5
"""Minimum score with which an item passes a check that returns a score without a threshold; the value is agent-framework's."""


@dataclass
class CheckResult:
    """Result of one check of one `EvalItem`."""

    passed: bool
    reason: str
    check_name: str


EvalCheck = Callable[[EvalItem], CheckResult | Awaitable[CheckResult]]
"""Sync or async function that judges an `EvalItem` (a conversation of an agent) and returns a `CheckResult`."""

_PARAMETERS = ("query", "response", "expected_output", "expected_tool_calls", "conversation", "tools", "context")
"""Names that the parameters of functions passed to `evaluator` may have; each is a value of an `EvalItem`."""


def keyword_check(*keywords: str, case_sensitive: bool = False) -> EvalCheck:
    """Return a check that passes if the agent's response contains all keywords; case is ignored unless `case_sensitive` is set."""

    def check(item: EvalItem) -> CheckResult:
        text = item.response if case_sensitive else item.response.lower()
        missing = [word for word in keywords if (word if case_sensitive else word.lower()) not in text]
        return CheckResult(not missing, f"Missing keywords: {missing}" if missing else "All keywords found", "keyword_check")

    return check


def tool_called_check(*tool_names: str, mode: Literal["all", "any"] = "all") -> EvalCheck:
    """Return a check that passes if the agent called all tools in `tool_names`, or with `mode="any"` at least one of them."""

    def check(item: EvalItem) -> CheckResult:
        called = {name for name, _ in _calls_of(item)}
        missing = [name for name in tool_names if name not in called]
        if mode == "any":
            passed, wrong = len(missing) < len(tool_names), f"None of expected tools called: {list(tool_names)}"
        else:
            passed, wrong = not missing, f"Expected tools not called: {missing}"
        listed = f"(called: {sorted(called)})"
        return CheckResult(passed, f"Expected tools called {listed}" if passed else f"{wrong} {listed}", "tool_called")

    return check


def tool_calls_present(item: EvalItem) -> CheckResult:
    """Check that the agent called every expected tool of the item, in any order; other calls are allowed."""
    expected = [call.name for call in item.expected_tool_calls or ()]
    if not expected:
        return CheckResult(True, "No expected tool calls specified.", "tool_calls_present")
    called = {name for name, _ in _calls_of(item)}
    missing = [name for name in expected if name not in called]
    said = f"Missing tool calls: {missing}" if missing else f"All expected tools called: {expected}"
    return CheckResult(not missing, f"{said} (called: {sorted(called)})", "tool_calls_present")


def tool_call_args_match(item: EvalItem) -> CheckResult:
    """Check that the agent made every expected tool call of the item, with at least the expected arguments."""
    expected = item.expected_tool_calls or []
    if not expected:
        return CheckResult(True, "No expected tool calls specified.", "tool_call_args_match")
    matched = 0
    details: list[str] = []
    calls = _calls_of(item)
    for wanted in expected:
        given = [arguments for name, arguments in calls if name == wanted.name]
        if not given:
            details.append(f"  {wanted.name}: not called")
        elif wanted.arguments is None:
            matched += 1
            details.append(f"  {wanted.name}: called (args not checked)")
        elif any(arguments is not None and wanted.arguments.items() <= arguments.items() for arguments in given):
            matched += 1
            details.append(f"  {wanted.name}: args match")
        else:
            details.append(f"  {wanted.name}: args mismatch (actual: {given})")
    reason = "\n".join([f"Tool call args match: {matched}/{len(expected)}", *details])
    return CheckResult(matched == len(expected), reason, "tool_call_args_match")


@overload
def evaluator(fn: Callable[..., Any], /) -> EvalCheck: ...
@overload
def evaluator(fn: Callable[..., Any], /, *, name: str | None) -> EvalCheck: ...
@overload
def evaluator(*, name: str | None = None) -> Callable[[Callable[..., Any]], EvalCheck]: ...
def evaluator(
    fn: Callable[..., Any] | None = None, *, name: str | None = None
) -> EvalCheck | Callable[[Callable[..., Any]], EvalCheck]:
    """Create a check from a function. Each parameter has the name of the `EvalItem` value that it receives (`query`, `response`, …).

    The function may be async. It returns a bool, a score (at least 0.5 passes), `{"score" | "passed", "threshold", "reason"}`, or a
    `CheckResult`. `evaluator` can be used as a decorator, with or without arguments.

    Raises:
        TypeError: The function has a required parameter that is not a value of items.
    """

    def wrap(function: Callable[..., Any]) -> EvalCheck:
        check_name = name or str(getattr(function, "__name__", "") or "evaluator")
        parameters = inspect.signature(function).parameters
        unknown = sorted(n for n, p in parameters.items() if n not in _PARAMETERS and p.default is p.empty)
        if unknown:
            raise TypeError(
                f"Function evaluator {check_name!r} has unknown required parameter(s) {unknown}. Supported: {sorted(_PARAMETERS)}"
            )
        wanted = [parameter for parameter in _PARAMETERS if parameter in parameters]

        async def check(item: EvalItem) -> CheckResult:
            value = function(**{parameter: _of(item, parameter) for parameter in wanted})
            return _to_result(await value if inspect.isawaitable(value) else value, check_name)

        check.__name__ = check_name
        check.__doc__ = function.__doc__
        return check

    return wrap if fn is None else wrap(fn)


def _of(item: EvalItem, parameter: str) -> object:
    if parameter == "expected_output":
        return item.expected_output or ""
    return (item.expected_tool_calls or []) if parameter == "expected_tool_calls" else getattr(item, parameter)


def _to_result(value: object, name: str) -> CheckResult:
    """Convert the return value of a function that `evaluator` wraps to a `CheckResult`.

    Raises:
        TypeError: The value has an unsupported type.
    """
    if isinstance(value, CheckResult):
        return value
    if isinstance(value, bool):
        return CheckResult(value, "passed" if value else "failed", name)
    if isinstance(value, int | float):
        return CheckResult(value >= PASSING_SCORE, f"score={value:.3f}", name)
    found: JsonMapping = cast("JsonMapping", value) if isinstance(value, Mapping) else {}
    if "score" in found:
        score = _number(found["score"], name)
        passed = bool(found["passed"]) if "passed" in found else score >= _number(found.get("threshold", PASSING_SCORE), name)
        return CheckResult(passed, str(found.get("reason", f"score={score:.3f}")), name)
    if "passed" in found:
        passed = found["passed"]
        if not isinstance(passed, int):
            raise TypeError(f"Function evaluator {name!r} returned a dict with non-boolean 'passed' value: {passed!r}")
        return CheckResult(bool(passed), str(found.get("reason", "passed" if passed else "failed")), name)
    kind = type(cast("object", value)).__name__
    raise TypeError(f"Function evaluator {name!r} returned unsupported type {kind}. Expected bool, float, dict, or CheckResult.")


def _number(value: object, name: str) -> float:
    try:
        return float(cast("float", value))
    except (TypeError, ValueError):
        raise TypeError(f"Function evaluator {name!r} returned a dict with non-numeric 'score' value: {value!r}") from None


def _calls_of(item: EvalItem) -> list[tuple[str, JsonObject | None]]:
    """Return the name and arguments of each tool call in the item's conversation; the arguments are `None` if they are not an object."""
    calls: list[tuple[str, JsonObject | None]] = []
    for content in (content for message in item.conversation for content in message.contents):
        if content.type != "function_call" or not content.name:
            continue
        arguments: object = content.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        calls.append((content.name, dict(cast("JsonMapping", arguments)) if isinstance(arguments, Mapping) else None))
    return calls
