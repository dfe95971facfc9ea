"""Attack 28: canaries for every kind of secret, servers that repeat their credentials, and a search of all output for canaries."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.cli.processes import moongate
from tests.fakes.openai_server import openai_server
from tests.fakes.raw_upstream import Raw
from tests.fakes.running import ROOT, gateway_http
from tests.interaction.wire import Era, over_http
from tests.telemetry.test_gateway_traces import collector

pytestmark = [pytest.mark.attack(28), pytest.mark.timeout(120)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
ANY: dict[str, Any] = {"type": "object"}
TOLD: dict[str, Any] = {
    "tools": [{"name": name, "inputSchema": ANY} for name in ("failing", "refusing", "broken", "odd", "saying")],
    "resources": [{"uri": "page://one", "name": "one"}],
    "prompts": [{"name": "ask"}],
}
LAST_WORDS = """\
import os, sys
print("cannot log in with " + os.environ["TOKEN"], file=sys.stderr, flush=True)
sys.exit(1)
"""


@contextmanager
def parrot() -> Generator[str]:
    """A server over HTTP that repeats the credentials of each request wherever it can."""
    raw = Raw(TOLD, modern=True)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = self.headers.get("Authorization") or self.headers.get("X-Key") or "nothing"
            method = str(message.get("method"))
            params: dict[str, Any] = message.get("params") or {}
            if self.path == "/shut":
                return self.reply(401, given.encode(), {"WWW-Authenticate": f'Bearer error="invalid_token", error_description="{given}"'})
            if "id" not in message:
                return self.reply(202, b"")
            answer = raw.answer(method, params, {})
            if method in ("resources/read", "prompts/get"):
                answer = {"error": {"code": -32602, "message": f"no entry for {given}", "data": {"seen": given}}}
            match str(params.get("name")) if method == "tools/call" else "":
                case "failing":
                    answer = {"error": {"code": -32050, "message": f"no such token: {given}", "data": given}}
                case "refusing":
                    answer = {"error": {"code": -32602, "message": f"not with {given}", "data": {"seen": given}}}
                case "broken":
                    return self.reply(500, f"traceback: {given}".encode())
                case "odd":
                    return self.reply(200, f"<html>{given}</html>".encode())
                case _:
                    pass
            return self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())

        def reply(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(more or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # a caller that did not wait
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: stderr belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@dataclass
class Seen:
    """All text that left the gateway, by the place where it appeared."""

    places: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, place: str, text: str | bytes) -> None:
        self.places[place] = self.places.get(place, "") + (text.decode("latin-1") if isinstance(text, bytes) else text)

    def leaks(self, canaries: dict[str, str]) -> dict[str, list[str]]:
        """Return the names of the canaries found in each place."""
        found = {place: [name for name, value in canaries.items() if value in text] for place, text in self.places.items()}
        return {place: names for place, names in found.items() if names}


CANARIES = {kind: f"canary-{kind}-Zq7xW2v9" for kind in ("env", "file", "program", "child", "model", "argument")}


def config_of(folder: Path, url: str) -> dict[str, Any]:
    (folder / "token.txt").write_text(CANARIES["file"] + "\n")
    (folder / "words.py").write_text(LAST_WORDS)
    (folder / "clerk.agent.md").write_text("---\nname: clerk\ndescription: Helps.\nmodel: openai-chat:scripted\n---\nHelp.\n")
    servers = {
        "env": {"type": "http", "url": f"{url}/mcp", "headers": {"Authorization": "Bearer ${CANARY_ENV}"}},
        "file": {"type": "http", "url": f"{url}/mcp", "headers": {"X-Key": "${file:token.txt}"}},
        "program": {"type": "http", "url": f"{url}/shut", "headers": {"Authorization": "Bearer ${cmd:print}"}},
        "child": {"command": sys.executable, "args": [str(folder / "words.py")], "env": {"TOKEN": "${CANARY_CHILD}"}, "cwd": str(ROOT)},
    }
    return {
        "mcpServers": servers,
        "policies": {"env": {"tasks": {"promote": ["failing"]}}, "file": {"directPath": "off"}},
        "secrets": {"print": {"command": [sys.executable, "-c", f"print('{CANARIES['program']}')"]}},
        "expose": {"agents": ["."]},
        "server": {"logLevel": "debug", "startupTimeoutSeconds": 5},
    }


async def ask_everything(url: str, era: Era, token: str, seen: Seen) -> None:
    """Send calls, reads, a task and an agent run, and record every response."""
    async with over_http(url, era, token=token) as tasks, over_http(url, era, token=token, tasks=False) as wire:
        for server in ("env", "file"):
            for tool in ("failing", "refusing", "broken", "odd"):
                said = {"p": CANARIES["argument"]}
                seen.add("answers", json.dumps(await wire.send("tools/call", name=f"{server}__{tool}", arguments=said)))
            seen.add("answers", json.dumps(await wire.send("resources/read", uri=f"{server}+page://one")))
            seen.add("answers", json.dumps(await wire.send("prompts/get", name=f"{server}__ask", arguments={})))
        for tool in ("child__any", "program__any"):
            seen.add("answers", json.dumps(await wire.send("tools/call", name=tool, arguments={})))
        seen.add("answers", json.dumps(await wire.send("tools/call", name="agent__clerk", arguments={"task": "hi"})))
        seen.add("answers", json.dumps(await wire.send("tools/call", name="gateway_status", arguments={})))
        seen.add("answers", json.dumps(await wire.send("resources/read", uri="moongate://status")))
        task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
        made = (await tasks.send("tools/call", name="env__failing", arguments={}, **task))["result"]
        task_id = made["task"]["taskId"] if era == "legacy" else made["taskId"]
        with anyio.fail_after(20):
            while (state := (await tasks.send("tasks/get", taskId=task_id))["result"])["status"] == "working":
                await anyio.sleep(0.02)
        seen.add("tasks", json.dumps(state))
        if era == "legacy":
            seen.add("tasks", json.dumps(await tasks.send("tasks/result", taskId=task_id)))


def look_at_pages(url: str, token: str, seen: Seen) -> None:
    origin = url.removesuffix("/mcp")
    for page in ("/", "/status.json", "/health", "/ready", "/none"):
        for key in (token, token + "x", "gk_none"):
            answer = httpx2.get(origin + page, headers={"Authorization": f"Bearer {key}"})
            seen.add("pages", f"{answer.headers} {answer.text}")


async def test_no_secret_is_in_anything_that_leaves_or_stays(tmp_path: Path) -> None:
    """A server may return its credentials in a result of its own; this test covers the output that the gateway writes."""
    seen = Seen()
    with ExitStack() as stack:
        url = stack.enter_context(parrot())
        told = {"status": 401, "message": f"Incorrect API key provided: {CANARIES['model']}", "repeat": True}
        model = stack.enter_context(openai_server(told))
        collected = stack.enter_context(collector())
        env = {"CANARY_ENV": CANARIES["env"], "CANARY_CHILD": CANARIES["child"], "OPENAI_API_KEY": CANARIES["model"]}
        env |= {"OPENAI_BASE_URL": model.base_url, "ENABLE_INSTRUMENTATION": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        config = config_of(tmp_path, url)
        store = KeyStore(tmp_path / "gateway-state" / "keys.json")
        keys = [store.add(name).token for name in ("ada", "bob")]
        with gateway_http(tmp_path, config, env=env) as front:
            for era, key in zip(ERAS, keys, strict=True):
                await ask_everything(front, era, key, seen)
            await anyio.to_thread.run_sync(look_at_pages, front, keys[0], seen)
        seen.add("traces", b"".join(body for bodies in collected.bodies.values() for body in bodies))
        for command in ("list", "list --json", "doctor --json", "audit --json", "tasks --json", "keys list --json"):
            ended = moongate(*command.split(), "--config", str(tmp_path / "gateway.json"), cwd=tmp_path, env=env)
            seen.add(command, ended.out + ended.err)
        seen.add("log", (tmp_path / "gateway.log").read_bytes())
        for file in (tmp_path / "gateway-state").rglob("*"):
            if file.is_file():
                seen.add(f"state/{file.name}", file.read_bytes())
    assert "tools/call" in seen.places["traces"] and "DEBUG" in seen.places["log"]
    assert "Incorrect API key" in seen.places["answers"] or "401" in seen.places["answers"]
    canaries = {**CANARIES, **{f"key {number}": key.split("_", 2)[2] for number, key in enumerate(keys)}}
    assert not (leaks := seen.leaks(canaries)), "\n".join(f"{place}: {names}" for place, names in leaks.items())
