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
"""What pools and keep-alive may hold more of than at rest."""

SPARE_BYTES = 24 << 20
"""What an interpreter keeps for itself after work."""


@dataclass(frozen=True)
class Held:
    """One look at the process."""

    descriptors: int
    resident: int
    children: int


@dataclass(frozen=True)
class Meter:
    """Looks at one gateway."""

    url: str
    process: int

    def now(self) -> Held:
        """What it holds."""
        folder = Path(f"/proc/{self.process}")
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return Held(len(list((folder / "fd").iterdir())), resident, len(self.children()))

    def children(self) -> list[int]:
        """Its children, the dead that nobody waited for among them."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdecimal() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.process:
                    found.append(int(entry.name))
        return found

    async def until_back(self, before: Held, *, seconds: float = 20, pooled: int = 0) -> None:
        """Until it holds what it held `before`, and little more memory; pools may have grown by as many connections as `pooled`."""
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
    """A gateway over HTTP, ready."""
    port = free_port()
    log = folder / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(write_config(folder, config)), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield Meter(f"http://127.0.0.1:{port}/mcp", process.pid)
