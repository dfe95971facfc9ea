"""Each response reaches the caller that sent the request, however many callers share the gateway, its connections and a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.attacks.test_envelopes import ACCEPT, META
from tests.fakes.running import gateway_http, upstream_http, upstream_stdio

MODERN = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}


async def no_answer_crosses(folder: Path, callers: int, calls: int) -> None:
    """Have callers with different keys call both servers at once with the same request ids; each must receive its own text."""
    keys = KeyStore(folder / "gateway-state" / "keys.json")
    made = [keys.add(f"caller-{number}").token for number in range(callers)]
    with upstream_http() as far, gateway_http(folder, {"mcpServers": {"pipe": upstream_stdio("--legacy"), "far": {"url": far}}}) as url:
        limits = httpx2.Limits(max_connections=50)
        async with httpx2.AsyncClient(timeout=60, limits=limits) as client:

            async def ask(number: int, key: str) -> None:
                for turn in range(calls):
                    words, tool = f"of {number}, time {turn}", ("pipe__echo", "far__echo")[turn % 2]
                    params: dict[str, Any] = {"name": tool, "arguments": {"text": words}, "_meta": META}
                    body = {"jsonrpc": "2.0", "id": turn, "method": "tools/call", "params": params}
                    answer = await client.post(url, headers={**MODERN, "mcp-name": tool, "authorization": f"Bearer {key}"}, json=body)
                    assert answer.status_code == 200, answer.text
                    assert f'"{words}"' in answer.text
                    assert answer.text.count("of ") == answer.text.count(words)

            async with anyio.create_task_group() as tasks:
                for number, key in enumerate(made):
                    tasks.start_soon(ask, number, key)


@pytest.mark.attack(7)
@pytest.mark.timeout(60)
async def test_thirty_callers_at_once_each_get_their_own_answers(tmp_path: Path) -> None:
    await no_answer_crosses(tmp_path, 30, 10)


@pytest.mark.faults
@pytest.mark.attack(7)
@pytest.mark.timeout(1800)
async def test_two_hundred_callers_get_their_own_responses(tmp_path: Path) -> None:
    await no_answer_crosses(tmp_path, 200, 100)
