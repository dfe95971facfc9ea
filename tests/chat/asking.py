"""Helper of the chat tests: one model call, whole or streamed."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.chat.openai_base import OpenAIClientBase
from gateway.types.responses import ChatResponse

KEY = "sk-very-secret"
WHOLE, STREAMED = False, True

both_ways = pytest.mark.parametrize("stream", [WHOLE, STREAMED], ids=["whole", "streamed"])


async def ask(client: OpenAIClientBase, stream: bool, messages: Any = "hi", options: Any = None) -> ChatResponse:
    """Make one model call; `options` may contain a provider's own."""
    options = dict(options or {}, loop={"enabled": False})
    with anyio.fail_after(20):
        if stream:
            return await client.get_response(messages, stream=True, options=options).get_final_response()
        return await client.get_response(messages, options=options)
