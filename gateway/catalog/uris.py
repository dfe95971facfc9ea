"""Rewrites the URIs in definitions and results of a source with a prefix to exposed URIs, so that clients can read the resources.

An exposed URI contains the label of the source (its prefix), so that the catalog finds the source. Only URI fields of MCP content are
changed: resource links, embedded resources, contents of resources and `_meta.ui`. Text is never searched. Objects are copied before a
change; an object that needs no change is returned without a copy.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import cast

from gateway.catalog.names import expose_uri
from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, members_of
from gateway.policy.path_rule import judge_uri
from gateway.tools.base import Complete, TaskMethod, TaskTool, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext


def expose_blocks(blocks: JsonValue, label: str) -> JsonValue:
    """Return MCP content blocks whose resource links and embedded resources have exposed URIs, which contain the source's `label`."""
    if not isinstance(blocks, list):
        return blocks
    return [_expose_block(block, label) for block in cast("list[JsonValue]", blocks)]


def _expose_block(block: JsonValue, label: str) -> JsonValue:
    wire = members_of(block)
    if wire.get("type") == "resource_link" and isinstance(uri := wire.get("uri"), str):
        return {**wire, "uri": expose_uri(label, uri)}
    resource = wire.get("resource")
    if wire.get("type") == "resource" and isinstance(resource, dict):
        return {**wire, "resource": expose_contents([resource], label)[0]}
    return cast("JsonValue", wire or block)


def expose_contents(contents: list[JsonValue], label: str) -> list[JsonValue]:
    """Return the contents of a `resources/read` result (`{uri, text|blob}`) with exposed URIs, which contain the source's `label`."""
    exposed: list[JsonValue] = []
    for item in contents:
        wire = members_of(item)
        exposed.append({**wire, "uri": expose_uri(label, uri)} if isinstance(uri := wire.get("uri"), str) else item)
    return exposed


def expose_messages(messages: JsonValue, label: str) -> JsonValue:
    """Return the messages of a `prompts/get` result with each URI of the source replaced by its exposed URI, which has the `label`."""
    if not isinstance(messages, list):
        return messages
    exposed: list[JsonValue] = []
    for message in cast("list[JsonValue]", messages):
        if isinstance(message, dict) and "content" in message:
            wire = cast("JsonObject", message)
            content = wire["content"]
            many = isinstance(content, list)
            blocks = expose_blocks(content if many else [content], label)
            exposed.append({**wire, "content": blocks if many else blocks[0]})
        else:
            exposed.append(message)
    return exposed


def expose_definition(definition: ToolDefinition, label: str) -> ToolDefinition:
    """Return a tool definition with its MCP Apps URI (`_meta.ui.resourceUri`) as an exposed URI, which contains the source's `label`."""
    meta = as_object(definition.extra.get("_meta"))
    if meta is None:
        return definition
    wire = dict(meta)
    ui = members_of(wire.get("ui"))
    if isinstance(uri := ui.get("resourceUri"), str):
        wire["ui"] = {**ui, "resourceUri": expose_uri(label, uri)}
    if isinstance(flat := wire.get("ui/resourceUri"), str):
        wire["ui/resourceUri"] = expose_uri(label, flat)
    return dataclasses.replace(definition, extra={**definition.extra, "_meta": wire})


_EXPRESSION = re.compile(r"\{[^{}]*\}")


def uri_to_judge(template: str, argument: JsonMapping, context: JsonMapping | None) -> str:
    """Return the URI that the scopes of a caller must include so that the caller may complete an argument of a resource template.

    The URI is the template itself. If a value could change the path (`../`), the URI is the template with the values filled in. `argument`
    and `context` are the parameters of `completion/complete`.
    """
    filled = template
    values = members_of(members_of(context).get("arguments"))
    for name, value in {**values, str(argument.get("name")): argument.get("value")}.items():
        if isinstance(value, str) and value:
            filled = _EXPRESSION.sub(partial(_fill, name, value), filled)
    return template if filled == template or judge_uri(filled) is None else filled


def _fill(name: str, value: str, expression: re.Match[str]) -> str:
    names = [part.partition(":")[0].rstrip("*") for part in expression.group()[1:-1].lstrip("+#./;?&").split(",")]
    return value if name in names else expression.group()


class UriTool:
    """Wraps a tool of a remote server, and rewrites the resource URIs in its definition and results to exposed URIs.

    An exposed URI contains the label of the server, by which the catalog finds the server when a client reads the resource. Only servers
    whose tools have a name prefix get a label.
    """

    def __init__(self, inner: Tool, label: str) -> None:
        self._inner = inner
        self._label = label
        self._definition = expose_definition(inner.definition, label)

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the wrapped tool, with its MCP Apps URI rewritten to an exposed URI."""
        return self._definition

    @property
    def keeps_tasks(self) -> bool:
        """Whether the wrapped tool stores the id of the server's own task, so that the gateway can follow that task after a restart.

        This applies to calls that run in a durable task of the gateway (a background call that continues after a restart).
        """
        return bool(getattr(self._inner, "keeps_tasks", False))

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Call the wrapped tool, and return its result with URIs rewritten to exposed URIs."""
        outcome = await self._inner.call(arguments, ctx)
        if isinstance(outcome, Complete) and any(block.get("type") in ("resource_link", "resource") for block in outcome.content):
            return Complete({**outcome.result, "content": expose_blocks(outcome.content, self._label)})
        return outcome

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a task request (such as `tasks/get`) to the wrapped tool, and return the response with exposed URIs in its result.

        Raises `NotFound` if the tool does not support tasks.
        """
        if not isinstance(self._inner, TaskTool):
            raise NotFound("task", "")
        answer = await self._inner.task(method, params, ctx)
        wire = as_object(answer.get("result"))
        if wire is not None:
            answer["result"] = {**wire, "content": expose_blocks(wire.get("content"), self._label)}
        return answer
