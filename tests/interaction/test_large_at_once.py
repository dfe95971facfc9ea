"""Many large results at once: each waits for its turn and arrives whole, over both transports and in both eras."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.large import lines_text
from tests.fakes.running import gateway_http, upstream_http, upstream_stdio
from tests.interaction.ways import Era, Way, connected

MODULE = "tests.fakes.large"
COUNT = 20_000
"""Lines that make over 1 MiB of text."""

WHOLE = lines_text(COUNT)
TURNS = {"server": {"largeResultBytes": 1_048_576}}


@pytest.mark.fault(20)
async def test_large_results_of_many_calls_arrive_whole(tmp_path: Path) -> None:
    kinds: dict[str, tuple[str, ...]] = {"new-http": (), "old-stdio": ("--legacy",)}
    ends: dict[str, str] = {}
    with ExitStack() as stack:
        servers: dict[str, Any] = {}
        for name, options in kinds.items():
            is_http = name.endswith("http")
            url = stack.enter_context(upstream_http(*options, module=MODULE)) if is_http else ""
            servers[name] = {"type": "http", "url": url} if is_http else upstream_stdio(*options, module=MODULE)
        policies = {name: {"maxResultBytes": 100_000} for name in kinds}
        front = stack.enter_context(gateway_http(tmp_path, {"mcpServers": servers, "policies": policies, **TURNS}))

        async def call(era: Era, name: str) -> None:
            way = Way("http", era, name)
            async with connected(way, front) as (client, _):
                result: Any = await client.call_tool(way.name("lines"), {"count": COUNT})
                [note] = result.meta["dev.moongate/shortened"]
                assert note["bytes"] == len(WHOLE.encode())
                assert WHOLE.startswith(result.content[0].text)
                part: Any = await client.call_tool("read_result", {"id": note["id"], "lines": f"{COUNT - 1}-"})
                ends[str(way)] = part.content[0].text

        with anyio.fail_after(100):
            async with anyio.create_task_group() as tasks:
                for name in [*kinds, *kinds]:
                    for era in ("legacy", "modern"):
                        tasks.start_soon(call, era, name)
    assert len(ends) == 4
    for end in ends.values():
        assert "\n".join(WHOLE.split("\n")[-2:]) in end
