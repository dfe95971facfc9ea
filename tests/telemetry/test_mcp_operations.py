"""Spans of requests to MCP servers: names and attributes of OpenTelemetry's MCP conventions, only if instrumentation is on."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from gateway import MCPStdioTool, MCPStreamableHTTPTool, MCPTool, disable_instrumentation
from gateway.errors import ToolFailed
from gateway.observability import get_tracer
from tests.fakes.running import ROOT, raw_http, raw_stdio
from tests.server.both_paths import heads, post, request, standing
from tests.telemetry.conftest import Recorded

pytestmark = pytest.mark.requirement("OT1")

TOLD: dict[str, Any] = {
    "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("look", "fail", "odd")],
    "prompts": [{"name": "greet"}],
    "results": {"fail": {"content": [{"type": "text", "text": "secret reason"}], "isError": True}},
    "messages": {"odd": {"error": {"code": -32050, "message": "secret refusal"}}},
    "rendered": {"greet": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}},
}
VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}


@pytest.fixture(scope="module")
def urls() -> Generator[dict[str, str]]:
    with raw_http(TOLD, "--modern") as modern, raw_http(TOLD) as legacy:
        yield {"modern": modern, "legacy": legacy}


def tool_of(way: str, urls: dict[str, str], told: dict[str, Any] = TOLD) -> MCPTool:
    transport, era = way.split()
    if transport == "http":
        return MCPStreamableHTTPTool("raw", urls[era])
    entry = raw_stdio(told, *(["--modern"] if era == "modern" else []))
    return MCPStdioTool("raw", entry["command"], args=entry["args"], cwd=str(ROOT))


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    found = dict(span.attributes or {})
    found.pop("jsonrpc.request.id", None)
    return found


@pytest.mark.parametrize("way", ["stdio modern", "stdio legacy", "http modern", "http legacy"])
async def test_requests_to_a_server_have_spans_by_the_conventions(recorded: Recorded, urls: dict[str, str], way: str) -> None:
    async with tool_of(way, urls) as tool:
        said: Any = await tool.call_tool("look")
        await tool.get_prompt("greet")
        for name in ("fail", "odd"):
            with pytest.raises(ToolFailed):
                await tool.call_tool(name)
    spans, (transport, era) = recorded.spans(), way.split()
    common = {"mcp.protocol.version": VERSIONS[era], "network.transport": "pipe" if transport == "stdio" else "tcp"}
    call = {**common, "mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}
    assert {name: attributes_of(span) for name, span in spans.items() if span.name.startswith(("tools/", "prompts/"))} == {
        "tools/list": {**common, "mcp.method.name": "tools/list"},
        "prompts/list": {**common, "mcp.method.name": "prompts/list"},
        "prompts/get greet": {**common, "mcp.method.name": "prompts/get", "gen_ai.prompt.name": "greet"},
        "tools/call look": {**call, "gen_ai.tool.name": "look"},
        "tools/call fail": {**call, "gen_ai.tool.name": "fail", "error.type": "tool_error"},
        "tools/call odd": {**call, "gen_ai.tool.name": "odd", "error.type": "-32050", "rpc.response.status_code": "-32050"},
    }
    failed = {name for name, span in spans.items() if span.status.status_code is StatusCode.ERROR}
    assert failed == {"tools/call fail", "tools/call odd"}, "a 2025 server that refuses server/discover has not failed"
    if era == "legacy":
        assert attributes_of(spans["initialize"])["mcp.protocol.version"] == "2025-11-25"
        probe = attributes_of(spans["server/discover"])
        assert (probe["rpc.response.status_code"], "error.type" in probe) == ("-32601", False)
        assert (spans["tools/call look"].attributes or {})["jsonrpc.request.id"]
    assert {span.kind for span in spans.values()} == {SpanKind.CLIENT}
    look = spans["tools/call look"].context
    assert look is not None and f"-{look.trace_id:032x}-{look.span_id:016x}-" in said[0].text, "the server gets the call's own span"
    assert "secret" not in "".join(span.to_json() for span in spans.values())
    errors = {labels.get("gen_ai.tool.name"): labels["error.type"] for labels, *_ in recorded.points("mcp.client.operation.duration")
              if "error.type" in labels}  # fmt: skip
    assert errors == {"fail": "tool_error", "odd": "-32050"}


@pytest.mark.parametrize("way", ["stdio modern", "stdio legacy", "http modern", "http legacy"])
async def test_requests_have_no_spans_or_trace_context_without_the_switch(recorded: Recorded, urls: dict[str, str], way: str) -> None:
    disable_instrumentation()
    with get_tracer().start_as_current_span("the program's own"):
        async with tool_of(way, urls) as tool:
            said: Any = await tool.call_tool("look")
    assert set(recorded.spans()) == {"the program's own"}
    assert "traceparent" not in said[0].text


async def test_call_that_a_server_does_not_survive_has_an_error_type(recorded: Recorded, tmp_path: Path) -> None:
    told = {**TOLD, "folder": str(tmp_path)}
    async with tool_of("stdio legacy", {}, told) as tool:
        (tmp_path / "leave").touch()
        with pytest.raises(ToolFailed):
            await tool.call_tool("look")
    span = recorded.spans()["tools/call look"]
    assert (attributes_of(span)["error.type"], span.status.status_code) == ("OutcomeUnknown", StatusCode.ERROR)


async def test_call_that_reaches_no_server_has_a_span(recorded: Recorded, tmp_path: Path) -> None:
    told = json.dumps({**TOLD, "folder": str(tmp_path)})
    command = tmp_path / "python"
    command.symlink_to(sys.executable)
    args = ["-m", "tests.fakes.raw_upstream", "--stdio", told]
    async with MCPStdioTool("raw", str(command), args=args, cwd=str(ROOT)) as tool:
        (tmp_path / "leave").touch()
        command.unlink()
        for _ in range(2):
            with pytest.raises(ToolFailed):
                await tool.call_tool("look")
    calls = [attributes_of(span) for span in recorded.exporter.get_finished_spans() if span.name == "tools/call look"]
    assert [call["error.type"] for call in calls] == ["OutcomeUnknown", "NotSent"]
    assert (calls[1]["mcp.method.name"], calls[1]["gen_ai.tool.name"]) == ("tools/call", "look")


async def test_served_requests_have_spans_with_the_switch_only(recorded: Recorded, tmp_path: Path) -> None:
    lines, body = [*heads().items(), ("x-odd", "1"), ("x-odd", "2")], json.dumps(request()).encode()  # takes the SDK path
    async with standing(tmp_path) as setup:
        for is_on in (True, False):
            if not is_on:
                disable_instrumentation()
            assert (await post(setup.wired, lines, body)).status == 200
            assert set(recorded.spans()) == ({"tools/call echo"} if is_on else set())
            recorded.exporter.clear()
