"""Requests on one connection with similar heads: both paths judge each request only by its own head."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.api_keys import NewKey
from tests.server.both_paths import META, TEXT, VERSION, heads, request, same, standing


async def test_each_request_of_a_connection_is_judged_by_its_own_head(tmp_path: Path) -> None:
    """Each head and body differs a little from earlier requests on the connection; each of its parts was valid in one of them."""
    chance = random.Random(11)
    pick = chance.choice
    tracing: list[Any] = [{}, {}, {"traceparent": "00-1"}, {"traceparent": "00-2", "x/y": 1}, {"x/y": True}]
    tracing += [{"progressToken": 1}, {f"{META}logLevel": "info"}, {"dev.moongate/via": ["me"]}]
    clients: list[Any] = [*({},) * 6, {f"{META}clientInfo": {"name": "u", "version": "1"}}]
    clients.append({f"{META}clientCapabilities": {"roots": {"a": 1}}})
    clients += [{f"{META}clientCapabilities": {"roots": {"a": True}}}, {f"{META}protocolVersion": "2025-11-25"}]
    async with standing(tmp_path) as setup:
        setup.echo.told = {"content": [TEXT]}
        for _ in range(300):
            name = pick(("echo", "echo", "more", "more", "asking", "none"))
            lines = heads(pick((*(name,) * 8, "echo", "more", "=?base64?ZWNobw==?=", "Echo", "echo,more")))
            lines |= {"traceparent": pick(("00-1", "00-2"))} if chance.random() < 0.5 else {}
            if chance.random() < 0.1:
                lines["mcp-protocol-version"], lines["mcp-method"] = pick((VERSION, "2025-11-25")), pick(("tools/call", "tools/list"))
            body = request(None, pick(clients) | pick(tracing), name=name, number=pick((1, 10, "a")))
            await same(setup, lines, json.dumps(body).encode(), door=setup.kept)
        assert 60 < setup.taken < 240


async def test_api_key_is_checked_for_every_request_of_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("gateway.auth.api_keys.time.time", lambda: now)
    async with standing(tmp_path) as setup:
        body = json.dumps(request()).encode()

        async def asks(key: NewKey | None) -> Any:
            """Send a request with this key; return the status, the principal, and whether the fast path took it."""
            taken = setup.taken
            lines = [*heads().items(), *([] if key is None else [("authorization", f"Bearer {key.token}")])]
            status, *_ = await same(setup, lines, body, door=setup.kept)
            return status, setup.echo.calls[0][1] if setup.echo.calls else None, setup.taken - taken

        await asks(None)
        assert await asks(None) == (200, "local", 1)

        async def are_let_in() -> NewKey:
            first, second = (setup.keys.add(f"key {n}", expires_days=1) for n in range(2))
            for key in (first, first, second, second, first, second):
                assert await asks(key) == (200, f"key:{key.id}", 1)
            assert await asks(None) == (401, None, 0)
            setup.keys.revoke(first.id)
            assert await asks(first) == (401, None, 0)
            assert await asks(second) == (200, f"key:{second.id}", 1)
            return second

        expired = await are_let_in()
        now += 86_401
        assert await asks(expired) == (401, None, 0)
        revoked = await are_let_in()
        setup.keys.revoke(revoked.id)
        assert await asks(revoked) == (401, None, 0)
        setup.keys.revoke(expired.id)
        assert await asks(revoked) == (200, "local", 1), "without keys every request is local"
