"""Malformed and ambiguous responses: the call fails at once and with the same error on every path."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.inside import gateway_inside
from tests.fakes.running import raw_http, raw_stdio
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(90)

BROKE: dict[str, Any] = {"code": -32000, "message": "it broke"}
RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "all is well"}]}
MESSAGES: dict[str, dict[str, Any]] = {
    "both": {"result": RESULT, "error": BROKE},
    "stranger": {"id": 77_777, "result": RESULT},
    "nobodys": {"id": None, "error": BROKE},
    "request": {"method": "ping"},
}
"""Malformed responses by name. Over a pipe only the first has an id that identifies its request."""

TOLD = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in MESSAGES], "messages": MESSAGES}


async def hear(progress: float, total: float | None, message: str | None) -> None:
    """Ignore progress. A progress callback moves a call of a 2025 session to the SDK path."""


@pytest.mark.parametrize("path", ["auto", "off"])
async def test_malformed_response_fails_its_call_at_once(tmp_path: Path, path: str) -> None:
    with ExitStack() as stack:
        urls = {era: stack.enter_context(raw_http(TOLD, *flags)) for era, flags in (("modern", ["--modern"]), ("legacy", []))}
        servers: dict[str, Any] = {f"{era}-http": {"type": "http", "url": url} for era, url in urls.items()}
        servers |= {"modern-stdio": raw_stdio(TOLD, "--modern"), "legacy-stdio": raw_stdio(TOLD)}
        config = {"mcpServers": servers, "policies": {name: {"directPath": path} for name in servers}}
        gateway = stack.enter_context(gateway_inside(tmp_path, config))
        async with connected(Way("http", "modern", "up"), gateway.url) as (client, _):
            for server in servers:
                for name in MESSAGES if server.endswith("-http") else ["both"]:
                    for progress in (None, hear):
                        with anyio.fail_after(20):  # less than the call timeout of 60 s
                            answer: Any = await client.call_tool(f"{server}__{name}", {}, progress_callback=progress)
                        said = "it broke" if "error" in MESSAGES[name] else "something that is not MCP"
                        assert answer.is_error and said in answer.content[0].text, (server, name, answer)
