"""The number of resources that one client can subscribe to is limited, in both eras."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from gateway.server import watches
from gateway.server.sdk_path import listen_streams
from tests.fakes.inside import gateway_inside
from tests.faults.far import far_server
from tests.interaction.wire import modern_params, over_http


@pytest.mark.attack(21)
async def test_client_watches_so_many_resources_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (watches, listen_streams):
        monkeypatch.setattr(module, "MAX_WATCHED", 2)
    uris = [f"far+page://{name}" for name in ("one", "two", "three")]
    with far_server(modern=False) as far, gateway_inside(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far.url}}}) as gateway:
        async with over_http(gateway.url, "legacy") as wire:
            answers = [await wire.send("resources/subscribe", uri=uri) for uri in uris]
            again = await wire.send("resources/subscribe", uri=uris[0])
            await wire.send("resources/unsubscribe", uri=uris[0])
            after = await wire.send("resources/subscribe", uri=uris[2])
        params = modern_params({"notifications": {"resourceSubscriptions": uris}}, tasks=False, capabilities={})
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
        headers["Mcp-Method"] = "subscriptions/listen"
        async with httpx2.AsyncClient(timeout=20) as http:
            refused = await http.post(gateway.url, json=body, headers=headers)
    errors = [answer.get("error", {}).get("code") for answer in (*answers, again, after)]
    assert errors == [None, None, -32602, None, None]
    assert "at most 2 resources" in refused.text
