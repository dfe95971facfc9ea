"""`ScriptedChatClient`: a public chat client that returns scripted responses, for tests of agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gateway.chat.chat_client import BaseChatClient
from gateway.errors import ModelError
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate

Reply = str | Content | Sequence[Content | str] | Exception
"""A scripted response of the model: text, contents such as tool calls, or an exception to raise."""


class ScriptedChatClient(BaseChatClient):
    """Chat client that returns `replies` in order, and raises `ModelError` if none is left.

    `requests` stores the messages and options of every call, for assertions.
    """

    def __init__(self, replies: Sequence[Reply], *, model: str = "scripted") -> None:
        super().__init__(model)
        self._replies = list(replies)
        self.requests: list[tuple[list[Message], ChatOptions]] = []

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        self.requests.append((list(messages), options))
        if len(self.requests) > len(self._replies):
            raise ModelError("The script has no reply left for this call.")
        reply = self._replies[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        for item in [reply] if isinstance(reply, str | Content) else reply:
            content = Content.from_text(item) if isinstance(item, str) else item
            yield ChatResponseUpdate([content], "assistant", f"scripted-{len(self.requests)}", self.model)
