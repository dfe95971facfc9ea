"""`ModelResolver`: creates and owns the chat clients for model specs, the texts by which agent files name models.

The spec `auto` selects the OpenAI-compatible endpoint that the environment names, otherwise the connected client's own model. If neither is
available, the error says what to set. `openai:NAME` selects the Responses API, and `openai-chat:NAME` selects the Chat Completions API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.errors import (
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ModelError,
)
from gateway.json_types import objects_in
from gateway.tools.context import CallContext

if TYPE_CHECKING:  # imported when the first client is created, because a gateway starts faster without these modules
    from gateway.chat.chat_client import BaseChatClient
    from gateway.chat.embeddings import OpenAIEmbeddingClient
    from gateway.chat.openai_base import OpenAIClientBase
    from gateway.chat.openai_connection import OpenAIConnection

DEFAULT_MODEL = "gpt-5-mini"
"""Model that `auto` uses at OpenAI's own endpoint if neither `OPENAI_MODEL` nor `defaults.model` of the configuration is set."""

CHECK_SECONDS = 10.0
"""Timeout in seconds for checking that an endpoint works."""

_ROUTES = {"openai": ("/responses", "input"), "openai-chat": ("/chat/completions", "messages")}
"""Name of an API → the path of its requests, and a required field. To test an endpoint, `check` sends a request with an invalid value in
this field, which the endpoint rejects before a model runs."""

_JUDGED = (400, 413, 415, 422, 429, 500)
"""HTTP statuses with which a model API rejects the field of a wrong type that `check` sends. Some servers fail with 500."""

HOW_TO_SET = (
    "Set OPENAI_API_KEY (for OpenAI), or OPENAI_BASE_URL and OPENAI_MODEL (for any OpenAI-compatible server), in the "
    "environment of the gateway; or connect with a client that offers its own model through MCP sampling."
)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Result of a successful check of a model's endpoint: model, address of the endpoint, and the models that the endpoint lists."""

    model: str
    endpoint: str
    """Address of the endpoint, without user name, password and query, which may be secret."""
    listed: frozenset[str] | None
    """Ids of the models that the endpoint lists; `None` if the endpoint does not list models."""

    @property
    def is_listed(self) -> bool | None:
        """Whether the endpoint lists the model, also as `NAME:latest` (as Ollama does); `None` if the endpoint does not list models."""
        return None if self.listed is None else self.model in self.listed or f"{self.model}:latest" in self.listed


