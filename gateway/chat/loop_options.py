"""`LoopOptions`: limits of the loop of model and tool calls, for an agent or for a client without an agent."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from gateway.json_types import JsonMapping
from gateway.tools.tool_lists import normalize_tools


class FunctionInvocationConfiguration(TypedDict, total=False):
    """`LoopOptions` as a dict with agent-framework's names."""

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
    """Limits of the function-invocation loop; the defaults are agent-framework's."""

    enabled: bool = True
    """Whether the tools that the model calls are run. If off, only one model call is made, and its tool calls are returned."""
    max_iterations: int = 40
    """Maximum model calls in one run that offer tools. Then one more model call without tools follows."""
    max_function_calls: int | None = None
    """Maximum tool calls in one run, checked after each batch; `None` for no limit."""
    max_duration_seconds: float | None = None
    """Seconds for which a run may call tools, checked after each batch; `None` for no limit. Waits for a person do not count."""
    max_consecutive_errors_per_request: int = 3
    """Consecutive batches of tool calls with a failing call, after which the model is not offered tools any more."""
    allow_concurrent_invocation: bool = True
    """Whether the tool calls of one response run concurrently; otherwise one after the other, in the order of the response."""
    terminate_on_unknown_calls: bool = False
    """Whether the run ends with an error if the model calls an unknown tool."""
    additional_tools: Sequence[Any] = ()
    """Tools that run when called, but whose definitions are not sent to the model, which learns of them in another way.

    If one of these tools has no code, a call of the tool ends the run and is returned.
    """
    include_detailed_errors: bool = False
    """Whether the model sees the text of an unexpected exception that a tool raised."""
    return_tool_results: bool = False
    """After a forced tool call (`tool_choice: required`), end the run with its result instead of calling the model again."""

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
        """Return these limits, with those in the mapping `overrides` replaced; a `LoopOptions` object replaces all.

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
"""The settings of a client that was created without limits. Such settings override nothing."""


def loop_options(*layers: LoopOptions | JsonMapping | None) -> LoopOptions:
    """Return the limits that result from `layers`, such as client, agent and run. A later layer overrides the earlier layers."""
    made = DEFAULT_LOOP
    for layer in layers:
        if layer and layer != _DEFAULTS:
            made = made.with_overrides(layer)
    return made


def check_tool_values(values: JsonMapping | None) -> None:
    """Check the argument `function_invocation_kwargs`, values for tools. Warn if it contains limits under `config`, which have no effect.

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
    """Return all settings of the loop as a checked dict with defaults.

    Raises:
        ValueError: A setting is unknown or out of range.
    """
    made = DEFAULT_LOOP.with_overrides(config)
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return cast("FunctionInvocationConfiguration", {**values, "additional_tools": list(made.additional_tools)})
