"""Which clients are notified of changes, and when: one client's behaviour never affects another's notifications."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as t
import pytest
from mcp.client.client import Client
from mcp.server.subscriptions import PromptsListChanged, ToolsListChanged
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from gateway.catalog import Catalog
from gateway.gate.pipeline import GateServices
from gateway.server import changes
from gateway.server.gateway_server import GatewayServer
from gateway.server.sdk_path import listen_streams
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import ChangeKind


class ToldCatalog(Catalog):
    """A catalog whose lists change when the test says so."""

    def change(self, kind: ChangeKind) -> None:
        self._notify(kind)


async def settled() -> None:
    """Nothing starts here."""


@asynccontextmanager
async def serving(catalog: Catalog) -> AsyncGenerator[GatewayServer]:
    """A server over that catalog."""
    server = GatewayServer(
        catalog,
        name="t",
        version="1",
        own_id="me",
        page_size=10,
        instructions=lambda _: "",
        ask_timeout_seconds=60,
        state_key=bytes(32),
    )
    async with server:
        yield server


def said(method: str, params: dict[str, Any], id_: int | None = None) -> SessionMessage:
    """As a client writes it."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params, **({} if id_ is None else {"id": id_})}
    return SessionMessage(t.jsonrpc_message_adapter.validate_python(body))


@asynccontextmanager
async def client_that_reads_nothing_more(server: GatewayServer) -> AsyncGenerator[None]:
    """Connect a 2025 client that completes the handshake and then stops reading from its connection."""
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:
        read, write = ours
        tasks.start_soon(server.mcp.run, theirs[0], theirs[1], server.mcp.create_initialization_options())
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "deaf", "version": "1"}}
        await write.send(said("initialize", hello, 1))
        await read.receive()
        await write.send(said("notifications/initialized", {}))
        yield
        tasks.cancel_scope.cancel()


async def test_client_without_subscription_is_notified_of_changes() -> None:
    catalog = ToldCatalog([], GateServices(EventStream()), name_budget=64, settled=settled)
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    async with serving(catalog) as server, Client(server.mcp, mode="legacy", message_handler=hear):
        catalog.change("tools")
        with anyio.fail_after(20):
            while not heard:
                await anyio.sleep(0.01)
    assert [type(what) for what in heard] == [t.ToolListChangedNotification]


async def test_client_that_reads_nothing_delays_no_other_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SEND_SECONDS", 100)  # in this test no notification times out
    catalog = ToldCatalog([], GateServices(EventStream()), name_budget=64, settled=settled)
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    async with serving(catalog) as server, client_that_reads_nothing_more(server):
        async with Client(server.mcp, mode="legacy", message_handler=hear):
            with anyio.fail_after(20):
                while len(heard) < 3:
                    catalog.change("tools")
                    await anyio.sleep(0.02)
    assert {type(what) for what in heard} == {t.ToolListChangedNotification}


async def test_new_listener_gets_only_later_changes_on_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = ToldCatalog([], GateServices(EventStream()), name_budget=64, settled=settled)
    async with serving(catalog) as server, Client(server.mcp, mode="2026-07-28") as client:
        catalog.change("tools")  # before the client opens its listen stream
        for _ in range(2):
            with anyio.fail_after(20):
                async with client.listen(tools_list_changed=True, prompts_list_changed=True) as events:
                    assert await anext(aiter(events)) == ToolsListChanged()
        monkeypatch.setattr(listen_streams, "MISSED_SECONDS", 0.0)
        with anyio.fail_after(20):
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as events:
                catalog.change("prompts")
                assert await anext(aiter(events)) == PromptsListChanged()
