"""A gateway that receives only plain 2026 requests never imports the SDK or other modules that such requests do not need."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fakes.running import ROOT, upstream_stdio, write_config

HEAVY = ("mcp", "mcp_types", "httpx2", "cryptography", "opentelemetry", "starlette", "sqlalchemy", "openai", "rich", "yaml", "jsonschema")
META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
ENVELOPE = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}, f"{META}clientInfo": {"name": "t", "version": "1"}}
QUESTIONS = ("server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list")

TELLING = f"""
import atexit, json, sys
atexit.register(lambda: print("LOADED", json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr))
from gateway.cli.main import main
main(sys.argv[1:])
"""
"""A program that runs `moongate` and, when it exits, prints which modules of `HEAVY` were imported."""


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": ENVELOPE, **params}}


def ask(url: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a 2026 request over HTTP and return the response."""
    heads = {"accept": "application/json, text/event-stream", "content-type": "application/json", "mcp-method": message["method"]}
    named = {"mcp-name": message["params"]["name"]} if "name" in message["params"] else {}
    headers = {**heads, **named, "mcp-protocol-version": VERSION}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(message).encode(), headers), timeout=10) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told


@pytest.mark.parametrize("upstream", ["none", "of 2026"])
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_plain_questions_load_nothing_they_do_not_need(tmp_path: Path, way: Literal["stdio", "http"], upstream: str) -> None:
    tool = {"name": "echo", "inputSchema": {"type": "object"}}
    entry = upstream_stdio("--modern", json.dumps({"tools": [tool]}), module="tests.fakes.raw_upstream")
    auto = {"directPath": "auto"}
    servers = {} if upstream == "none" else {"mcpServers": {"raw": entry}, "policies": {"raw": auto}}
    path = write_config(tmp_path, {**servers, "server": {"http": auto}})
    argv = [sys.executable, "-c", TELLING, "run", *(["--stdio"] if way == "stdio" else ["--http", "127.0.0.1:0"]), "--json"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    told: list[Any] = []
    asked = [request(number, method) for number, method in enumerate(QUESTIONS)]
    with subprocess.Popen([*argv, "--config", str(path)], cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        if way == "http":
            url = json.loads(process.stderr.readline())["endpoint"]
            calls = [request(9, "tools/call", name="raw__echo", arguments={})] if servers else []
            told = [ask(url, message) for message in (*asked, *calls)]
            process.terminate()
        else:
            for message in asked:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
                told.append(json.loads(process.stdout.readline()))
            process.stdin.close()
        said = process.stderr.read()
        assert process.wait(10) == 0, said
    assert [message["id"] for message in told[:5]] == [0, 1, 2, 3, 4]
    assert ("raw__echo" in [tool["name"] for tool in told[1]["result"]["tools"]]) is bool(servers)
    assert all("result" in message for message in told), told
    loaded = next(line for line in said.splitlines() if line.startswith("LOADED "))
    assert json.loads(loaded.removeprefix("LOADED ")) == []
