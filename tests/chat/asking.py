"""How the chat tests ask a client, whole or streamed."""

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
    """One model call; `options` may have what only a provider knows."""
    options = dict(options or {}, loop={"enabled": False})
    with anyio.fail_after(20):
        if stream:
            return await client.get_response(messages, stream=True, options=options).get_final_response()
        return await client.get_response(messages, options=options)
