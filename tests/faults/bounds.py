"""Measures the memory, descriptors and child processes of a running gateway, as the system counts them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.fakes.running import child, free_port, wait_until_ready, write_config

SPARE_DESCRIPTORS = 12
"""Descriptors that connection pools and keep-alive connections may hold in addition to those of an idle gateway."""

SPARE_BYTES = 24 << 20
"""Memory that the Python interpreter does not return to the system after work."""


@dataclass(frozen=True)
class Held:
    """The resources that a process holds at one moment."""

    descriptors: int
    resident: int
    children: int


@dataclass(frozen=True)
class Meter:
    """Measures the resources of one gateway process."""

    url: str
    process: int

    def now(self) -> Held:
        """Return the resources that the gateway holds now."""
        folder = Path(f"/proc/{self.process}")
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return Held(len(list((folder / "fd").iterdir())), resident, len(self.children()))

    def children(self) -> list[int]:
        """Return the ids of the gateway's child processes, including zombies."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdecimal() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.process:
                    found.append(int(entry.name))
        return found

    async def until_back(self, before: Held, *, seconds: float = 20, pooled: int = 0) -> None:
        """Wait until the gateway holds about as much as `before`. Connection pools may have grown by `pooled` connections."""
        before = dataclasses.replace(before, descriptors=before.descriptors + pooled)
        with anyio.move_on_after(seconds):
            while not self._is_back(now := self.now(), before):
                await anyio.sleep(0.1)
        now = self.now()
        assert now.descriptors <= before.descriptors + SPARE_DESCRIPTORS, (before, now, self._open())
        assert now.children <= before.children, (before, now)
        assert now.resident <= before.resident + SPARE_BYTES, (before, now)

    @staticmethod
    def _is_back(now: Held, before: Held) -> bool:
        fits = now.descriptors <= before.descriptors + SPARE_DESCRIPTORS and now.children <= before.children
        return fits and now.resident <= before.resident + SPARE_BYTES

    def _open(self) -> list[str]:
        found: list[str] = []
        for entry in Path(f"/proc/{self.process}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(entry))
        return sorted(found)


@contextmanager
def metered(folder: Path, config: dict[str, Any]) -> Generator[Meter]:
    """Start a gateway over HTTP, wait until it is ready, and yield its meter."""
    port = free_port()
    log = folder / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(write_config(folder, config)), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield Meter(f"http://127.0.0.1:{port}/mcp", process.pid)
