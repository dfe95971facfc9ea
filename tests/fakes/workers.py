"""A gateway of several workers as real processes, and connections that a chosen one of them serves."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.nursery import Child
from tests.fakes.running import START_SECONDS, child, free_port, wait_until_ready, write_config
from tests.interaction.wire import modern_params

STARTED = re.compile(r"worker (\d+) of \d+ is process (\d+)")
SECONDS = 20.0
SHORT_SECONDS = 0.25


@dataclass
class Line:
    """One connection, on which requests follow each other; made by `Workers.through`."""

    connection: http.client.HTTPConnection
    session: dict[str, str]
    """Headers of the 2025 session that is used."""

    def post(self, message: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and the answer, from JSON or from a stream."""
        told = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **self.session, **headers}
        self.connection.request("POST", "/mcp", json.dumps(message), told)
        answer = self.connection.getresponse()
        text = answer.read().decode()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if "text/event-stream" in found.get("content-type", ""):
            messages = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            return answer.status, found, next(m for m in messages if m.get("id") == message.get("id") and "method" not in m)
        return answer.status, found, json.loads(text) if text else {}

    def send(self, method: str, *, tasks: bool = False, capabilities: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """A request of 2026; the whole answer."""
        told = modern_params(params, tasks=tasks, capabilities=capabilities or {})
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        if name := params.get("name") or params.get("taskId"):
            headers["Mcp-Name"] = name
        return self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": told}, **headers)[2]

    def begin(self, name: str, **params: Any) -> None:
        """Send a call of 2026 and leave it at that."""
        told = modern_params({"name": name, "arguments": {}, **params}, tasks=False, capabilities={})
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": told})
        accept = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self.connection.request(
            "POST", "/mcp", body, {**accept, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name}
        )

    def text(self, tool: str, **arguments: Any) -> str:
        """What a tool says, called as in 2026."""
        return text_of(self.send("tools/call", name=tool, arguments=arguments))

    def open_session(self) -> None:
        """Begin a session of 2025 on this connection."""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        status, headers, _ = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        assert status == 200
        self.session = {"Mcp-Session-Id": headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def legacy(self, method: str, **params: Any) -> dict[str, Any]:
        """A request in the session."""
        return self.post({"jsonrpc": "2.0", "id": 5, "method": method, "params": params})[2]


def text_of(answer: dict[str, Any]) -> str:
    """The text of a tool's result."""
    return answer["result"]["content"][0]["text"]


@dataclass
class Workers:
    """A running gateway."""

    process: Child
    port: int
    log: Path
    config: Path
    opened: list[http.client.HTTPConnection] = field(default_factory=list[http.client.HTTPConnection])

    def pids(self) -> dict[int, int]:
        """The process of each worker, as last started."""
        return {int(number): int(pid) for number, pid in STARTED.findall(self.log.read_text())}

    @contextmanager
    def stopped(self, *numbers: int) -> Generator[None]:
        """These workers do nothing meanwhile."""
        pids = [pid for number in numbers if is_alive(pid := self.pids()[number])]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                until(lambda pid=pid: state_of(pid) == "T")
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def through(self, number: int, seconds: float = SECONDS) -> Line:
        """A new connection that this worker serves."""
        with self.stopped(*(self.pids().keys() - {number})):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
            self.opened.append(connection)
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        return Line(connection, {})

    def answers_alone(self, number: int, tool: str, *, seconds: float = SECONDS, **arguments: Any) -> bool:
        """Whether a worker answers a call while all the others stand still."""
        others = self.pids().keys() - {number}
        line = self.through(number)
        assert line.connection.sock is not None
        with self.stopped(*others):
            line.connection.sock.settimeout(seconds)
            try:
                line.text(tool, **arguments)
            except TimeoutError:
                return False
            finally:
                line.connection.close()
        return True


def spread(found: Workers, number: int, tool: str = "far__echo", **arguments: Any) -> None:
    """Wait until a worker answers by itself."""
    until(lambda: found.answers_alone(number, tool, seconds=SHORT_SECONDS, **(arguments or {"text": "hello"})))


def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process has not ended."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """What the system says of a process: `T` while it is stopped, `Z` once it is dead, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@contextmanager
def workers(folder: Path, config: dict[str, Any], count: int = 3) -> Generator[Workers]:
    """A gateway of `count` workers, ready."""
    port, log = free_port(), folder / "workers.log"
    path = write_config(folder, config)
    options = ("--workers", str(count), "--http", f"127.0.0.1:{port}", "--config", str(path))
    with child("-m", "gateway", "run", *options, log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        found = Workers(process, port, log, path)
        until(lambda: len(found.pids()) == count)
        try:
            yield found
        finally:
            for connection in found.opened:
                connection.close()
