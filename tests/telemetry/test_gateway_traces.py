"""A gateway that exports traces: one trace from the client's request to the upstream server's response."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.architecture.sources import ROOT
from tests.fakes.nursery import sooner
from tests.fakes.openai_server import openai_server

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "traceparent": PARENT,
}
UPSTREAM = '''
import sys
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

async def list_tools(ctx, params):
    return ListToolsResult(tools=[Tool(name="trace", input_schema={"type": "object"})])

async def call_tool(ctx, params):
    return CallToolResult(content=[TextContent(type="text", text=str((ctx.meta or {}).get("traceparent")))])

async def main():
    server = Server("traced", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
'''


def answer(line: str) -> Any:
    return json.loads(line)


@dataclass
class Collector:
    """An OTLP endpoint that decodes exported data."""

    url: str
    bodies: dict[str, list[bytes]] = field(default_factory=lambda: {"/v1/traces": [], "/v1/metrics": [], "/v1/logs": []})

    def spans(self) -> list[Span]:
        decoded = [ExportTraceServiceRequest.FromString(body) for body in self.bodies["/v1/traces"]]
        return [s for request in decoded for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]

    def points(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of every data point by metric."""
        found: dict[str, list[dict[str, str]]] = {}
        for request in [ExportMetricsServiceRequest.FromString(body) for body in self.bodies["/v1/metrics"]]:
            for metric in (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
                labels = [{a.key: a.value.string_value for a in point.attributes} for point in metric.histogram.data_points]
                found.setdefault(metric.name, []).extend(labels)
        return found


@contextmanager
def collector() -> Generator[Collector]:
    bodies: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/metrics": [], "/v1/logs": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies[self.path].append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Collector(f"http://127.0.0.1:{server.server_port}", bodies)
        server.shutdown()


AGENT = "---\nname: scout\ndescription: Looks.\nmodel: openai-chat:scripted\ntools: [up/trace]\n---\nSECRET-INSTRUCTIONS\n"
WORKFLOW = """\
name: tour
description: Sends the scout.
input: {place: {type: string}}
executors:
  look: {agent: scout, prompt: "{{place}}"}
start: look
output: look
"""


@pytest.mark.requirement("OT1")
@pytest.mark.parametrize("is_on", [False, True], ids=["off", "on"])
def test_clients_trace_goes_on_at_the_upstream_server(tmp_path: Path, is_on: bool) -> None:
    (tmp_path / "upstream.py").write_text(UPSTREAM, encoding="utf-8")
    config = {"mcpServers": {"up": {"command": sys.executable, "args": [str(tmp_path / "upstream.py")]}}}
    (tmp_path / "gateway.json").write_text(json.dumps(config), encoding="utf-8")
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "up__trace", "arguments": {}, "_meta": META}}
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    if is_on:
        environ |= {"ENABLE_INSTRUMENTATION": "true", "ENABLE_CONSOLE_EXPORTERS": "true"}
    else:
        environ |= {"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
    command, args = sooner("gateway", "run", "--stdio", "--config", str(tmp_path / "gateway.json"))
    with subprocess.Popen(
        [command, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    ) as gateway:
        assert gateway.stdin is not None and gateway.stdout is not None and gateway.stderr is not None
        gateway.stdin.write(json.dumps(request) + "\n")
        gateway.stdin.flush()
        result = answer(gateway.stdout.readline())["result"]
        gateway.stdin.close()
        told = gateway.stderr.read()
    [content] = result["content"]
    _, trace, span, _ = content["text"].split("-")
    assert trace == TRACE
    assert (span != PARENT.split("-")[2]) is is_on, "with tracing on the gateway's own span stands between"
    assert ('"name": "tools/call up__trace"' in told) is is_on


@pytest.mark.requirement("OT1")
@pytest.mark.timeout(60)
def test_collector_gets_one_trace_without_content(tmp_path: Path) -> None:
    (tmp_path / "upstream.py").write_text(UPSTREAM, encoding="utf-8")
    (tmp_path / "scout.agent.md").write_text(AGENT, encoding="utf-8")
    (tmp_path / "tour.workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
    server = {"command": sys.executable, "args": [str(tmp_path / "upstream.py")]}
    (tmp_path / "gateway.json").write_text(json.dumps({"mcpServers": {"up": server}, "expose": {"agents": ["."]}}), encoding="utf-8")
    call = {"name": "workflow__tour", "arguments": {"place": "SECRET-PLACE"}, "_meta": META}
    asked: dict[str, Any] = {"when": {"last_role": "user"}, "tool_calls": [{"name": "up__trace", "arguments": {}}]}
    with collector() as collected, openai_server(asked, {"text": "SECRET-ANSWER {last_tool}"}) as model:
        environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        environ |= {"ENABLE_INSTRUMENTATION": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        command, args = sooner("gateway", "run", "--stdio", "--config", str(tmp_path / "gateway.json"))
        with subprocess.Popen([command, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT) as gateway:
            assert gateway.stdin is not None and gateway.stdout is not None
            said, bad = "", {"jsonrpc": "2.0", "id": 2, "method": "SECRET/method", "params": {"_meta": {**META}}}
            for request in ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}, bad):
                gateway.stdin.write(json.dumps(request) + "\n")
                gateway.stdin.flush()
                told = answer(gateway.stdout.readline())
                assert ("error" in told) is (request is bad)
                if "result" in told:
                    said = told["result"]["content"][0]["text"]
            gateway.stdin.close()
            gateway.wait(20)
    spans = {span.name: span for span in collected.spans() if span.trace_id.hex() == TRACE}
    below = {span.name: next((p.name for p in collected.spans() if p.span_id == span.parent_span_id), "") for span in spans.values()}
    assert below["tools/call workflow__tour"] == "" and spans["tools/call workflow__tour"].parent_span_id.hex() == PARENT.split("-")[2]
    line = ["tools/call trace", "execute_tool up__trace", "invoke_agent scout", "executor.process look", "workflow.run"]
    assert [below[name] for name in line] == [*line[1:], "tools/call workflow__tour"]
    assert below["chat scripted"] == "invoke_agent scout"
    assert f"-{spans['tools/call trace'].span_id.hex()}-" in said, "the upstream server received the id of the calling span"
    points = collected.points()
    served, sent = points["mcp.server.operation.duration"], points["mcp.client.operation.duration"]
    version = {"mcp.protocol.version": "2026-07-28"}
    named = {"gen_ai.operation.name": "execute_tool", "mcp.method.name": "tools/call", **version}
    assert {**named, "gen_ai.tool.name": "workflow__tour", "network.transport": "pipe"} in served
    assert {**named, "gen_ai.tool.name": "trace", "network.transport": "pipe"} in sent
    unknown = next(labels for labels in served if labels["mcp.method.name"] == "_OTHER")
    assert (unknown["error.type"], unknown["rpc.response.status_code"]) == ("-32601", "-32601")
    assert {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"} <= set(points)
    traces, metrics = (b"".join(collected.bodies[f"/v1/{kind}"]) for kind in ("traces", "metrics"))
    assert b"SECRET-" not in traces + metrics and b"SECRET" not in metrics
