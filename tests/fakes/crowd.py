"""A gateway under attack: keys of several callers, many raw connections, and an honest client that records unserved calls."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gateway.auth.api_keys import KeyStore
from tests.fakes.nursery import Child
from tests.fakes.running import child, free_port, wait_until_ready, write_config

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
PREFIX = "io.modelcontextprotocol"
META: dict[str, Any] = {
    f"{PREFIX}/protocolVersion": "2026-07-28",
    f"{PREFIX}/clientInfo": {"name": "crowd", "version": "1"},
    f"{PREFIX}/clientCapabilities": {},
}
HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "crowd", "version": "1"}}
CALLERS: Mapping[str, Sequence[str]] = {"honest": ("up",), "weak": ("up",), "boss": ("admin", "up")}


@dataclass(frozen=True)
class Besieged:
    """A running gateway that a test attacks."""

    url: str
    process: Child
    log: Path
    keys: Mapping[str, str]
    """Tokens, by the name of the caller."""

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    def resident(self) -> int:
        """Bytes of memory of the process."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def key_of(self, caller: str) -> dict[str, str]:
        """The header of a caller; none on a gateway without keys."""
        return {"authorization": f"Bearer {self.keys[caller]}"} if self.keys else {}

    def head(self, caller: str | None, length: int, **fields: str) -> bytes:
        """The head of a POST to the endpoint."""
        given = {**ACCEPT, **(self.key_of(caller) if caller else {}), **fields, "host": "127.0.0.1", "content-length": str(length)}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        return ("\r\n".join(["POST /mcp HTTP/1.1", *lines]) + "\r\n\r\n").encode()


@contextmanager
def besieged(folder: Path, config: dict[str, Any], *, callers: Mapping[str, Sequence[str]] = CALLERS) -> Generator[Besieged]:
    """Run a gateway over HTTP and yield it when it is ready. Without `callers` the gateway has no API keys."""
    port, path, log = free_port(), write_config(folder, config), folder / "gateway.log"
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in callers.items()}
    argv = ("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
    with child(*argv, log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield Besieged(f"http://127.0.0.1:{port}/mcp", process, log, keys)


@contextmanager
def connections(
    at: Besieged, count: int, *, source: str = "127.0.0.1", window: int | None = None
) -> Generator[list[socket.socket]]:
    """Raw connections; `source` is the address that they come from, any of 127.0.0.0/8, `window` their receive buffer in bytes."""
    with ExitStack() as stack:
        made: list[socket.socket] = []
        for _ in range(count):
            raw = stack.enter_context(socket.socket())
            if window is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            raw.bind((source, 0))
            raw.settimeout(20)
            raw.connect(at.address)
            made.append(raw)
        yield made


def call(name: str = "up__echo", number: int = 1, **arguments: Any) -> tuple[str, dict[str, str]]:
    """Body and headers of a 2026 call."""
    params = {"name": name, "arguments": arguments or {"text": "hello"}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    return body, {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}


@dataclass
class Watch:
    """An honest client that sends calls continuously, and health checks that each open a new connection."""

    at: Besieged
    caller: str = "honest"
    is_kept: bool = True
    """Whether the calls share one kept-alive connection."""
    failures: list[str] = field(default_factory=lambda: list[str]())
    calls: int = 0
    checks: int = 0
    slowest: float = 0.0
    slowest_health: float = 0.0
    undisturbed: float = 0.0
    """The slowest answer until the first `is_served`, in seconds: how busy the machine is."""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._call, self._check)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def _call(self) -> None:
        body, headers = call()
        client = httpx2.Client(timeout=20)
        while not self._over.is_set():
            began = time.monotonic()
            try:
                answer = client.post(self.at.url, content=body, headers={**headers, **self.at.key_of(self.caller)})
                if answer.status_code != 200 or "hello" not in answer.text:
                    self.failures.append(f"{answer.status_code} {answer.text[:200]}")
            except httpx2.HTTPError as error:
                self.failures.append(repr(error))
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.calls += 1
            if not self.is_kept:
                client.close()
                client = httpx2.Client(timeout=20)
            time.sleep(0.01)
        client.close()

    def _check(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            for page in ("/health", "/ready"):
                try:
                    answer = self._get(page)
                    if answer.status_code != 200:
                        self.failures.append(f"{page} {answer.status_code} {answer.text[:200]}")
                except httpx2.HTTPError as error:
                    self.failures.append(f"{page} {error!r}")
            self.slowest_health = max(self.slowest_health, time.monotonic() - began)
            self.checks += 1
            time.sleep(0.05)

    def _get(self, page: str) -> httpx2.Response:
        """Get a page on a new connection. The gateway may evict a connection on which nothing was sent yet; then try once more."""
        try:
            return httpx2.get(self.at.origin + page, timeout=20)
        except httpx2.RemoteProtocolError:
            return httpx2.get(self.at.origin + page, timeout=20)

    def is_served(self, *, calls: int = 3) -> None:
        """Wait for `calls` more calls and one more health check; fail if a request has failed or was too slow so far."""
        until, checks, deadline = self.calls + calls, self.checks + 1, time.monotonic() + 20
        while (self.calls < until or self.checks < checks) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.calls >= until and self.checks >= checks, "the honest client got no answers"
        assert not self.failures, self.failures[:5]
        slowest = max(self.slowest, self.slowest_health)
        self.undisturbed = self.undisturbed or slowest
        assert slowest < 5 + 10 * self.undisturbed, (self.slowest, self.slowest_health, self.undisturbed)


def status_of(raw: socket.socket) -> int:
    """The status of the answer on a raw connection; 0 if it was closed without one."""
    told = b""
    try:
        while b"\r\n" not in told and (part := raw.recv(65_536)):
            told += part
    except ConnectionError:
        pass
    return int(told.split(b" ", 2)[1]) if told.startswith(b"HTTP/1.1 ") else 0


def is_open(raw: socket.socket) -> bool:
    """Whether a connection was not closed by the other side; what came on it is dropped."""
    raw.setblocking(False)
    try:
        while True:
            if not raw.recv(65_536):
                return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        raw.settimeout(20)


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until `holds` returns true, or fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
