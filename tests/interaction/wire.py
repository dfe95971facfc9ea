"""A client without an SDK: hand-written requests over HTTP or stdio, for messages that the current SDK cannot send."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
import anyio.abc
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT

Era = Literal["legacy", "modern"]
EXTENSION = "io.modelcontextprotocol/tasks"
OURS = "io.modelcontextprotocol"
SECONDS = 20
ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}


class Wire(Protocol):
    """A connected client that sends requests and returns their responses."""

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its whole response, which has `result` or `error`."""
        ...


def modern_params(params: dict[str, Any], *, tasks: bool, capabilities: dict[str, Any]) -> dict[str, Any]:
    """Return `params` with the `_meta` keys that every 2026 request has."""
    extension: dict[str, Any] = {"extensions": {EXTENSION: {}}} if tasks else {}
    declared: dict[str, Any] = {**capabilities, **extension}
    meta: dict[str, Any] = {f"{OURS}/protocolVersion": "2026-07-28", f"{OURS}/clientCapabilities": declared, **params.pop("_meta", {})}
    return {**params, "_meta": meta}


@dataclass
class HttpWire:
    """A client over HTTP. `tasks` is whether its 2026 requests declare the tasks extension."""

    http: httpx2.AsyncClient
    url: str
    era: Era
    tasks: bool
    capabilities: dict[str, Any]
    headers: dict[str, str]

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a POST request and return the response; notifications before the response are ignored."""
        headers = {"Accept": "application/json, text/event-stream", **self.headers}
        if self.era == "modern":
            name = params.get("name") or params.get("taskId") or params.get("uri")
            headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
            params = modern_params(params, tasks=self.tasks, capabilities=self.capabilities)
        answer = await self.http.post(self.url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            return json.loads(answer.text)
        messages = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return next(message for message in messages if message.get("id") == 1 and "method" not in message)


@asynccontextmanager
async def over_http(
    url: str, era: Era, *, tasks: bool = True, token: str = "", capabilities: dict[str, Any] = ELICITS, version: str = "2025-11-25"
) -> AsyncGenerator[HttpWire]:
    """A client of this era; `token` is its API key, `version` the protocol of a legacy one."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(timeout=SECONDS) as http:
        wire = HttpWire(http, url, era, tasks, capabilities, headers)
        if era == "legacy":
            accept = {"Accept": "application/json, text/event-stream", **headers}
            hello = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "wire", "version": "1"}}
            started = await http.post(url, headers=accept, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
            wire.headers |= {"MCP-Protocol-Version": version, "Mcp-Session-Id": started.headers["mcp-session-id"]}
            await http.post(url, headers={**accept, **wire.headers}, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield wire


class StdioWire:
    """A client over the pipes of a gateway process; it sends one request at a time."""

    def __init__(self, process: anyio.abc.Process, era: Era, *, tasks: bool) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in = process.stdin
        self._out = BufferedByteReceiveStream(process.stdout)
        self._era = era
        self._tasks = tasks
        self._last = 0

    async def write(self, message: dict[str, Any]) -> None:
        """Write a message as one line."""
        await self._in.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response."""
        self._last += 1
        if self._era == "modern":
            params = modern_params(params, tasks=self._tasks, capabilities=ELICITS)
        await self.write({"id": self._last, "method": method, "params": params})
        with anyio.fail_after(SECONDS):
            while True:
                message = json.loads(await self._out.receive_until(b"\n", 10_000_000))
                if message.get("id") == self._last and "method" not in message:
                    return message


@asynccontextmanager
async def over_stdio(config: Path, era: Era, *, tasks: bool = True) -> AsyncGenerator[StdioWire]:
    """A client of this era that starts its own gateway."""
    command, args = sooner("gateway", "run", "--stdio", "--config", str(config))
    async with await anyio.open_process([command, *args], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wire = StdioWire(process, era, tasks=tasks)
        if era == "legacy":
            hello = {"protocolVersion": "2025-11-25", "capabilities": ELICITS, "clientInfo": {"name": "wire", "version": "1"}}
            await wire.send("initialize", **hello)
            await wire.write({"method": "notifications/initialized"})
        try:
            yield wire
        finally:
            process.terminate()
            await process.wait()
