"""Builds the definition of a tool that clients see: without hidden (invisible) characters, and with the operator's overrides.

The functions apply `policy.hidden_text` and `policy.shaping` to a `ToolDefinition`. Used by `ToolRules`, and by the catalog, which leaves
out tools whose definitions are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gateway.config.policies import ToolOverride
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import Rights
from gateway.policy.decision import Pass, Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_schema, strip_text, strip_value
from gateway.policy.shaping import shown_texts
from gateway.tools.base import DescribingTool, Tool, ToolDefinition


def judge_definition(definition: ToolDefinition) -> Pass | Reject:
    """Return a refusal if a tool's definition contains hidden (invisible) characters anywhere, else `PASS`.

    Used for policies with `hiddenText: refuse`.
    """
    return judge_hidden_text(definition.to_wire(), "The definition")


def clean_definition(definition: ToolDefinition) -> ToolDefinition:
    """Return a tool's definition without hidden (invisible) characters; the same object if it has none. The name is never changed."""
    clean = dataclasses.replace(
        definition,
        title=_clean(definition.title),
        description=_clean(definition.description),
        input_schema=strip_schema(definition.input_schema),
        output_schema=strip_schema(definition.output_schema) if definition.output_schema is not None else None,
        annotations=_clean_object(definition.annotations) if definition.annotations is not None else None,
        extra=_clean_object(definition.extra),
    )
    return definition if clean == definition else clean


def shape_definition(definition: ToolDefinition, override: ToolOverride | None, input_schema: JsonObject) -> ToolDefinition:
    """Return a tool's definition with `input_schema`, and with the title, description and annotations that the operator set.

    `override` has the operator's title, description and annotations. With `None`, only the input schema is replaced.
    """
    if override is None:
        return definition if input_schema is definition.input_schema else dataclasses.replace(definition, input_schema=input_schema)
    title, description, annotations = shown_texts(definition.title, definition.description, definition.annotations, override)
    return dataclasses.replace(definition, title=title, description=description, annotations=annotations, input_schema=input_schema)


def _clean(text: str | None) -> str | None:
    return None if text is None else strip_text(text)


def _clean_object(value: JsonObject) -> JsonObject:
    return cast("JsonObject", strip_value(value, keys=True))


def description_for(tool: Tool, published: ToolDefinition, rights: Rights | None, named: Sequence[str] = ()) -> str:
    """Return the description of `tool` for a caller with these rights; `None` for a caller that may use everything.

    The description of a skill tool lists the skills that the caller may read; for the model of an agent, only the skills `named`, which the
    agent's file names. A description that the operator wrote in `published` is the same for every caller.
    """
    if not isinstance(tool, DescribingTool) or published.description != tool.definition.description:
        return published.description or ""
    return tool.description_for(rights, named)
