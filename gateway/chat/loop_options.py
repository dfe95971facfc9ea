"""`LoopOptions`: limits of the loop that calls a model, runs the tools that the model requests, and calls the model with the results.

Agents use `LoopOptions`; chat clients that are called without an agent use it, too.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from gateway.json_types import JsonMapping
from gateway.tools.tool_lists import ToolTypes, normalize_tools


class FunctionInvocationConfiguration(TypedDict, total=False):
    """A dict with the fields of `LoopOptions`, the limits of the loop of model and tool calls. Agent-framework uses this form."""

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_duration_seconds: float | None
    max_consecutive_errors_per_request: int
    allow_concurrent_invocation: bool
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[ToolTypes]
    include_detailed_errors: bool
    return_tool_results: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Limits of the loop of model and tool calls. The defaults are those of Microsoft's agent framework."""

    enabled: bool = True
    """Whether the tools that the model calls are run. If false, only one model call is made, and its tool calls are returned."""
    max_iterations: int = 40
    """Maximum number of model calls with tools in one run of the loop. When it is reached, one last model call without tools follows."""
    max_function_calls: int | None = None
    """Maximum number of tool calls in one run of the loop, checked after the tool calls of each model response; `None` for no limit."""
    max_duration_seconds: float | None = None
    """Seconds during which one run of the loop may call tools, checked after the tool calls of each model response; `None` for no limit.
    Time spent waiting for a person does not count."""
    max_consecutive_errors_per_request: int = 3
    """Number of consecutive model responses with a failing tool call, after which the model gets no tools any more; 0 counts as 1."""
    allow_concurrent_invocation: bool = True
    """Whether the tool calls of one model response run concurrently. Otherwise they run in the order of the response."""
    terminate_on_unknown_calls: bool = False
    """Whether the run ends with an error if the model calls a tool that does not exist."""
    additional_tools: Sequence[ToolTypes] = ()
    """Tools that are run if the model calls them, but whose definitions are not sent to the model. The model gets their names in another
    way.

    If the model calls one of these tools that has no code, the run ends and returns the call.
    """
    include_detailed_errors: bool = False
    """Whether the model receives the text of an unexpected exception that a tool raised."""
    return_tool_results: bool = False
    """Whether the run ends with the result of a forced tool call (`tool_choice: required`) instead of calling the model again."""

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
        """Return a copy of these limits with the values in the mapping `overrides`. If `overrides` is a `LoopOptions`, return it unchanged.

        Raises:
            ValueError: A limit is unknown or out of range.
        """
        if not overrides:
            return self
        if isinstance(overrides, LoopOptions):
            return overrides
        known = {field.name for field in dataclasses.fields(LoopOptions)}
        if unknown := sorted(set(overrides) - known):
            raise ValueError(f"Unknown function invocation settings {', '.join(map(repr, unknown))}; known are {', '.join(sorted(known))}.")
        return dataclasses.replace(self, **overrides)


DEFAULT_LOOP = LoopOptions()

_DEFAULTS: JsonMapping = {**dataclasses.asdict(DEFAULT_LOOP), "additional_tools": []}
"""The limits of a client that was created without limits, as a dict.

`loop_options` ignores a level (client, agent or run) whose limits equal these, so that defaults do not override an earlier level.
"""


def loop_options(*layers: LoopOptions | JsonMapping | None) -> LoopOptions:
    """Combine limits of several levels, such as client, agent and run, into one. A later level overrides the earlier levels."""
    made = DEFAULT_LOOP
    for layer in layers:
        if layer and layer != _DEFAULTS:
            made = made.with_overrides(layer)
    return made


def check_tool_values(values: JsonMapping | None) -> None:
    """Check `function_invocation_kwargs`, the values that a caller passes to tools.

    Warns if they contain limits of the loop under the key `config`, because limits have no effect there.

    Raises:
        TypeError: `values` is not a mapping of names to values.
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
    """Check limits of the loop of model and tool calls, and return them as a dict with the defaults for missing limits.

    Raises:
        ValueError: A setting is unknown or out of range.
    """
    made = DEFAULT_LOOP.with_overrides(config)
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return cast("FunctionInvocationConfiguration", {**values, "additional_tools": list(made.additional_tools)})
