"""What both OpenAI-compatible clients share: the endpoint, the package's client, and the guard around a request."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread
import httpx2

from gateway.chat.base import BaseChatClient
from gateway.chat.middleware import ChatContext
from gateway.chat.openai_errors import to_model_error
from gateway.errors import ModelError
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import Middleware
from gateway.types.options import ChatOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

REQUEST_TIMEOUT_SECONDS = 120.0
"""One model request, or the silence between two parts of a streamed one."""

MAX_RETRIES = 2
"""Repeats of a request that failed before it gave anything, with the package's own backoff and jitter."""

DEFAULT_BASE_URL = "https://api.openai.com/v1"

PLACEHOLDER_KEY = "not-needed"
"""Sent where only a base URL is set: local servers want a key to be there, not to be right."""


class OpenAIClientBase(BaseChatClient):
    """An OpenAI-compatible endpoint and model. Owns its connection pool: `aclose` it."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        middleware: Sequence[Middleware[ChatContext]] = (),
    ) -> None:
        """`api_key` and `base_url` are taken as given; see `resolve` for the environment. Nothing connects yet."""
        super().__init__(model, middleware)
        self._api_key = api_key
        self._base_url = base_url or DEFAULT_BASE_URL
        self._timeout_seconds = timeout_seconds
        self._client: AsyncOpenAI | None = None

    @property
    def _openai(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                api_key=self._api_key or PLACEHOLDER_KEY,
                base_url=self._base_url,
                timeout=self._timeout_seconds,
                max_retries=MAX_RETRIES,
            )
        return self._client

    async def aclose(self) -> None:
        """Close the connections; the client may be used again afterwards."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    @asynccontextmanager
    async def _guarded(self, model: str) -> AsyncGenerator[None]:
        """Turn the package's errors, and a stream that breaks, into `ModelError`."""
        import openai

        try:
            yield
        except openai.OpenAIError as error:
            raise to_model_error(error, model=model, base_url=self._base_url) from None
        except (httpx2.HTTPError, json.JSONDecodeError) as error:
            raise ModelError(f"Model {model!r} broke off its answer ({type(error).__name__}).", retryable=True) from None


async def load_openai() -> None:
    """Import the package in a thread: it takes seconds on a small machine, and other calls go on meanwhile."""
    if "openai" not in sys.modules:
        await anyio.to_thread.run_sync(import_module, "openai")


async def closing(stream: Any, model: str) -> AsyncGenerator[Any, None]:
    """The events of one of the package's streams; the response is released however iteration ends.

    Raises:
        ModelError: The connection broke before the end.
    """
    import openai

    async with stream:
        try:
            async for event in stream:
                yield event
        except openai.APITimeoutError:
            raise
        except openai.APIConnectionError:
            raise ModelError(f"Model {model!r} broke off its answer: the connection was lost.", retryable=True) from None


def tool_definitions(options: ChatOptions) -> list[tuple[str, str, JsonObject]]:
    """Name, description and parameters of the offered tools."""
    return [
        (tool.definition.name, tool.definition.description or "", cast("JsonObject", tool.definition.input_schema))
        for tool in options.get("tools") or ()
    ]


def as_text(value: JsonValue) -> str:
    """A tool result as the text a model reads."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
