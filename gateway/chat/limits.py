"""`LoopOptions`: the limits of the loop of model and tool calls, of an agent or of a client alone."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from gateway.json_types import JsonMapping
from gateway.tools.given import normalize_tools


class FunctionInvocationConfiguration(TypedDict, total=False):
    """`LoopOptions` as a dict, in agent-framework's names."""

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_duration_seconds: float | None
    max_consecutive_errors_per_request: int
    allow_concurrent_invocation: bool
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[Any]
    include_detailed_errors: bool
    return_tool_results: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Limits of the function-invocation loop (requirements TL2); the defaults are agent-framework's."""

    enabled: bool = True
    """Off: one model call, and its tool calls go to the caller."""
    max_iterations: int = 40
    """Model calls with tools of one run; then one more is made without them."""
    max_function_calls: int | None = None
    """Tool calls of one run, checked after each batch; `None` means no limit."""
    max_duration_seconds: float | None = None
    """How long a run may go on calling tools, checked after each batch; `None` means no limit. Waits for a person are not counted."""
    max_consecutive_errors_per_request: int = 3
    """Batches in a row with a failing call before tools are switched off."""
    allow_concurrent_invocation: bool = True
    """Run the calls of one answer at the same time; off, one after the other in the model's order."""
    terminate_on_unknown_calls: bool = False
    """End the run with an error when the model calls a tool that does not exist."""
    additional_tools: Sequence[Any] = ()
    """Tools that run if they are called, but that the model is not told of: it learns of them elsewhere.

    A call of one that is only declared ends the run and is handed back.
    """
    include_detailed_errors: bool = False
    """Let the model read what an unexpected exception says."""
    return_tool_results: bool = False
    """After a forced tool call (`tool_choice: required`) end the run with its result: the model is not asked again (requirements C9)."""

    def __post_init__(self) -> None:
        if self.max_iterations < 1:
            raise ValueError("max_iterations must be at least 1")
        if self.max_function_calls is not None and self.max_function_calls < 1:
            raise ValueError("max_function_calls must be at least 1 or None")
        if self.max_duration_seconds is not None and self.max_duration_seconds <= 0:
            raise ValueError("max_duration_seconds must be greater than 0 or None")
        if self.max_consecutive_errors_per_request < 0:
            raise ValueError("max_consecutive_errors_per_request must be 0 or more")
        for given in normalize_tools(list(self.additional_tools)):
            if not hasattr(given, "definition"):
                raise ValueError(f"additional_tools must be functions and tools, not {type(given).__name__}; put it into tools")

    def with_overrides(self, overrides: LoopOptions | JsonMapping | None) -> LoopOptions:
        """These limits with some of them replaced.

        Raises:
            ValueError: There is no such limit, or the value is out of range.
        """
        if not overrides:
            return self
        if isinstance(overrides, LoopOptions):
            return overrides
        known = {field.name for field in dataclasses.fields(LoopOptions)}
        if unknown := sorted(set(overrides) - known):
            raise ValueError(f"Unknown function invocation settings {', '.join(map(repr, unknown))}; there are {', '.join(sorted(known))}.")
        return dataclasses.replace(self, **overrides)


DEFAULT_LOOP = LoopOptions()

_DEFAULTS: JsonMapping = {**dataclasses.asdict(DEFAULT_LOOP), "additional_tools": []}
"""What a client has that nobody gave limits."""


def loop_options(*layers: LoopOptions | JsonMapping | None) -> LoopOptions:
    """The limits that hold where several places set some: each over those before it."""
    made = DEFAULT_LOOP
    for layer in layers:
        if layer and layer != _DEFAULTS:
            made = made.with_overrides(layer)
    return made


def check_tool_values(values: JsonMapping | None) -> None:
    """Check `function_invocation_kwargs`, and warn that `{"config": …}` among them sets no limits, though some documents say so.

    Raises:
        TypeError: They are not a mapping of names to values.
    """
    if values is not None and not isinstance(cast("object", values), Mapping):
        raise TypeError(f"function_invocation_kwargs must be a dict of values for tools by name, not {type(values).__name__}.")
    config = (values or {}).get("config")
    if isinstance(config, Mapping) and config and _DEFAULTS.keys() >= cast("Mapping[str, Any]", config).keys():
        limits = ", ".join(f"'{name}': …" for name in cast("Mapping[str, Any]", config))
        warnings.warn(
            "function_invocation_kwargs['config'] is a value for tools and does not limit the run; "
            f"pass the limits of one run as options={{'loop': {{{limits}}}}}.",
            stacklevel=3,
        )


def normalize_function_invocation_configuration(config: Mapping[str, Any] | None) -> FunctionInvocationConfiguration:
    """All settings of the loop as a dict, checked, with their defaults.

    Raises:
        ValueError: There is no such setting, or the value is out of range.
    """
    made = DEFAULT_LOOP.with_overrides(config)
    values: FunctionInvocationConfiguration = {
        "enabled": made.enabled,
        "max_iterations": made.max_iterations,
        "max_function_calls": made.max_function_calls,
        "max_duration_seconds": made.max_duration_seconds,
        "max_consecutive_errors_per_request": made.max_consecutive_errors_per_request,
        "allow_concurrent_invocation": made.allow_concurrent_invocation,
        "terminate_on_unknown_calls": made.terminate_on_unknown_calls,
        "additional_tools": list(made.additional_tools),
        "include_detailed_errors": made.include_detailed_errors,
        "return_tool_results": made.return_tool_results,
    }
    return values
