"""`PromptTool`: publishes a prompt of a source as a tool, for clients and agents that support tools only (policy key `promptsAsTools`).

The arguments of the prompt become string arguments of the tool, and the prompt's messages become the content of the result. A call passes
the gate (the pipeline of policy checks) like every tool call; the source renders the prompt.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import cast

from gateway.json_types import JsonObject, JsonValue, objects_in
from gateway.tools.base import Complete, InputRequired, Source, ToolDefinition, ToolOutcome, prompt_schema
from gateway.tools.context import CallContext


class PromptTool:
    """A tool that renders a prompt of a source when it is called, and returns the prompt's messages as content."""

    def __init__(self, source: Source, wire: JsonObject, name: str) -> None:
        self._source = source
        self._prompt = str(wire["name"])
        self.wire = wire
        self.definition = ToolDefinition(
            name=name,
            title=wire.get("title"),
            description=wire.get("description") or f"The prompt {self._prompt!r} of this server.",
            input_schema=prompt_schema(wire),
            annotations={"readOnlyHint": True},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Render the prompt and return its messages as content. If their roles differ, a text with the role precedes each message.

        If the source requests input instead, its `InputRequired` is returned unchanged.
        """
        outcome = await self._source.get_prompt(self._prompt, {key: str(value) for key, value in arguments.items()}, ctx)
        if isinstance(outcome, InputRequired):
            return outcome
        messages = objects_in(outcome.result.get("messages"))
        mixed = len({message.get("role") for message in messages}) > 1
        content: list[JsonValue] = []
        for message in messages:
            if mixed:
                content.append({"type": "text", "text": f"{message.get('role')}:"})
            blocks = message.get("content")
            content += cast("list[JsonValue]", blocks) if isinstance(blocks, list) else [blocks]
        result: JsonObject = {"content": content}
        if "_meta" in outcome.result:
            result["_meta"] = outcome.result["_meta"]
        return Complete(result)


def prompt_tools(source: Source, prompts: Sequence[JsonObject], taken: Container[str], known: Sequence[PromptTool]) -> list[PromptTool]:
    """Return one tool per prompt in `prompts`. `known` are the tools made earlier; a tool whose prompt is unchanged is reused.

    `taken` has the names of the source's own tools. If a prompt has one of these names, the prompt's tool gets the suffix `_prompt`.
    """
    kept = {tool.definition.name: tool for tool in known}
    tools: list[PromptTool] = []
    for wire in prompts:
        name = str(wire["name"])
        name = f"{name}_prompt" if name in taken else name
        before = kept.get(name)
        tools.append(before if before is not None and before.wire == wire else PromptTool(source, wire, name))
    return tools
