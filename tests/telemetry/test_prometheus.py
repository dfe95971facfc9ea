"""Metrics for Prometheus (`telemetry.prometheus`): what they count, who can read them, and that callers cannot make them grow."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.auth.principal import Principal
from gateway.config.load import load_text
from gateway.errors import ConfigError
from gateway.telemetry.call_counts import FREQUENT, MAX_QUEUED, OTHER, BoundedLabels, CallCounts
from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.running import ROOT, child, free_port, upstream_http, wait_until_ready

MODERN = "2026-07-28"
META: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


@dataclass(frozen=True)
class Measured:
    """A gateway that serves metrics, and a caller with an API key."""

    url: str
    port: int
    """Port of the metrics."""
    key: str
    http: httpx2.Client

    def call(self, name: str, **arguments: Any) -> httpx2.Response:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
        params = {"name": name, "arguments": arguments, "_meta": META}
        return self.http.post(self.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers=headers)

    def request(self, method: str, **params: Any) -> Any:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method, **({"mcp-name": params["uri"]} if "uri" in params else {})}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        return self.http.post(self.url, json=message, headers=headers).json()["result"]

    def open_session(self) -> str:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "client-of-a-name", "version": "1"}}
        answer = self.http.post(self.url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        return answer.headers["mcp-session-id"]

    def metrics(self) -> str:
        answer = httpx2.get(f"http://127.0.0.1:{self.port}/metrics", timeout=20)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain"), answer.text
        return answer.text

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the only series with this name and at least these labels; 0 without one."""
        lines = [line for line in self.metrics().splitlines() if re.match(rf"{name}[{{ ]", line)]
        found = [line for line in lines if all(f'{label}="{value}"' in line for label, value in labels.items())]
        assert len(found) < 2, found
        return float(found[0].rpartition(" ")[2]) if found else 0.0


@contextmanager
def measured(folder: Path, env: dict[str, str] | None = None) -> Generator[Measured]:
    port, listens = free_port(), free_port()
    with upstream_http() as upstream:
        policies = {"up": {"arguments": {"echo": {"text": {"maxLength": 20}}}}}
        settings = {"mcpServers": {"up": {"url": upstream}}, "policies": policies, "telemetry": {"prometheus": f"127.0.0.1:{listens}"}}
        config = write_gateway(folder, storage={"dir": "state"}, **settings)
        key = str(moongate("keys", "add", "name-of-a-person", "--json", cwd=folder).data["key"])
        argv = ["-m", "gateway", "run", "--http", f":{port}", "-c", str(config)]
        headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
        log = folder / "log"
        with child(*argv, env=environment(folder, env), log=log) as process, httpx2.Client(headers=headers, timeout=30) as http:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            yield Measured(f"http://127.0.0.1:{port}/mcp", listens, key, http)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Generator[Measured]:
    with measured(tmp_path_factory.mktemp("metrics")) as found:
        yield found


def test_calls_are_counted_by_source_and_outcome(plain: Measured) -> None:
    before = plain.value("moongate_call_duration_seconds_count", source="up", outcome="complete")
    for _ in range(5):
        assert plain.call("up__echo", text="hello").status_code == 200
    assert plain.value("moongate_call_duration_seconds_count", source="up", outcome="complete") == before + 5
    assert plain.value("moongate_call_duration_seconds_sum", source="up", outcome="complete") > 0
    assert plain.call("up__fail").status_code == 200
    assert plain.value("moongate_call_duration_seconds_count", source="up", outcome="error") == 1
    assert plain.value("moongate_source_ready", source="up") == 1


def test_refused_calls_are_counted(plain: Measured) -> None:
    before = plain.value("moongate_refusals_total", source="up")
    assert plain.call("up__echo", text="x" * 21).json()["result"]["isError"]
    assert plain.value("moongate_refusals_total", source="up") == before + 1
    assert plain.value("moongate_call_duration_seconds_count", source="up", outcome="refused") == before + 1


