"""Gateways with state folders of their own, one installation key and one database, as on different machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.fakes.nursery import Child
from tests.tasks.test_gateways import start_gateway, stop


class SharedGateways:
    """Starts the gateways one after the other, and stops them."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.processes: list[Child] = []
        self.urls: list[str] = []

    def start_with(self, config: dict[str, Any]) -> None:
        """Start a gateway with a configuration, to which the database is added. Blocks until the gateway is ready."""
        state = self.folder / f"state-{len(self.urls)}" / "moongate"
        state.mkdir(mode=0o700, parents=True)
        if self.urls:
            shutil.copy(self.folder / "state-0" / "moongate" / "installation-key", state)
        shared = {**config, "storage": {"url": self.database}}
        process, url = start_gateway(self.folder, "gateway", shared, XDG_STATE_HOME=str(state.parent))
        self.processes.append(process)
        self.urls.append(url)

    def stop(self) -> None:
        """Kill all gateways."""
        for process in self.processes:
            stop(process)
