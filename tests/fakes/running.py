"""Starts gateways and upstreams as real processes for tests, with deadlines, and ends them with everything they started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.nursery import Child, born, sooner

ROOT = Path(__file__).resolve().parents[2]
SDK_PATH = "SDK_PATH"
"""Environment variable: if it is set, gateways serve everything on the SDK path (`make sdk-path`)."""

TASK_ENGINE = "TASK_ENGINE"
"""Environment variable: address of a Temporal server, which then dispatches the tasks of gateways (fixture `task_engine`)."""

START_SECONDS = 20.0
STOP_SECONDS = 10.0


def free_port() -> int:
    """A loopback port nobody listens on, and none that a system gives to connections, which could take it before its test does."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def until(is_so: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after `START_SECONDS`."""
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def listens(port: str) -> bool:
    """Whether a program listens on this loopback port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
        return True
    return False


@contextmanager
def child(
    *argv: str, env: dict[str, str] | None = None, stdout: int = subprocess.DEVNULL, log: Path | None = None
) -> Generator[Child]:
    """A Python child in a process group of its own; the whole group is ended on leaving."""
    told = {**os.environ, **(env or {})}
    with (log.open("wb") if log else open(os.devnull, "wb")) as stderr:
        if argv[0] == "-m" or argv[0].endswith(".py"):
            process = born(argv[argv[0] == "-m" :], cwd=ROOT, env=told, stdout=stdout, stderr=stderr)
        else:
            process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, env=told, stdout=stdout, stderr=stderr, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def upstream_http(*options: str, module: str = "tests.fakes.upstream") -> Generator[str]:
    """`tests.fakes.upstream` (or another of the fakes) over HTTP; yields its URL."""
    with child("-m", module, *options, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, "the fake upstream did not start"
        yield url


@contextmanager
def auth_server(*options: str, log: Path | None = None) -> Generator[str]:
    """`tests.fakes.auth_server`; yields its origin."""
    with child("-m", "tests.fakes.auth_server", *options, stdout=subprocess.PIPE, log=log) as process:
        assert process.stdout is not None
        origin = process.stdout.readline().decode().strip()
        assert origin, "the fake authorization server did not start"
        yield origin


def upstream_stdio(*options: str, module: str = "tests.fakes.upstream") -> dict[str, Any]:
    """A `mcpServers` entry that starts `tests.fakes.upstream` (or another of the fakes) over stdio."""
    command, args = sooner(module, "--stdio", *options)
    return {"command": command, "args": args, "cwd": str(ROOT)}


def write_config(folder: Path, config: dict[str, Any], name: str = "gateway") -> Path:
    """The configuration as a file, with its state beside it; unless told otherwise a stopped gateway waits a second for calls."""
    path = folder / f"{name}.json"
    config = _on_the_sdk_path(config) if os.environ.get(SDK_PATH) else config
    if (address := os.environ.get(TASK_ENGINE)) is not None:
        config = {**config, "tasks": {**temporal_tasks(folder, address), **config.get("tasks", {})}}
    server = config.get("server", {})
    http = {"drainSeconds": 1, **server.get("http", {})}
    path.write_text(json.dumps({"storage": {"dir": str(folder / f"{name}-state")}, **config, "server": {**server, "http": http}}))
    return path


def temporal_tasks(folder: Path, address: str) -> dict[str, Any]:
    """The section `tasks` of a gateway whose tasks a Temporal server dispatches; its task queue belongs to the test's folder."""
    return {"engine": "temporal", "temporal": {"address": address, "taskQueue": f"test-{folder}", "ui": "http://127.0.0.1:8233"}}


def _on_the_sdk_path(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the fast path off, except where the test sets `directPath`."""
    server, policies = config.get("server", {}), config.get("policies", {})
    off = {name: {"directPath": "off", **policies.get(name, {})} for name in config.get("mcpServers", {})}
    http = {"directPath": "off", **server.get("http", {})}
    return {**config, "policies": {**policies, **off}, "server": {**server, "http": http}}


@contextmanager
def gateway_http(folder: Path, config: dict[str, Any], name: str = "gateway", env: dict[str, str] | None = None) -> Generator[str]:
    """Run a gateway over HTTP and yield its endpoint's URL when it is ready."""
    port = free_port()
    path = write_config(folder, config, name)
    log = folder / f"{name}.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), env=env, log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}/mcp"


def wait_until_ready(
    process: Child, url: str, log: Path, seconds: float = START_SECONDS, tls: ssl.SSLContext | None = None
) -> None:
    """Until `url` answers 200, or fail with what the process said."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError, urllib.error.HTTPError):
            with urllib.request.urlopen(url, timeout=2, context=tls) as answer:
                if answer.status == 200:
                    return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"the gateway did not become ready: {log.read_text()[-2000:]}")


def gateway_command(path: Path) -> tuple[str, list[str]]:
    """Return the command and arguments with which an IDE starts a gateway over stdio."""
    return sooner("gateway", "run", "--stdio", "--config", str(path))


def raw_stdio(told: dict[str, Any], *options: str) -> dict[str, Any]:
    """A `mcpServers` entry that starts `tests.fakes.raw_upstream` over stdio."""
    command, args = sooner("tests.fakes.raw_upstream", "--stdio", *options, json.dumps(told))
    return {"command": command, "args": args, "cwd": str(ROOT)}


@contextmanager
def raw_http(told: dict[str, Any], *options: str) -> Generator[str]:
    """`tests.fakes.raw_upstream` over HTTP; yields its URL."""
    with child("-m", "tests.fakes.raw_upstream", "--http", *options, json.dumps(told), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, "the raw upstream did not start"
        yield url
