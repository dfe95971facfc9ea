"""The running parts the interaction suite shares: four upstreams, a gateway before them, and a second one before that."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.client.stdio import StdioServerParameters

from tests.fakes.running import ROOT, gateway_command, gateway_http, upstream_http, upstream_stdio, write_config
from tests.interaction.ways import Way

RELAY: dict[str, Any] = {"sampling": {"mode": "relay", "maxRequests": None}}
RELAY_ROOTS: dict[str, Any] = {**RELAY, "roots": {"mode": "relay"}}


@dataclass(frozen=True)
class Gateways:
    """The URLs of both gateways, and the configuration file of a gateway over stdio."""

    front: str
    second: str
    stdio_config: Path

    def target(self, way: Way) -> str | StdioServerParameters:
        """Return the URL or command that a client of `way` connects to."""
        if way.front == "stdio":
            command, args = gateway_command(self.stdio_config)
            return StdioServerParameters(command=command, args=args, cwd=ROOT)
        return self.front if way.front == "http" else self.second


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateways]:
    folder = tmp_path_factory.mktemp("gateways")
    with ExitStack() as stack:
        new, old = stack.enter_context(upstream_http()), stack.enter_context(upstream_http("--legacy"))
        over_http = {"new-http": {"type": "http", "url": new}, "old-http": {"type": "http", "url": old}}
        servers = {**over_http, "new-stdio": upstream_stdio(), "old-stdio": upstream_stdio("--legacy")}
        front = stack.enter_context(gateway_http(folder, relaying(servers), "front"))
        hub = {"mcpServers": {"hub": {"type": "http", "url": front}}, "policies": {"hub": RELAY_ROOTS}}
        second = stack.enter_context(gateway_http(folder, hub, "second"))
        stdio = write_config(folder, relaying(over_http), "stdio")
        yield Gateways(front, second, stdio)


def relaying(servers: dict[str, Any]) -> dict[str, Any]:
    """A configuration over these servers, each a second time with roots relayed: a child process then is one caller's own."""
    twins = {f"{name}-roots": entry for name, entry in servers.items()}
    policies = dict.fromkeys(servers, RELAY) | dict.fromkeys(twins, RELAY_ROOTS)
    return {"mcpServers": servers | twins, "policies": policies}
