"""Converts the tools that a program passes to an agent or chat client to a list: functions become tools, and each name occurs once.

Agents, chat clients that run tools, and tool calls that change the tools of their agent's run use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import Tool, ToolSource
from gateway.tools.function import FunctionTool

ToolTypes = Tool | ToolSource | Callable[..., object] | JsonMapping
"""An item of a list of tools: a function, a `Tool`, a source of tools, or the description of a hosted tool.

A hosted tool is run by the provider of the model, not by the program.
"""

ToolList = ToolTypes | Sequence[ToolTypes] | None
"""The tools that a program passes to an agent or a run: one item, a list of items, or nothing."""

_RANGES = {"frequency_penalty": (-2.0, 2.0), "presence_penalty": (-2.0, 2.0), "temperature": (0.0, 2.0), "top_p": (0.0, 1.0)}


def normalize_tools(tools: Any) -> list[Any]:
    """Return the passed tools (one item, a list, or nested lists) as a flat list, with functions replaced by tools.

    An object with a list `tools` counts as this list. Tools and sources of tools stay unchanged. So do descriptions of hosted tools, which
    the model's provider runs (mappings, or the provider's objects).
    """
    if tools is None:
        return []
    given = cast("Sequence[Any]", tools) if isinstance(tools, list | tuple) else [tools]
    found: list[Any] = []
    for item in given:
        if hasattr(item, "definition") or isinstance(item, Mapping) or (not callable(item) and isinstance(item, ToolSource)):
            found.append(item)
        elif callable(item):
            found.append(FunctionTool(item))
        elif isinstance(inner := getattr(item, "tools", item), Iterable) and not isinstance(inner, str):
            found += normalize_tools(list(cast("Iterable[Any]", inner)))
        else:
            found.append(item)
    return found


async def validate_tools(tools: Any) -> list[Any]:
    """Return the passed tools as a flat list, with functions replaced by tools, and sources of tools replaced by their tools.

    Descriptions of hosted tools (tools that the model's provider runs) are moved to the end.

    Raises:
        ValueError: Two different tools have the same name.
    """
    found, hosted = await separate_hosted_tools(normalize_tools(tools))
    return [*found, *hosted]


async def validate_chat_options(options: JsonMapping) -> JsonObject:
    """Check that the numbers in the options of a model request are in their ranges. Return the options, with `tools` from `validate_tools`.

    Raises:
        ValueError: A number is out of its range, or two different tools have the same name; the text names the option or the tool.
    """
    checked = dict(options)
    for name, (low, high) in _RANGES.items():
        if (value := checked.get(name)) is not None:
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {value}.")
            checked[name] = float(value)
    if (most := checked.get("max_tokens")) is not None and most <= 0:
        raise ValueError(f"max_tokens must be greater than 0, not {most}.")
    if "tools" in checked:
        checked["tools"] = await validate_tools(checked["tools"])
    return checked


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools in a dict by name, in order. If a tool occurs several times, the dict contains the first.

    A tool, and an object that wraps it to check its calls against policy (attribute `original`), count as the same tool.

    Raises:
        ValueError: Two different tools have the same name.
    """
    found: dict[str, Tool] = {}
    for item in tools:
        name = item.definition.name
        known = found.setdefault(name, item)
        if known is not item and getattr(known, "original", known) is not getattr(item, "original", item):
            raise ValueError(f"Two different tools are named {name!r}; rename one.")
    return found


async def separate_hosted_tools(given: Iterable[Any]) -> tuple[list[Tool], list[Any]]:
    """Split a list that `normalize_tools` returned into tools that the program calls, and descriptions of tools that the provider runs.

    Sources of tools are replaced by their tools.

    Raises:
        ValueError: Two different tools have the same name.
    """
    found: list[Tool] = []
    hosted: list[Any] = []
    for item in given:
        if hasattr(item, "definition"):
            found.append(cast("Tool", item))
        elif isinstance(item, ToolSource):
            found += await item.tools()
        else:
            hosted.append(item)
    return list(by_name(found).values()), hosted