class ModelResolver:
    """Creates and owns the chat and embedding clients of a gateway. Close them with `aclose`."""

    def __init__(self, environ: Mapping[str, str], default_model: str | None) -> None:
        """Store the environment variables and `default_model`, the value of `defaults.model` in the configuration."""
        self._environ = environ
        self._default_model = default_model
        self._clients: dict[tuple[str, str], OpenAIClientBase] = {}
        self._embedders: dict[str, OpenAIEmbeddingClient] = {}

    def resolve(self, spec: str, ctx: CallContext) -> BaseChatClient:
        """Return the chat client for `spec`, the model spec of an agent (`auto`, `openai:NAME` or `openai-chat:NAME`), for one run.

        Raises:
            ModelError: The spec is invalid, or no model is configured; the text says what to set.
        """
        named = self.named(spec)
        if named is not None:
            return self._client(*named)
        if ctx.facts.client.can("sampling"):
            from gateway.chat.sampling_client import SamplingChatClient

            return SamplingChatClient(ctx)
        raise ModelError(f"No model is available for this agent. {HOW_TO_SET}")

    def named(self, spec: str) -> tuple[str, str] | None:
        """Return the API (`openai` or `openai-chat`) and the model name that a model spec, such as `auto` or `openai:NAME`, selects.

        `None` means that `auto` selects the connected client's own model, because no endpoint is configured.

        Raises:
            ModelError: The spec is invalid, or the endpoint or the model is not configured; the text says what to set.
        """
        if spec == "auto":
            return self._auto()
        kind, _, name = spec.partition(":")
        if not name or kind not in ("openai", "openai-chat"):
            raise ModelError(f"Unknown model {spec!r}; write `auto`, `openai:NAME` or `openai-chat:NAME`.")
        if not self._has_endpoint():
            raise ModelError(f"Model {spec!r} needs an endpoint. {HOW_TO_SET}")
        return kind, name

    def can_answer(self, spec: str) -> bool:
        """Return whether the gateway has an endpoint and a model for the model spec, such as `auto` or `openai:NAME`.

        The connected client's own model does not count.
        """
        try:
            return self.named(spec) is not None
        except ModelError:
            return False

    async def check(self, spec: str) -> ModelCheck | None:
        """Check that the endpoint for a model spec (such as `openai:NAME`) works, by requesting its list of models within `CHECK_SECONDS`.

        An endpoint that does not list models gets a request with a field of the wrong type: the response shows whether it is a model API,
        and costs no tokens. Returns what was found, or `None` if the spec selects the connected client's own model, which is not checked.

        Raises:
            ModelError: The spec is invalid, something is not configured, or the endpoint is unreachable, rejects the key or is not a model
                API.
        """
        named = self.named(spec)
        if named is None:
            return None
        from gateway.chat.openai_errors import shown_url

        connection = self._client(*named).connection
        shown = shown_url(connection.endpoint.base_url)
        try:
            with anyio.fail_after(CHECK_SECONDS):
                listed = await _listed(connection, named[1])
                if not listed:
                    await _try_route(connection, *named)
        except TimeoutError:
            raise ModelError(f"The model endpoint {shown} did not answer within {CHECK_SECONDS:g} s.", retryable=True) from None
        return ModelCheck(named[1], shown, listed or None)

    def embeddings(self, spec: str) -> OpenAIEmbeddingClient:
        """Return the embedding client for the model spec `openai:NAME`. The resolver owns the client, and closes it in `aclose`.

        Raises:
            ModelError: The spec is invalid, or no endpoint is configured.
        """
        from gateway.chat.embeddings import OpenAIEmbeddingClient
        from gateway.chat.openai_endpoint import DEFAULT_BASE_URL, PLACEHOLDER_KEY

        kind, _, name = spec.partition(":")
        if kind != "openai" or not name:
            raise ModelError(f"Unknown embedding model {spec!r}; write `openai:NAME`.")
        if not self._has_endpoint():
            raise ModelError(f"Embedding model {spec!r} needs an endpoint. {HOW_TO_SET}")
        if name not in self._embedders:
            base_url = self._environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
            api_key = self._environ.get("OPENAI_API_KEY") or PLACEHOLDER_KEY
            self._embedders[name] = OpenAIEmbeddingClient(name, api_key=api_key, base_url=base_url)
        return self._embedders[name]

    def _has_endpoint(self) -> bool:
        return bool(self._environ.get("OPENAI_API_KEY") or self._environ.get("OPENAI_BASE_URL"))

    def _auto(self) -> tuple[str, str] | None:
        if not self._has_endpoint():
            return None
        name = self._environ.get("OPENAI_MODEL") or self._default_model
        if not self._environ.get("OPENAI_BASE_URL"):
            return "openai", name or DEFAULT_MODEL
        if not name:
            raise ModelError("OPENAI_BASE_URL is set but no model: set OPENAI_MODEL, or `defaults.model` in gateway.json.")
        # Nearly every compatible server offers the Chat Completions API. `openai:NAME` selects the Responses API.
        return "openai-chat", name

    def _client(self, kind: str, name: str) -> OpenAIClientBase:
        key = (kind, name)
        if key not in self._clients:
            from gateway.chat.completions_client import OpenAIChatCompletionClient
            from gateway.chat.openai_endpoint import DEFAULT_BASE_URL, PLACEHOLDER_KEY
            from gateway.chat.responses_client import OpenAIChatClient

            made = OpenAIChatClient if kind == "openai" else OpenAIChatCompletionClient
            base_url = self._environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
            self._clients[key] = made(name, api_key=self._environ.get("OPENAI_API_KEY") or PLACEHOLDER_KEY, base_url=base_url)
        return self._clients[key]

    async def aclose(self) -> None:
        """Close all chat and embedding clients that were created."""
        clients = [*self._clients.values(), *self._embedders.values()]
        self._clients, self._embedders = {}, {}
        for client in clients:
            await client.aclose()


async def _listed(connection: OpenAIConnection, model: str) -> frozenset[str]:
    """Return the ids of the models that an endpoint lists; an empty set if it does not list models.

    Raises:
        ModelError: The endpoint is unreachable, rejects the key, or failed.
    """
    try:
        answer = await connection.answer(model, "/models", None, subject="the list of its models")
    except ChatClientInvalidAuthException:
        raise
    except (ChatClientInvalidRequestException, ChatClientInvalidResponseException):
        return frozenset()
    except ModelError as error:
        if error.status not in (405, 501):
            raise
        return frozenset()
    return frozenset(str(item["id"]) for item in objects_in(answer.get("data")) if item.get("id"))


async def _try_route(connection: OpenAIConnection, kind: str, model: str) -> None:
    """Send a request with a field of the wrong type to the API's path, and check that the endpoint responds like a model API.

    Raises:
        ModelError: The endpoint answers in another way, is unreachable, or rejects the key.
    """
    from gateway.chat.openai_errors import HtmlResponseException, shown_url

    path, field = _ROUTES[kind]
    shown = shown_url(connection.endpoint.base_url)
    fix = "Set OPENAI_BASE_URL to the API's base address, which often ends in /v1"
    try:
        answer = await connection.answer(model, path, {"model": model, field: 0})
    except HtmlResponseException:
        raise
    except ChatClientInvalidResponseException:
        raise ModelError(f"The model endpoint {shown} does not answer {path} with a JSON object. {fix}.") from None
    except ModelError as error:
        if error.status in _JUDGED:
            return
        if error.status in (404, 405, 410, 501):
            text = f"The model endpoint {shown} lists no models and answers {error.status} to {path}"
            raise ModelError(f"{text}, so calls fail. {fix}, and check the model's name, {model!r}.") from None
        raise
    if not {"choices", "output", "error"} & answer.keys():
        raise ModelError(f"The model endpoint {shown} answers {path} with JSON that is not a model's answer. {fix}.")
