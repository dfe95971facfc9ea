"""Eight published servers, none of them ours, behind one gateway at once: both SDK generations, stdio, Node and Python.

Each is called by the TypeScript SDKs of both eras over both transports, as its users would call it.
"""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.accept import clients
from tests.accept.clients import HOME, NODE, Era, Target, TypeScript, text_of
from tests.fakes.running import ROOT, child, free_port, wait_until_ready, write_config

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

PACKAGES = HOME / "js/node_modules/@modelcontextprotocol"
PAGE = "<html><body><h1>Tides</h1><p>High water is at noon.</p></body></html>"


def node_server(name: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """An npm server's `mcpServers` entry."""
    return {"command": str(NODE), "args": [str(PACKAGES / f"server-{name}/dist/index.js"), *arguments], "env": env or {}}


def python_server(name: str, *arguments: str, environment: str = "servers") -> dict[str, Any]:
    """A PyPI server's `mcpServers` entry."""
    return {"command": str(HOME / environment / "bin" / f"mcp-server-{name}"), "args": list(arguments)}


def are_installed() -> bool:
    """Whether `setup.sh` has run."""
    return clients.are_installed() and (HOME / "old-servers/.installed").exists()


@pytest.fixture(scope="session")
def page() -> Generator[str]:
    """A web page on this machine; yields its URL."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = PAGE.encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: stderr belongs to the test."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/tides"
        server.shutdown()


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Target, Target]]:
    """The gateway's targets: over HTTP (running) and over stdio (started by each client)."""
    if not are_installed():
        pytest.skip(f"the servers are not installed in {HOME}; run `make accept`")
    folder = tmp_path_factory.mktemp("eight")
    files = folder / "files"
    files.mkdir()
    (files / "hello.txt").write_text("hello there")
    repository = folder / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    servers = {
        "everything": node_server("everything"),
        "files": node_server("filesystem", str(files)),
        "memory": node_server("memory", env={"MEMORY_FILE_PATH": str(folder / "memory.json")}),
        "thinking": node_server("sequential-thinking"),
        "time": python_server("time"),
        "git": python_server("git", "--repository", str(repository)),
        "fetch": python_server("fetch", "--allow-private-ips", "--ignore-robots-txt"),
        "sqlite": python_server("sqlite", "--db-path", str(folder / "data.db"), environment="old-servers"),
    }
    config = write_config(folder, {"mcpServers": servers, "server": {"startupTimeoutSeconds": 60}})
    arguments = ["-m", "gateway", "run", "--config", str(config)]
    port, log = free_port(), folder / "gateway.log"
    with child(*arguments, "--http", f"127.0.0.1:{port}", log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield (
            {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
            {"command": sys.executable, "args": [*arguments, "--stdio"], "cwd": str(ROOT)},
        )


@pytest.fixture
def client(eight: tuple[Target, Target], transport: str, era: Era, tmp_path: Path) -> TypeScript:
    return TypeScript(tmp_path, eight[0] if transport == "http" else eight[1], era)


def structured(result: dict[str, Any]) -> Any:
    """The structured content, or the JSON in the first text."""
    return result.get("structuredContent") or json.loads(text_of(result))


def test_all_eight_are_listed_and_each_answers(client: TypeScript, page: str, tmp_path: Path, eight: tuple[Target, Target]) -> None:
    repository = str(next(p for p in tmp_path.parent.glob("eight*/repository")))
    table = f"t{abs(hash((client, page))) % 10**9}"
    steps: list[list[Any]] = [
        ["list"],
        ["call", "everything__echo", {"message": "hi"}],
        ["call", "files__read_text_file", {"path": str(Path(repository).parent / "files/hello.txt")}],
        ["call", "memory__create_entities", {"entities": [{"name": table, "entityType": "person", "observations": ["here"]}]}],
        ["call", "memory__search_nodes", {"query": table}],
        ["call", "thinking__sequentialthinking", {"thought": "so", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}],
        ["call", "time__get_current_time", {"timezone": "Europe/Warsaw"}],
        ["call", "git__git_status", {"repo_path": repository}],
        ["call", "fetch__fetch", {"url": page}],
        ["call", "sqlite__create_table", {"query": f"CREATE TABLE {table} (n INTEGER)"}],
        ["call", "sqlite__write_query", {"query": f"INSERT INTO {table} VALUES (42)"}],
        ["call", "sqlite__read_query", {"query": f"SELECT n FROM {table}"}],
    ]
    names, echo, hello, _, found, thought, now, status, fetched, _, _, rows = client.run(steps)
    assert {name.split("__")[0] for name in names} >= {"everything", "files", "memory", "thinking", "time", "git", "fetch", "sqlite"}
    assert "hi" in text_of(echo)
    assert "hello there" in text_of(hello)
    assert [entity["name"] for entity in structured(found)["entities"]] == [table]
    assert structured(thought)["thoughtNumber"] == 1
    assert structured(now)["timezone"] == "Europe/Warsaw"
    assert "No commits yet" in text_of(status)
    assert "High water is at noon" in text_of(fetched)
    assert "42" in text_of(rows)


def test_failure_of_one_server_is_its_own_and_others_serve(client: TypeScript, page: str) -> None:
    outside, time = client.run(
        [["call", "files__read_text_file", {"path": "/etc/hostname"}], ["call", "time__get_current_time", {"timezone": "UTC"}]]
    )
    assert outside["isError"]
    assert "Access denied" in text_of(outside)
    assert not time.get("isError")


def test_task_only_tool_is_followed_for_clients_without_tasks(client: TypeScript) -> None:
    report = client.call("everything__simulate-research-query", {"topic": "tides"})
    assert not report.get("isError")
    assert "Research Report: tides" in text_of(report)
