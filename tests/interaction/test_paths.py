"""Responses are the same on the fast path and on the SDK path, in every era and over every transport."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.fakes.inside import gateway_inside
from tests.fakes.running import upstream_http, upstream_stdio
from tests.interaction.conftest import relaying
from tests.interaction.ways import Way, cells, connected

pytestmark = pytest.mark.timeout(120)

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"text": "hello"}),
    ("echo", {"text": "ünï \u2028 \U0001f600"}),
    ("echo", {}),
    ("echo", {"text": 1}),
    ("echo", {"text": "hello", "more": True}),
    ("add", {"a": 1, "b": 2}),
    ("add", {"a": 2**70, "b": -0.5}),
    ("fail", {}),
    ("raise_error", {}),
    ("picture", {}),
    ("rich", {}),
    ("say", {}),
    ("say", {"level": "debug"}),
    ("progress", {}),
    ("ask_name", {}),
    ("ask_twice", {}),
    ("need_sampling", {}),
    ("big", {"bytes": 300_000}),
    ("missing", {}),
]

FOLLOWED = ("echo", "say", "progress")
"""Tools that are also called with a progress token."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """Start a gateway with the fast path and a gateway without the fast path, both with the same servers."""
    folder = tmp_path_factory.mktemp("paths")
    with ExitStack() as stack:
        new, old = stack.enter_context(upstream_http()), stack.enter_context(upstream_http("--legacy"))
        servers: dict[str, Any] = {"new-http": {"type": "http", "url": new}, "old-http": {"type": "http", "url": old}}
        config = relaying({**servers, "new-stdio": upstream_stdio(), "old-stdio": upstream_stdio("--legacy")})
        policies = {name: {**policy, "directPath": "off"} for name, policy in config["policies"].items()}
        long = {**config, "policies": policies, "server": {"http": {"directPath": "off"}}}
        yield (
            stack.enter_context(gateway_inside(folder, config, "short")).url,
            stack.enter_context(gateway_inside(folder, long, "long")).url,
        )


@pytest.mark.parametrize("way", cells(), ids=str)
async def test_fast_path_and_sdk_path_give_the_same_response(way: Way, both: tuple[str, str]) -> None:
    seen: list[list[Any]] = []
    for url in both:
        async with connected(way, url) as (client, heard):
            plain = [(call, await _call(client, way.name(call[0]), call[1], wants_progress=False)) for call in CALLS]
            followed = [(tool, await _call(client, way.name(tool), {"text": "hello"}, wants_progress=True)) for tool in FOLLOWED]
            asked = [ask.model_dump(mode="json", by_alias=True) for ask in heard.asked]
            logs = [log.model_dump(mode="json", by_alias=True) for log in heard.logs]
            seen.append([*plain, *followed, asked, logs])
    for short, long in zip(*seen, strict=True):
        assert short == long


async def _call(client: Any, tool: str, arguments: dict[str, Any], *, wants_progress: bool) -> Any:
    steps: list[Any] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    try:
        result = await client.call_tool(tool, arguments, progress_callback=hear if wants_progress else None)
    except MCPError as error:
        return error.error.model_dump(mode="json", by_alias=True)
    return result.model_dump(mode="json", by_alias=True)
