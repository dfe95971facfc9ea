"""The gateway that a command uses: only the running gateway of its own configuration, with the rights of its key."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli import endpoint
from tests.cli.processes import moongate, moongate_process, write_gateway
from tests.fakes.running import ROOT, child, free_port, upstream_stdio, wait_until_ready

AGENT = "---\nname: {name}\ndescription: Helps.\n---\nHelp.\n"


def counted(mark: Path) -> dict[str, Any]:
    """Return a server that appends a line to `mark` each time it starts."""
    server = upstream_stdio()
    script = f'echo started >> "{mark}"; exec "$@"'
    return {"command": "sh", "args": ["-c", script, "sh", server["command"], *server["args"]], "cwd": str(ROOT)}


@dataclass(frozen=True)
class Running:
    """A running gateway and the folder with its configuration."""

    folder: Path
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def said(self) -> str:
        """The line with which commands name this gateway."""
        return f"gateway: {self.url} (configuration: {self.folder / 'gateway.json'})"

    def starts(self) -> int:
        """Return how many times the gateway's server was started."""
        return (self.folder / "starts").read_text().count("started")


def configure(folder: Path, port: int, agent: str, server: str) -> Path:
    (folder / "agents").mkdir()
    (folder / "agents" / f"{agent}.agent.md").write_text(AGENT.format(name=agent))
    (folder / "skills" / agent).mkdir(parents=True)
    (folder / "skills" / agent / "SKILL.md").write_text(f"---\nname: {agent}\ndescription: Helps with {agent}.\n---\nHelp.\n")
    expose = {"agents": ["agents"], "skills": ["skills"]}
    servers = {server: counted(folder / "starts")}
    return write_gateway(folder, mcpServers=servers, expose=expose, server={"http": {"port": port}}, storage={"dir": "state"})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    folder, port = tmp_path_factory.mktemp("first"), free_port()
    config = configure(folder, port, "clerk", "up")
    (folder / "agents" / "broken.agent.md").write_text("---\nname: broken\nmodle: x\n---\n")
    log = folder / "log"
    with child("-m", "gateway", "run", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield Running(folder, port, int(httpx2.get(f"http://127.0.0.1:{port}/status.json").json()["pid"]))


@pytest.fixture(scope="module")
def second(gateway: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project with the same gateway name and port."""
    folder = tmp_path_factory.mktemp("second")
    configure(folder, gateway.port, "guide", "mine")
    return folder


def test_command_names_the_gateway_that_answers(gateway: Running) -> None:
    done = moongate_process("call", "up__add", "a=1", "b=2", cwd=gateway.folder)
    assert (done.code, done.out, done.err) == (0, "3\n", f"{gateway.said}\n")
    assert gateway.starts() == 1


def test_health_proves_nothing_without_a_challenge(gateway: Running) -> None:
    health = f"http://127.0.0.1:{gateway.port}/health"
    assert httpx2.get(health).json() == httpx2.get(f"{health}?challenge=short").json() == {"status": "ok"}
    assert set(httpx2.get(f"{health}?challenge={'0' * 32}").json()) == {"status", "proof"}


def test_gateway_of_another_project_is_not_used(gateway: Running, second: Path) -> None:
    done = moongate_process("call", "mine__add", "a=1", "b=2", cwd=second)
    assert (done.code, done.out) == (0, "3\n")
    assert f"'moongate' of process {gateway.pid} (configuration: {gateway.folder / 'gateway.json'}) listens on {gateway.url}" in done.err
    assert f"--url {gateway.url}" in done.err


@pytest.mark.parametrize(("kind", "name"), [("agents", "agent__clerk"), ("skills", "clerk")])
def test_list_with_url_shows_the_tools_of_that_gateway(gateway: Running, second: Path, kind: str, name: str) -> None:
    listed = moongate("list", kind, "--url", gateway.url, "--json", cwd=second)
    assert [item["name"] for item in listed.data[kind]] == [name]
    assert moongate("list", kind, "--json", cwd=second).data[kind][0]["name"].endswith("guide")
    if kind == "agents":
        assert "not served: " in listed.err and "broken.agent.md" in listed.err and "'modle'" in listed.err
        called = moongate("call", "agent__broken", "--url", gateway.url, cwd=second)
        assert (called.code, "not served: " in called.err, "'modle'" in called.err) == (1, True, True), called


def test_inspect_with_url_shows_no_rules_of_the_local_configuration(gateway: Running, second: Path) -> None:
    for name in ("up", "up__add"):
        shown = moongate("inspect", name, "--json", cwd=gateway.folder).data
        assert shown["policy"] and moongate("inspect", name, "--url", gateway.url, "--json", cwd=second).data["policy"] is None
    assert moongate("inspect", "up", "--url", gateway.url, "--json", cwd=second).data["entry"] is None


def test_gateway_url_without_its_path_is_answered_with_its_endpoint(gateway: Running) -> None:
    wrong = gateway.url.removesuffix("/mcp")
    done = moongate("list", "tools", "--url", wrong, "--json", cwd=gateway.folder)
    assert (done.code, f"The endpoint of the gateway at {wrong} is {gateway.url};" in done.error["message"]) == (4, True)


def test_redirect_to_the_endpoint_of_the_same_origin_is_followed(gateway: Running, tmp_path: Path) -> None:
    assert moongate("list", "tools", "--url", f"{gateway.url}/", "--json", cwd=gateway.folder).data["tools"]
    write_gateway(tmp_path, storage={"dir": "state"}, mcpServers={"hub": {"url": f"{gateway.url}/"}})
    done = moongate("call", "hub__up__add", "a=1", "b=2", cwd=tmp_path)
    assert done.out == "3\n", done.err


@pytest.mark.parametrize("url", ["", "127.0.0.1:8765", "ftp://127.0.0.1/mcp", "http://127.0.0.1:99999/mcp", "http://[::1/mcp", "http://"])
def test_url_that_is_not_one_is_refused(tmp_path: Path, url: str) -> None:
    done = moongate("list", "tools", "--url", url, "--json", cwd=tmp_path)
    assert (done.code, f"--url {url!r} is not the URL of an endpoint" in done.error["message"]) == (1, True)


def test_url_and_standalone_exclude_each_other(gateway: Running) -> None:
    done = moongate("list", "tools", "--url", gateway.url, "--standalone", "--json", cwd=gateway.folder)
    assert (done.code, done.error["code"]) == (1, "usage")


def test_command_without_a_gateway_reports_that_it_starts_sources(tmp_path: Path) -> None:
    port = free_port()
    config = write_gateway(tmp_path, storage={"dir": "state"}, server={"http": {"port": port}})
    said = f"gateway: none at http://127.0.0.1:{port}/mcp, so this command starts the sources of {config} itself"
    assert said in moongate("list", "-c", str(config), cwd=tmp_path).err
    assert said not in moongate("list", "--standalone", cwd=tmp_path).err


def test_second_run_names_the_process_on_the_port(gateway: Running, second: Path) -> None:
    own = moongate("run", "--json", cwd=gateway.folder)
    assert (own.code, own.error["code"]) == (2, "config-invalid")
    assert f"of process {gateway.pid}" in own.error["message"] and "already serves this configuration" in own.error["message"]
    other = moongate("run", "--json", cwd=second)
    assert f"process {gateway.pid} (configuration: {gateway.folder / 'gateway.json'}) listens there" in other.error["message"]


def test_second_run_reports_that_the_port_has_no_gateway(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = moongate("run", "--http", f":{silent.getsockname()[1]}", "--json", cwd=tmp_path)
    assert "a program that did not answer within 2 s listens there. Stop it, or choose another port" in done.error["message"]


class _Impostor(BaseHTTPRequestHandler):
    """Answers every request like a gateway without API keys, and stores the requests."""

    seen: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(f"{self.path} {self.headers}")
        body = json.dumps({"status": "ok", "proof": "0" * 64, "name": "moongate", "sources": [], "configuration": "?", "pid": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.attack(43)
def test_program_on_the_port_gets_neither_key_nor_call(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Impostor) as impostor:
        threading.Thread(target=impostor.serve_forever, daemon=True).start()
        configure(tmp_path, impostor.server_port, "clerk", "up")
        done = moongate("call", "up__echo", "text=private", "--api-key", "gk_secret", cwd=tmp_path)
        impostor.shutdown()
    assert done.code == 0
    assert _Impostor.seen and not any("gk_secret" in seen or seen.startswith("/mcp") for seen in _Impostor.seen)


@pytest.fixture(scope="module")
def key(gateway: Running) -> str:
    """An API key for one tool; from here on the gateway wants one."""
    return str(moongate("keys", "add", "reader", "--scope", "up/add", "--json", cwd=gateway.folder).data["key"])


def test_scoped_key_is_used_with_its_rights(gateway: Running, key: str) -> None:
    allowed = moongate_process("call", "up__add", "a=1", "b=2", "--api-key", key, cwd=gateway.folder)
    assert (allowed.code, allowed.out, allowed.err) == (0, "3\n", f"{gateway.said}\n")
    denied = moongate("call", "up__echo", "text=x", "--api-key", key, "--json", cwd=gateway.folder)
    assert (denied.code, denied.error["code"]) == (6, "denied")
    assert "no scope for tool 'echo' of 'up'" in denied.error["message"]
    unknown = moongate("call", "up__ad", "--api-key", key, "--json", cwd=gateway.folder)
    assert (unknown.code, unknown.error["code"]) == (1, "not-found")
    assert "Did you mean 'up__add'?" in unknown.error["message"]
    pasted = moongate("list", "--api-key", "gk_…", cwd=gateway.folder)
    assert (pasted.code, "no API key has" in pasted.err) == (1, True)
    status = moongate("list", "--api-key", key, "--json", cwd=gateway.folder)
    assert (status.code, status.error["code"]) == (6, "denied")
    assert moongate("inspect", "up__add", "--api-key", key, "--json", cwd=gateway.folder).data["source"] == "up"
    assert gateway.starts() == 1


def test_key_with_status_scope_cannot_call_outside_its_scopes(gateway: Running, key: str) -> None:
    status = str(moongate("keys", "add", "watcher", "--scope", "gateway", "--json", cwd=gateway.folder).data["key"])
    denied = moongate("call", "up__echo", "text=x", "--api-key", status, "--json", cwd=gateway.folder)
    assert (denied.code, "no scope for tool 'echo' of 'up'" in denied.error["message"]) == (6, True)
    unknown = moongate("call", "up__ech", "--api-key", status, "--json", cwd=gateway.folder)
    assert (unknown.code, unknown.error["code"]) == (1, "not-found")
    hidden = moongate("inspect", "up__echo", "--api-key", status, "--json", cwd=gateway.folder)
    assert (hidden.code, "scopes of the API key" in hidden.error["message"]) == (1, True)
    assert "No agents are served to this API key." in moongate("list", "agents", "--api-key", status, cwd=gateway.folder).err


def test_gateway_with_keys_is_known_without_one(gateway: Running, second: Path, key: str) -> None:
    assert moongate("list", cwd=gateway.folder).code == 3
    assert "already serves this configuration" in moongate("run", cwd=gateway.folder).err
    foreign = moongate("call", "mine__add", "a=1", "b=2", "--api-key", key, cwd=second)
    assert (foreign.code, foreign.out) == (0, "3\n")
    assert "with API keys, so its configuration is not shown" in foreign.err


class _Slow(BaseHTTPRequestHandler):
    """A gateway that takes 0.4 s to respond."""

    def do_GET(self) -> None:
        time.sleep(0.4)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"sources": []}')

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: stderr belongs to the test."""


async def test_slow_status_page_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PROBE_TIMEOUT_SECONDS", 0.1)
    with HTTPServer(("127.0.0.1", 0), _Slow) as slow:
        threading.Thread(target=slow.serve_forever, daemon=True).start()
        status = await endpoint.read_status(f"http://127.0.0.1:{slow.server_port}/mcp", None)
        slow.shutdown()
    assert status.page == {"sources": []}
