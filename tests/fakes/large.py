"""A remote MCP server whose results are large, as a real process: `python -m tests.fakes.large --stdio | --port 0 [--legacy]`.

The result is a function of the arguments, so a test builds the same text and compares byte for byte.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import mcp_types as t
from mcp.server.lowlevel import Server

from tests.fakes.upstream import PIXEL, arguments, serve, text

warnings.simplefilter("ignore")

COUNT: dict[str, Any] = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
ROW: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
TYPED: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": ROW}, "total": {"type": "integer"}},
    "required": ["rows", "total"],
}
CLOSED = {**TYPED, "additionalProperties": False}
UNCUTTABLE = {**TYPED, "properties": {**TYPED["properties"], "rows": {"type": "array", "items": ROW, "minItems": 1_000}}}


def rows_of(count: int) -> dict[str, Any]:
    """About 100 bytes a row, as JSON; every hundredth name is not ASCII."""
    rows = [{"id": n, "name": f"Zoë 日本 {n}" if n % 100 == 0 else f"row number {n} " + "x" * 60} for n in range(count)]
    return {"rows": rows, "total": count}


def rows_text(count: int) -> str:
    """The text such a result comes with: indented, so not the bytes the gateway would write itself."""
    return json.dumps(rows_of(count), indent=1, ensure_ascii=False)


def lines_text(count: int) -> str:
    """Lines of about 60 bytes, some with characters of two to four bytes."""
    return "\n".join(f"{n:07d} " + ("näher 日本語 😀 " if n % 7 == 0 else "plain text here ") * 3 for n in range(1, count + 1))


def picture() -> t.ImageContent:
    """An image of some size."""
    return t.ImageContent(type="image", data=PIXEL * 1_000, mime_type="image/png")


def rows(count: int) -> t.CallToolResult:
    return t.CallToolResult(content=[text(rows_text(count))], structured_content=rows_of(count))


def lines(count: int) -> t.CallToolResult:
    return t.CallToolResult(content=[text(lines_text(count))])


def pictures(count: int) -> t.CallToolResult:
    return t.CallToolResult(content=[text("here"), *[picture() for _ in range(count)]])


def shown(count: int) -> t.CallToolResult:
    image = t.ImageContent(type="image", data=PIXEL * count, mime_type="image/png")
    return t.CallToolResult(content=[text("a plain caption"), image])


def twice(count: int) -> t.CallToolResult:
    return t.CallToolResult(content=[text(lines_text(count))], structured_content={"result": lines_text(count)})


def secretly_twice(count: int) -> t.CallToolResult:
    hiding = lines_text(count) + "\u202e"
    return t.CallToolResult(content=[text(hiding)], structured_content={"result": hiding})


def secretly_shown(count: int) -> t.CallToolResult:
    return t.CallToolResult(content=[text("a cap\u200btion"), *shown(count).content[1:]])


def mixed(count: int) -> t.CallToolResult:
    long = t.TextContent(type="text", text=lines_text(count), annotations=t.Annotations(audience=["user"], priority=0.5))
    inner = t.TextResourceContents(uri="data://inner", mime_type="text/csv", text=lines_text(count))
    audio = t.AudioContent(type="audio", data=PIXEL * 500, mime_type="audio/wav")
    blocks: list[Any] = [text("first"), picture(), long, t.EmbeddedResource(type="resource", resource=inner), audio, text("last")]
    return t.CallToolResult(content=blocks, is_error=True, _meta={"com.example/kept": 1})


def crowd(count: int) -> t.CallToolResult:
    blocks: list[Any] = [text(f"block {n} " + "y" * 90) for n in range(count)]
    return t.CallToolResult(content=[blocks[0], picture(), *blocks[1:]])


TOOLS: dict[str, tuple[Callable[[int], t.CallToolResult], dict[str, Any] | None]] = {
    "rows": (rows, None),
    "typed_rows": (rows, TYPED),
    "closed_rows": (rows, CLOSED),
    "uncuttable_rows": (rows, UNCUTTABLE),
    "lines": (lines, None),
    "pictures": (pictures, None),
    "shown": (shown, None),
    "secretly_shown": (secretly_shown, None),
    "twice": (twice, None),
    "secretly_twice": (secretly_twice, None),
    "mixed": (mixed, None),
    "crowd": (crowd, None),
}


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(
        tools=[t.Tool(name=name, description=f"Large {name}", input_schema=COUNT, output_schema=out) for name, (_, out) in TOOLS.items()]
    )


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    return TOOLS[params.name][0]((params.arguments or {})["count"])


async def list_resources(ctx: Any, params: Any) -> t.ListResourcesResult:
    return t.ListResourcesResult(resources=[t.Resource(uri="data://lines", name="lines")])


async def read(ctx: Any, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    return t.ReadResourceResult(contents=[t.TextResourceContents(uri="data://lines", mime_type="text/plain", text=lines_text(100_000))])


async def list_prompts(ctx: Any, params: Any) -> t.ListPromptsResult:
    return t.ListPromptsResult(prompts=[t.Prompt(name="long")])


async def get_prompt(ctx: Any, params: t.GetPromptRequestParams) -> t.GetPromptResult:
    return t.GetPromptResult(messages=[t.PromptMessage(role="assistant", content=text(lines_text(100_000)))])


def main() -> None:
    server = Server[Any](
        "large",
        version="1",
        get_tool_input_schema=lambda name: COUNT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    serve(server, arguments().parse_args())


if __name__ == "__main__":
    main()
