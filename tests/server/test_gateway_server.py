"""The server as a whole, in memory: properties that hold whatever a package below it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog import Catalog
from gateway.gate.pipeline import GateServices
from gateway.server.gateway_server import GatewayServer
from gateway.telemetry.gateway_events import EventStream


class BrokenCatalog(Catalog):
    """A catalog with a fault of our own."""

    async def read(self, uri: str, ctx: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    async def ready(self) -> None:
        raise RuntimeError("the password is hunter2")


async def settled() -> None:
    """Nothing starts here."""


def server_of(catalog: Catalog, instructions: Callable[[Principal], str]) -> GatewayServer:
    """Return a server of this catalog that is not entered."""
    return GatewayServer(
        catalog,
        name="t",
        version="1",
        own_id="me",
        page_size=10,
        instructions=instructions,
        ask_timeout_seconds=60,
        state_key=bytes(32),
    )


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("ask", ["read", "list"])
async def test_unexpected_exception_never_reaches_the_client(mode: Literal["legacy", "2026-07-28"], ask: str) -> None:
    catalog = BrokenCatalog([], GateServices(EventStream()), name_budget=64, settled=settled)
    server = server_of(catalog, lambda _: "")
    calls: dict[str, Callable[[Client], Awaitable[object]]] = {
        "read": lambda client: client.read_resource("data://x"),
        "list": lambda client: client.list_tools(),
    }
    async with server, Client(server.mcp, mode=mode) as client:
        with pytest.raises(MCPError) as caught:
            await calls[ask](client)
    assert (caught.value.error.code, caught.value.error.message) == (-32603, "Internal error")


async def test_many_changes_build_the_instructions_once() -> None:
    built: list[Principal] = []

    def instructions(caller: Principal) -> str:
        built.append(caller)
        return f"text {len(built)}"

    server = server_of(Catalog([], GateServices(EventStream()), name_budget=64, settled=settled), instructions)
    for _ in range(50):
        server.describe()
    assert [server.discovery(LOCAL)["instructions"] for _ in range(2)] == ["text 1", "text 1"]
    server.describe()
    assert server.introduction("2025-11-25", LOCAL)["instructions"] == "text 2"
    assert built == [LOCAL, LOCAL]
