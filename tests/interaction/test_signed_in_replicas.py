"""Two gateways with one database, and users with access tokens: a call goes on at the other gateway, for its own user only."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.postgres import postgres
from tests.fakes.running import upstream_http
from tests.fakes.shared_gateways import SharedGateways
from tests.fakes.token_issuer import Issuer, token_issuer
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.fleet, pytest.mark.postgres, pytest.mark.timeout(90)]

RESOURCE = "https://hub.example.com/mcp"
SCOPES = {"ask": ["up/ask_*"], "echo": ["up/echo"]}
ANSWER: dict[str, Any] = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture
def pair(tmp_path: Path) -> Generator[tuple[Issuer, list[str]]]:
    with ExitStack() as stack:
        issuer = stack.enter_context(token_issuer())
        upstream = stack.enter_context(upstream_http("--legacy"))
        database = stack.enter_context(postgres()).database("signed_in")
        gateways = SharedGateways(tmp_path, database)
        stack.callback(gateways.stop)
        auth = {"resource": RESOURCE, "issuers": [{"issuer": issuer.url, "scopes": SCOPES}]}
        for _ in range(2):
            gateways.start_with({"mcpServers": {"up": {"type": "http", "url": upstream}}, "server": {"auth": auth}})
        yield issuer, gateways.urls


async def test_parked_call_of_a_user_continues_at_the_other_gateway(pair: tuple[Issuer, list[str]]) -> None:
    issuer, (first, second) = pair
    token, again, stranger = (issuer.token(RESOURCE, scope="ask", sub=sub, groups=["ops"]) for sub in ("alice", "alice", "bob"))
    async with over_http(first, "modern", token=token, tasks=False) as begun:
        asked = (await begun.send("tools/call", name="up__ask_name", arguments={}))["result"]
    (key,) = asked["inputRequests"]
    answers: dict[str, Any] = {"inputResponses": {key: ANSWER}, "requestState": asked["requestState"]}
    async with over_http(second, "modern", token=stranger, tasks=False) as other:
        refused = json.dumps(await other.send("tools/call", name="up__ask_name", arguments={}, **answers))
        assert "Ada" not in refused and ("error" in refused or "isError" in refused)
    async with over_http(second, "modern", token=again, tasks=False) as continued:
        assert "Ada" in json.dumps(await continued.send("tools/call", name="up__ask_name", arguments={}, **answers))


async def test_session_of_a_user_continues_at_the_other_gateway(pair: tuple[Issuer, list[str]]) -> None:
    issuer, (first, second) = pair
    async with over_http(first, "legacy", token=issuer.token(RESOURCE, scope="echo")) as wire:
        wire.url = second
        listed = (await wire.send("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed if tool["name"].startswith("up__")] == ["up__echo"]
        wire.headers["Authorization"] = f"Bearer {issuer.token(RESOURCE, scope='echo', sub='bob')}"
        assert "error" in await wire.send("tools/list")
