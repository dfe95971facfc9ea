"""Machines of a test: gateways with one configuration, one database and one installation key, but a state folder for each."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.cli.processes import Ended, moongate_process
from tests.fakes.nursery import Child
from tests.fakes.postgres import postgres
from tests.fakes.running import write_config
from tests.tasks.test_gateways import start_gateway, stop


@dataclass
class Machines:
    """Starts gateways and commands on named machines. `machines` creates it."""

    folder: Path
    database: str
    env: dict[str, str] = field(default_factory=lambda: {"SITE_KEY": secrets.token_hex(32)})
    processes: dict[str, Child] = field(default_factory=dict[str, Child])
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    def write(self, **config: Any) -> Path:
        """Write the configuration of all machines. Return its path."""
        storage = {"url": self.database, "installationKey": "${env:SITE_KEY}"}
        http = {"http": {"drainSeconds": 1}}
        self.config = {"storage": storage, "server": http, **config}
        return write_config(self.folder, self.config)

    def env_of(self, name: str) -> dict[str, str]:
        """Return the environment of the machine `name`."""
        return {"XDG_STATE_HOME": str(self.folder / f"state-{name}"), **self.env}

    def start(self, name: str, **env: str) -> str:
        """Start the gateway of a machine, and return its URL."""
        process, url = start_gateway(self.folder, "gateway", self.config, **self.env_of(name), **env)
        self.processes[name] = process
        return url

    def stop(self, name: str) -> None:
        """Kill the gateway of a machine."""
        stop(self.processes[name])

    async def command(self, name: str, *arguments: str) -> Ended:
        """Run a command on a machine, without blocking the event loop."""
        path = str(self.folder / "gateway.json")
        return await anyio.to_thread.run_sync(
            lambda: moongate_process(*arguments, "--config", path, cwd=self.folder, env=self.env_of(name))
        )


@contextmanager
def machines(folder: Path, kind: str) -> Generator[Machines]:
    """Yield machines with a new database: `kind` is `sqlite` or `postgres`. Their gateways are killed at the end."""
    with _database(folder, kind) as database:
        made = Machines(folder, database)
        try:
            yield made
        finally:
            for name in made.processes:
                made.stop(name)


@contextmanager
def _database(folder: Path, kind: str) -> Generator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/shared.db"
        return
    with postgres() as server:
        yield server.database(f"machines_{secrets.token_hex(4)}")