@pytest.mark.attack(3)
@pytest.mark.parametrize("env", [{}, {"ENABLE_INSTRUMENTATION": "1"}], ids=["plain", "instrumented"])
def test_names_from_callers_do_not_become_labels(env: dict[str, str], tmp_path: Path) -> None:
    with measured(tmp_path, env) as gateway:
        gateway.call("up__echo", text="hello")
        gateway.call("up__unknown_tool_0", text="hello")
        sessions = [gateway.open_session()]
        before = gateway.metrics()
        for number in range(1, 1001):
            answer = gateway.call(f"up__unknown_tool_{number}" if number % 2 else f"unknown_tool_{number}", text="hello")
            assert "error" in answer.json() or answer.json()["result"]["isError"], answer.text
        sessions += [gateway.open_session() for _ in range(5)]
        after = gateway.metrics()
    assert "moongate_call_duration_seconds_count" in after and ("mcp_server_operation_duration" in after) == bool(env)
    assert len(after.splitlines()) <= len(before.splitlines()) + 40
    for chosen in ("unknown_tool", "name-of-a-person", "client-of-a-name", gateway.key, *sessions):
        assert chosen not in after


@pytest.mark.attack(3)
def test_only_this_machines_names_reach_metrics_on_loopback(plain: Measured) -> None:
    """A web page that points its own name at 127.0.0.1 (DNS rebinding) gets nothing. The MCP endpoint has no metrics at all."""
    place = f"http://127.0.0.1:{plain.port}"
    for host in ("evil.example", f"evil.example:{plain.port}", "127.0.0.1.evil.example", ""):
        answer = httpx2.get(f"{place}/metrics", headers={"host": host})
        assert answer.status_code >= 400 and "moongate_" not in answer.text, host
    for host in ("localhost", f"localhost:{plain.port}", f"127.0.0.1:{plain.port}", "[::1]"):
        assert httpx2.get(f"{place}/metrics", headers={"host": host}).status_code == 200
    assert (httpx2.get(f"{place}/").status_code, httpx2.post(f"{place}/metrics").status_code) == (404, 405)
    answer = plain.http.get(plain.url.replace("/mcp", "/metrics"))
    assert answer.status_code >= 400 and "moongate_" not in answer.text


def test_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_gateway(tmp_path, telemetry={"prometheus": f"127.0.0.1:{port}"})
        done = moongate("run", "--http", f":{free_port()}", cwd=tmp_path)
    assert done.code != 0
    said = " ".join(done.err.split())
    assert f"Cannot serve metrics at 127.0.0.1:{port}: another program listens there." in said, said
    assert "Stop it, or choose another port with `telemetry.prometheus`." in said, said


def test_address_of_another_machine_stops_the_start(tmp_path: Path) -> None:
    write_gateway(tmp_path, telemetry={"prometheus": "192.0.2.1:9464"})
    done = moongate("run", "--http", f":{free_port()}", cwd=tmp_path)
    said = " ".join(done.err.split())
    assert done.code != 0 and "Cannot serve metrics at 192.0.2.1:9464: " in said, said
    assert "Choose another address with `telemetry.prometheus`." in said and "--http" not in said, said


def test_missing_extra_stops_the_start(tmp_path: Path) -> None:
    config = write_gateway(tmp_path, telemetry={"prometheus": f"127.0.0.1:{free_port()}"})
    hides = "import sys; sys.modules['opentelemetry.exporter.prometheus'] = None; from gateway.cli.main import main; main()"
    argv = [sys.executable, "-c", hides, "run", "--http", f":{free_port()}", "-c", str(config)]
    env = environment(tmp_path, {"PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"})
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "telemetry.prometheus is set: " in said and "pip install 'moongate[telemetry]'" in said, said


