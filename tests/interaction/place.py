"""A gateway over HTTP whose agents use a scripted model, and the command of the same gateway over stdio."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.client.stdio import StdioServerParameters

from tests.cli.processes import moongate
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import ROOT, gateway_command, gateway_http


@dataclass(frozen=True)
class Place:
    """The URL of the gateway over HTTP, the configuration of both gateways, their model and environment."""

    url: str
    path: Path
    model: ScriptedServer
    env: dict[str, str]

    def target(self, front: str) -> Any:
        """Return the URL or command that a client of the SDK connects to."""
        if front == "http":
            return self.url
        command, args = gateway_command(self.path)
        return StdioServerParameters(command=command, args=args, cwd=ROOT, env={**os.environ, **self.env})

    def cli(self, *arguments: str) -> Any:
        """Run a `moongate` command with this configuration and return its JSON output."""
        return moongate(*arguments, "--json", "--config", str(self.path), cwd=self.path.parent).data

    async def messages(self) -> list[dict[str, Any]]:
        """Return the last request to the model."""
        return (await self.model.requests())[-1]["body"]["messages"]


@contextmanager
def place_of(folder: Path, config: dict[str, Any]) -> Generator[Place]:
    """Start a gateway and its scripted model, and yield their place. Agents of `config` name the model `openai-chat:…`."""
    with openai_server() as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        with gateway_http(folder, config, env=env) as url:
            yield Place(url, folder / "gateway.json", model, env)
