"""The audit log by OTLP (`audit.otlp`): what a collector gets, and that a missing collector does not slow calls."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.running import child, free_port, upstream_http, wait_until_ready
from tests.telemetry.test_gateway_traces import collector
from tests.telemetry.test_prometheus import META, MODERN


def call(http: httpx2.Client, url: str, text: str) -> Any:
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "up__echo"}
    params = {"name": "up__echo", "arguments": {"text": text}, "_meta": META}
    return http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers=headers).json()["result"]


@pytest.mark.timeout(80)
@pytest.mark.parametrize("is_there", [True, False], ids=["collector", "no collector"])
def test_entries_reach_the_collector_and_never_delay_calls(tmp_path: Path, is_there: bool) -> None:
    port, log = free_port(), tmp_path / "log"
    with upstream_http() as upstream, collector() as found:
        policies = {"up": {"arguments": {"echo": {"text": {"maxLength": 20}}}}}
        audit = {"otlp": True, "arguments": {"up/echo": {"text": "hash"}}}
        write_gateway(tmp_path, storage={"dir": "state"}, mcpServers={"up": {"url": upstream}}, policies=policies, audit=audit)
        key = str(moongate("keys", "add", "ada", "--json", cwd=tmp_path).data["key"])
        endpoint = found.url if is_there else f"http://127.0.0.1:{free_port()}"
        env = environment(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
        argv = ["-m", "gateway", "run", "--http", f":{port}", "-c", str(tmp_path / "gateway.json")]
        with child(*argv, env=env, log=log) as process, httpx2.Client(headers=headers, timeout=30) as http:
            url = f"http://127.0.0.1:{port}/mcp"
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            started = time.monotonic()
            assert not call(http, url, "hunter2").get("isError") and call(http, url, "x" * 21)["isError"]
            assert time.monotonic() - started < 5
            if is_there:
                deadline = time.monotonic() + 20
                while len(records_of(found.bodies["/v1/logs"])) < 2:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
    if is_there:
        bodies = found.bodies["/v1/logs"]
        assert not [body for body in bodies if b"hunter2" in body or key.encode() in body]
        by_kind = {record.pop("body"): record for record in records_of(bodies)}
        assert by_kind["call.refused"]["severity"] == "WARN" and by_kind["call.refused"]["rule"] == "arguments.echo.text"
        finished = by_kind["call.finished"]
        assert (finished["severity"], finished["source"], finished["endpoint"]) == ("INFO", "up", "/mcp")
        assert finished["principal"].startswith("key:") and "hmac-sha256:" in finished["arguments"]
    entries = moongate("audit", "--calls", "--json", cwd=tmp_path).data["entries"]
    assert sorted(entry["kind"] for entry in entries) == ["call.finished", "call.refused"]


def records_of(bodies: list[bytes]) -> list[dict[str, str]]:
    """Return the log records of export requests: their attributes, severity and body."""
    scopes = [s for body in bodies for r in ExportLogsServiceRequest.FromString(body).resource_logs for s in r.scope_logs]
    return [
        {"severity": record.severity_text, "body": record.body.string_value, **{a.key: a.value.string_value for a in record.attributes}}
        for scope in scopes
        for record in scope.log_records
    ]


def test_missing_endpoint_stops_the_start(tmp_path: Path) -> None:
    write_gateway(tmp_path, audit={"otlp": True})
    done = moongate("run", "--http", f":{free_port()}", cwd=tmp_path)
    assert done.code != 0 and "audit.otlp is set, but no endpoint" in " ".join(done.err.split())
