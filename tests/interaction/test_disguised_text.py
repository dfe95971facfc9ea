"""A text that a server also sends as an image is searched for hidden characters, however the message was decoded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.inside import gateway_inside
from tests.fakes.running import raw_http, raw_stdio
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(60)

SHOWN = "plain words, and nothing else " * 1_300
HIDING = SHOWN + "\u202e"
RESULT: dict[str, Any] = {
    "content": [{"type": "image", "mimeType": "image/png", "data": HIDING}],
    "structuredContent": {"result": HIDING},
}
TOLD: dict[str, Any] = {"tools": [{"name": "show", "inputSchema": {"type": "object"}}], "results": {"show": RESULT}}


@pytest.mark.attack(15)
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_text_that_is_also_an_image_hides_nothing(tmp_path: Path, era: Any) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(raw_http(TOLD, "--modern"))
        config = {"mcpServers": {"http": {"type": "http", "url": url}, "stdio": raw_stdio(TOLD, "--modern")}}
        gateway = stack.enter_context(gateway_inside(tmp_path, config))
        async with connected(Way("http", era, "up"), gateway.url) as (client, _):
            for server in ("http", "stdio"):
                result: Any = await client.call_tool(f"{server}__show", {})
                assert result.structured_content == {"result": SHOWN}
                assert result.content[0].type == "image"
