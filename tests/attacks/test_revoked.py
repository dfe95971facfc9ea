"""A key is revoked while its call runs: the call ends on every path, and its server receives the cancellation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.api_keys import KeyStore
from gateway.server.sdk_path.call_methods import KEY_GONE
from tests.fakes.inside import gateway_inside
from tests.fakes.running import upstream_http
from tests.interaction.wire import Era, Wire, over_http

pytestmark = [pytest.mark.attack(5), pytest.mark.timeout(90)]


async def stats(wire: Wire) -> dict[str, Any]:
    return (await wire.send("tools/call", name="up__stats", arguments={}))["result"]["structuredContent"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("path", ["auto", "off"])
async def test_call_ends_with_its_callers_key_and_other_callers_go_on(tmp_path: Path, path: str, era: Era) -> None:
    """With `auto` the fast path starts the call and hands it over to the SDK path."""
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    gone, stays = store.add("gone"), store.add("stays")
    answers: dict[str, dict[str, Any]] = {}
    with upstream_http() as url:
        config = {"mcpServers": {"up": {"type": "http", "url": url}}, "server": {"http": {"directPath": path}}}
        with gateway_inside(tmp_path, config) as gateway:
            async with (
                over_http(gateway.url, era, token=gone.token, tasks=False) as leaver,
                over_http(gateway.url, era, token=stays.token, tasks=False) as other,
                over_http(gateway.url, era, token=stays.token, tasks=False) as looking,
                anyio.create_task_group() as tasks,
            ):

                async def hang(name: str, wire: Wire) -> None:
                    answers[name] = await wire.send("tools/call", name="up__hang", arguments={})

                tasks.start_soon(hang, "gone", leaver)
                tasks.start_soon(hang, "stays", other)
                with anyio.fail_after(20):
                    while (await stats(looking))["calls"].get("hang") != 2:
                        await anyio.sleep(0.05)
                store.revoke(gone.id)
                with anyio.fail_after(20):
                    while "gone" not in answers or (await stats(looking))["cancelled"].get("hang") != 1:
                        await anyio.sleep(0.05)
                assert "stays" not in answers
                store.revoke(stays.id)
    result = answers["gone"]["result"]
    assert result["isError"]
    assert result["content"][0]["text"] == KEY_GONE
