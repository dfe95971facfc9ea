"""`ModelResolver`: from what an agent file says about its model to a chat client.

`auto` takes an OpenAI-compatible endpoint where the environment names one, else the connected client's own model,
else fails with what to set. `openai:NAME` and `openai-chat:NAME` pin the API. Owns the clients it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.chat.base import BaseChatClient
from gateway.chat.completions import OpenAIChatCompletionClient
from gateway.chat.openai_base import OpenAIClientBase
from gateway.chat.openai_endpoint import DEFAULT_BASE_URL, PLACEHOLDER_KEY
from gateway.chat.responses import OpenAIChatClient
from gateway.chat.sampling import SamplingChatClient
from gateway.errors import ModelError
from gateway.tools.context import CallContext

if TYPE_CHECKING:
    from gateway.chat.embeddings import OpenAIEmbeddingClient

DEFAULT_MODEL = "gpt-5-mini"
"""Model at OpenAI's own endpoint where neither the agent, nor `OPENAI_MODEL`, nor `defaults.model` names one."""

HOW_TO_SET = (
    "Set OPENAI_API_KEY (for OpenAI), or OPENAI_BASE_URL and OPENAI_MODEL (for any OpenAI-compatible server), in the "
    "environment of the gateway; or connect with a client that offers its own model through MCP sampling."
)


class ModelResolver:
    """Makes chat clients. One per gateway; `aclose` it at the end."""

    def __init__(self, environ: Mapping[str, str], default_model: str | None) -> None:
        """`default_model` is `defaults.model` of the configuration."""
        self._environ = environ
        self._default_model = default_model
        self._clients: dict[tuple[str, str], OpenAIClientBase] = {}
        self._embedders: dict[str, OpenAIEmbeddingClient] = {}

    def resolve(self, spec: str, ctx: CallContext) -> BaseChatClient:
        """The chat client for a model spec, for one run.

        Raises:
            ModelError: The spec is unknown, or nothing is configured; the text says exactly what to set.
        """
        kind, colon, name = spec.partition(":")
        if spec == "auto":
            return self._auto(ctx)
        if colon and name and kind in ("openai", "openai-chat"):
            if not self._has_endpoint():
                raise ModelError(f"Model {spec!r} needs an endpoint. {HOW_TO_SET}")
            return self._client(kind, name)
        raise ModelError(f"Model {spec!r} is not known; write `auto`, `openai:NAME` or `openai-chat:NAME`.")

    def can_answer(self, spec: str) -> bool:
        """Whether an endpoint and a model are configured for `spec`; the connected client's own model does not count."""
        kind, _, name = spec.partition(":")
        if spec != "auto":
            return self._has_endpoint() and bool(name) and kind in ("openai", "openai-chat")
        named = self._environ.get("OPENAI_MODEL") or self._default_model
        return self._has_endpoint() and bool(named or not self._environ.get("OPENAI_BASE_URL"))

    def embeddings(self, spec: str) -> OpenAIEmbeddingClient:
        """The embedding client for `openai:NAME`; the resolver closes it.

        Raises:
            ModelError: The spec is unknown, or there is no endpoint.
        """
        from gateway.chat.embeddings import OpenAIEmbeddingClient

        kind, _, name = spec.partition(":")
        if kind != "openai" or not name:
            raise ModelError(f"Embedding model {spec!r} is not known; write `openai:NAME`.")
        if not self._has_endpoint():
            raise ModelError(f"Embedding model {spec!r} needs an endpoint. {HOW_TO_SET}")
        if name not in self._embedders:
            base_url = self._environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
            api_key = self._environ.get("OPENAI_API_KEY") or PLACEHOLDER_KEY
            self._embedders[name] = OpenAIEmbeddingClient(name, api_key=api_key, base_url=base_url)
        return self._embedders[name]

    def _has_endpoint(self) -> bool:
        return bool(self._environ.get("OPENAI_API_KEY") or self._environ.get("OPENAI_BASE_URL"))

    def _auto(self, ctx: CallContext) -> BaseChatClient:
        name = self._environ.get("OPENAI_MODEL") or self._default_model
        if self._has_endpoint():
            base_url = self._environ.get("OPENAI_BASE_URL")
            if not base_url:
                return self._client("openai", name or DEFAULT_MODEL)
            if not name:
                raise ModelError("OPENAI_BASE_URL is set but no model: set OPENAI_MODEL, or `defaults.model` in gateway.json.")
            # Chat Completions is what nearly every compatible server speaks; `openai:NAME` asks for Responses.
            return self._client("openai-chat", name)
        if ctx.client.can("sampling"):
            return SamplingChatClient(ctx)
        raise ModelError(f"No model is available for this agent. {HOW_TO_SET}")

    def _client(self, kind: str, name: str) -> OpenAIClientBase:
        key = (kind, name)
        if key not in self._clients:
            made = OpenAIChatClient if kind == "openai" else OpenAIChatCompletionClient
            base_url = self._environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
            self._clients[key] = made(name, api_key=self._environ.get("OPENAI_API_KEY") or PLACEHOLDER_KEY, base_url=base_url)
        return self._clients[key]

    async def aclose(self) -> None:
        """Close every client made."""
        clients = [*self._clients.values(), *self._embedders.values()]
        self._clients, self._embedders = {}, {}
        for client in clients:
            await client.aclose()
