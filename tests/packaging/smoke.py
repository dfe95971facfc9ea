"""Checks an installed `moongate` from an empty folder: version, one call over stdio and one over HTTP. Needs only the standard library.

The bundled configuration is served, and the bundled server `notes` stores one note in each gateway. `container.py` and `wheels.py` use it.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 180.0
"""Seconds that a gateway may take to be ready. The first start after an installation compiles modules."""

STOP_SECONDS = 20.0

_FACTS: dict[str, Any] = {"protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": {"name": "smoke", "version": "1"}}
_CALL = {"name": "notes__add_note", "arguments": {"text": "Hello from an empty folder"}}


class SmokeFailure(AssertionError):
    """The installed command did not do what it should. The text contains the end of its log."""


def smoke(command: Sequence[str]) -> str:
    """Run all checks of `command`, such as `["moongate"]` with a full path, and return the version that it reports.

    Raises:
        SmokeFailure: A check failed.
    """
    with tempfile.TemporaryDirectory(prefix="moongate-smoke-") as folder:
        home = Path(folder, "home")
        empty = Path(folder, "empty")
        home.mkdir()
        empty.mkdir()
        hidden = ("MOONGATE_", "OPENAI_", "PYTHON", "VIRTUAL_ENV", "XDG_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {"HOME": str(home)}
        version = _version(command, empty, env)
        _over_stdio(command, empty, env)
        _over_http(command, empty, env)
        left = sorted(path.name for path in empty.iterdir())
        if left:
            raise SmokeFailure(f"the gateway wrote files to the working folder: {left}")
    return version


def _version(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run([*command, "--version"], cwd=folder, env=env, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if done.returncode != 0 or "version" not in done.stdout:
        raise SmokeFailure(f"`--version` failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.split()[-1]


def _over_stdio(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Call the tool in a session over stdio. The call is repeated while the server `notes` starts and its tools are still unknown."""
    with tempfile.TemporaryFile("w+") as log:
        argv = [*command, "run", "--stdio"]
        process = subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        try:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "smoke", "version": "1"}}
            _ask(process, {"id": 1, "method": "initialize", "params": hello})
            _send(process, {"method": "notifications/initialized"})
            number, answer = 2, _ask(process, {"id": 2, "method": "tools/call", "params": _CALL})
            while "Unknown tool" in str(answer.get("error")):
                time.sleep(0.5)
                number += 1
                answer = _ask(process, {"id": number, "method": "tools/call", "params": _CALL})
            _check_note(answer, _tail(log))
            process.communicate(timeout=STOP_SECONDS)
            if process.returncode != 0:
                raise SmokeFailure(f"the gateway over stdio stopped with exit code {process.returncode}: {_tail(log)}")
        except BrokenPipeError:
            raise SmokeFailure(f"the gateway over stdio did not answer within {START_SECONDS:g} s: {_tail(log)}") from None
        finally:
            overdue.cancel()
            process.kill()
            process.wait()


def _send(process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def _ask(process: subprocess.Popen[str], request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and return its response; notifications before it are dropped."""
    _send(process, request)
    assert process.stdout is not None
    for line in process.stdout:
        answer: dict[str, Any] = json.loads(line)
        if answer.get("id") == request["id"] and "method" not in answer:
            return answer
    raise BrokenPipeError


def _over_http(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        argv = [*command, "run", "--http", f"127.0.0.1:{port}"]
        process = subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            if not _is_ready(f"http://127.0.0.1:{port}/ready", process):
                raise SmokeFailure(f"the gateway did not become ready: {_tail(log)}")
            _check_note(call(f"http://127.0.0.1:{port}/mcp"), _tail(log))
            process.terminate()
            if (code := process.wait(STOP_SECONDS)) != 0:
                raise SmokeFailure(f"the gateway stopped with exit code {code}: {_tail(log)}")
        finally:
            process.kill()
            process.wait()


def _is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return True
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.05)
    return False


def call(url: str, *, key: str | None = None, tool: Mapping[str, Any] = _CALL, tls: ssl.SSLContext | None = None) -> Any:
    """Send one plain request of protocol version 2026-07-28 that calls a tool of the gateway, and return the decoded response."""
    params = {**tool, "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in _FACTS.items()}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool["name"],
        **({} if key is None else {"Authorization": f"Bearer {key}"}),
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=START_SECONDS, context=tls) as answer:
        text = answer.read().decode()
    return json.loads(text.rpartition("data: ")[2] if text.startswith(("event:", "data:")) else text)


def _check_note(answer: Any, log: str) -> None:
    result = answer.get("result", {})
    if result.get("isError") or "Hello from an empty folder" not in json.dumps(result):
        raise SmokeFailure(f"the call did not store a note: {answer} {log[-2000:]}")


def _tail(log: Any) -> str:
    log.flush()
    log.seek(0)
    return log.read()[-2000:]
