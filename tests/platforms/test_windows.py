"""What a gateway needs on Windows, as far as another system can show it: imports, signals, a call over HTTP, and job objects."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.job_objects import ExtendedLimits, JobObject, kill_on_close
from gateway.stop_signals import handled_signals
from tests.fakes.running import ROOT, child, free_port, upstream_http, wait_until_ready, write_config

pytestmark = pytest.mark.fleet

SANDBOX = ("connection_broker", "disk_usage", "kernel", "landlock", "launcher", "namespaces", "seccomp")
LINUX_ONLY = {f"gateway.skills.sandbox.{name}" for name in SANDBOX}
"""Modules that only run inside the sandbox, which is for Linux only; no other module imports them when it is imported."""


@pytest.mark.timeout(120)
def test_only_the_sandbox_needs_posix_modules_to_be_imported() -> None:
    argv = [sys.executable, "-m", "tests.platforms.windows", "imports"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == LINUX_ONLY, done.stdout


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_gateway_without_posix_functions_serves_a_call_and_stops(tmp_path: Path, number: int) -> None:
    port, log = free_port(), tmp_path / "gateway.log"
    with upstream_http() as url:
        path = write_config(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}})
        argv = ("-m", "tests.platforms.windows", "moongate", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
        with child(*argv, log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log, 60)
            assert _echo(f"http://127.0.0.1:{port}/mcp") == "hello"
            os.kill(process.pid, number)
            assert process.wait(20) == 0, log.read_text()


def _echo(url: str) -> str:
    facts: dict[str, Any] = {"protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in facts.items()}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "up__echo",
    }
    params = {"name": "up__echo", "arguments": {"text": "hello"}, "_meta": meta}
    answer = httpx2.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers=headers, timeout=20)
    return answer.json()["result"]["content"][0]["text"]


async def test_signal_handlers_deliver_signals_in_order_and_are_removed() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with handled_signals(signal.SIGUSR1, signal.SIGUSR2) as received:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert await anext(received) == signal.SIGUSR2
        os.kill(os.getpid(), signal.SIGUSR1)
        assert await anext(received) == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == before


def test_limits_of_a_job_have_the_layout_of_winnt_h() -> None:
    """Size and place of the flags on 64-bit Windows; Windows refuses a structure of another size."""
    assert (ctypes.sizeof(ExtendedLimits), ExtendedLimits.basic.size, ExtendedLimits.io_counters.offset) == (144, 64, 64)
    assert bytes(kill_on_close())[16:20] == (0x2000).to_bytes(4, "little")


class Kernel:
    """Records the calls of kernel32's functions. Handles have more than 32 bits, as they may have on Windows."""

    def __init__(self, *, refused: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            return 0 if name == self._refused else {"CreateJobObjectW": 1 << 40, "OpenProcess": 1 << 41}.get(name, 1)

        self.__dict__[name] = function
        return function


def with_kernel(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> JobObject:
    def load(name: str, use_last_error: bool) -> Kernel:
        return kernel

    monkeypatch.setattr(ctypes, "WinDLL", load, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 5, raising=False)
    monkeypatch.setattr(ctypes, "WinError", OSError, raising=False)
    return JobObject()


def test_job_ends_its_processes_when_it_is_killed_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    job = with_kernel(monkeypatch, kernel)
    job.assign(42)
    job.kill()
    job.close()
    names = [call[0] for call in kernel.calls]
    opened = ["CreateJobObjectW", "SetInformationJobObject", "OpenProcess", "AssignProcessToJobObject", "CloseHandle"]
    assert names == [*opened, "TerminateJobObject", "CloseHandle"]
    assert kernel.calls[1][1:3] == (1 << 40, 9) and kernel.calls[1][4] == 144
    assert kernel.calls[2][3] == 42 and kernel.calls[3] == ("AssignProcessToJobObject", 1 << 40, 1 << 41)
    assert kernel.calls[4] == ("CloseHandle", 1 << 41) and kernel.calls[6] == ("CloseHandle", 1 << 40)


@pytest.mark.parametrize(
    ("refused", "closed"),
    [("CreateJobObjectW", []), ("SetInformationJobObject", [1 << 40]), ("OpenProcess", []), ("AssignProcessToJobObject", [1 << 41])],
)
def test_refused_job_raises_and_leaves_no_handle_of_a_process(monkeypatch: pytest.MonkeyPatch, refused: str, closed: list[int]) -> None:
    kernel = Kernel(refused=refused)
    job = with_kernel(monkeypatch, kernel)
    with pytest.raises(OSError):
        job.assign(42)
    assert [call[1] for call in kernel.calls if call[0] == "CloseHandle"] == closed