@pytest.mark.parametrize("wrong", ["9464", ":9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "http://127.0.0.1:9464", "::1:9464"])
def test_wrong_address_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_text(f'{{"telemetry": {{"prometheus": "{wrong}"}}}}', Path("gateway.json"), {})
    assert raised.value.path == "telemetry.prometheus" or "telemetry.prometheus" in str(raised.value)


def test_address_with_brackets_is_an_ipv6_address() -> None:
    loaded = load_text('{"telemetry": {"prometheus": "[::1]:9464"}}', Path("gateway.json"), {})
    assert loaded.config.telemetry.prometheus_address == ("::1", 9464)


def test_calls_are_counted_by_tool_endpoint_and_principal(plain: Measured) -> None:
    tool = {"source": "up", "tool": "up__echo", "endpoint": "/mcp", "outcome": "complete"}
    before, read = plain.value("moongate_tool_calls_total", **tool), plain.value("moongate_result_bytes_total", source="up")
    for _ in range(3):
        plain.call("up__echo", text="hello")
    assert plain.value("moongate_tool_calls_total", **tool) == before + 3
    assert plain.value("moongate_principal_calls_total", outcome="complete", endpoint="/mcp") == before + 3
    assert 'principal="key:' in plain.metrics() and plain.value("moongate_result_bytes_total", source="up") > read + 3 * len("hello")
    assert plain.value("moongate_calls_running", source="up") == plain.value("moongate_calls_queued", source="up") == 0
    assert plain.value("moongate_audit_dropped") == plain.value("moongate_tasks_running") == 0


@pytest.mark.attack(3)
def test_rare_values_share_one_label_and_frequent_ones_get_their_own() -> None:
    labels = BoundedLabels(10)
    assert [labels.of(f"first-{number}") for number in range(5)] == [f"first-{number}" for number in range(5)]
    assert {labels.of(f"rare-{number}") for number in range(100_000)} == {OTHER}
    shown = [labels.of("frequent") for _ in range(FREQUENT + 1)]
    assert shown[0] == OTHER and shown[-1] == "frequent"
    for number in range(20):
        shown += [labels.of(f"late-{number}") for _ in range(FREQUENT * 2)]
    assert len({*shown} - {OTHER}) == 5 and labels.of("first-0") == "first-0"


def test_queue_of_counts_is_bounded() -> None:
    counts = CallCounts(lambda: "/mcp", tools=4, principals=4)
    for number in range(3 * MAX_QUEUED + 5):
        fields: dict[str, Any] = {"outcome": "complete"}
        counts.note((0.0, "call.finished", "up", f"tool-{number}", Principal(f"key:{number}"), "", fields, 10, None))
        assert counts.queued < MAX_QUEUED
    counts.count()
    assert sum(number for number, _ in counts.by_tool()) == sum(number for number, _ in counts.by_principal()) == 3 * MAX_QUEUED + 5
    assert len([*counts.by_tool()]) == len([*counts.by_principal()]) == 3
    assert [number for number, _ in counts.result_bytes()] == [10 * (3 * MAX_QUEUED + 5)]


def series_of(page: str) -> dict[str, set[str]]:
    """Return the labels of each series on a page of metrics, by its name."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if (match := re.match(r"(\w+)(?:\{(.*)\})? ", line)) and not line.startswith("#"):
            found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return found


def test_dashboard_asks_only_for_metrics_and_labels_that_exist(plain: Measured) -> None:
    plain.call("up__echo", text="hello")
    plain.call("up__echo", text="x" * 21)
    uri = plain.request("resources/list")["resources"][0]["uri"]
    assert plain.request("resources/read", uri=uri)["contents"]
    series = series_of(plain.metrics())
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "moongate.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert len(queries) > 15
    for query in queries:
        [name] = set(re.findall(r"(?:moongate|process)_\w+", query))
        assert name in series, query
        labels = {label for text in re.findall(r"\{(.*?)\}", query) for label in re.findall(r"(\w+)=~", text)}
        labels |= {label.strip() for text in re.findall(r"by \((.*?)\)", query) for label in text.split(",")}
        labels |= set(re.findall(r"label_values\(\w+, (\w+)\)", query))
        assert labels <= {*series[name], "job", "instance"}, (query, series[name])
