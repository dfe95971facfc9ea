"""`AzureAISearchContextProvider`: adds documents of an Azure AI Search index to a run, over the REST API.

It needs no Azure package, except for a `credential` of `azure-identity` (extra `foundry`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack, cast
from urllib.parse import quote

from gateway.agents.providers.recalling import RecallingProvider
from gateway.chat.openai_endpoint import Credential, token_source
from gateway.config.settings import SecretString, load_settings
from gateway.errors import IntegrationException, SettingNotFoundError
from gateway.json_types import JsonMapping, JsonObject
from gateway.sessions.session_context import SessionContext

if TYPE_CHECKING:
    import httpx2

API_VERSION = "2024-07-01"
SCOPE = "https://search.azure.com/.default"
"""OAuth scope of the token that is requested from a `credential`."""

SEARCH_SECONDS = 30.0
"""Time limit for one search."""

TEXT_FIELDS = ("content", "chunk", "text", "body")
"""Index fields that are used as a document's text; the first one that exists."""

Embed = Callable[[str], Awaitable[Sequence[float]] | Sequence[float]]
"""Returns the vector of a text, synchronously or asynchronously."""


class SearchOptions(TypedDict, total=False):
    """Options for the search and its results."""

    mode: str
    """Search mode; only `semantic`, which also serves indexes without a semantic configuration."""
    top_k: int
    """Maximum number of documents per run. Default: 5."""
    semantic_configuration_name: str | None
    """Semantic configuration of the index that ranks the results; without it, the search matches words."""
    vector_field_name: str | None
    """Field for an additional vector search. The index creates the query vector unless `embedding_function` does."""
    embedding_function: Embed | None
    """Creates the query vector, synchronously or asynchronously."""
    content_field_name: str | None
    """Field with the document's text. Default: the first of `TEXT_FIELDS` that exists."""
    context_prompt: str | None
    """Text before the documents."""
    http_client: httpx2.AsyncClient | None
    """HTTP client to use; it is never closed by the provider."""
    env_file_path: str | None
    """A `.env` file that is read before the environment."""


class _Settings(TypedDict, total=False):
    endpoint: str | None
    index_name: str | None
    api_key: SecretString | None


class AzureAISearchContextProvider(RecallingProvider):
    """Adds documents that match the input of a run; stores nothing."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "azure_ai_search"
    DEFAULT_CONTEXT_PROMPT: ClassVar[str] = "Documents that match this request:"

    def __init__(
        self,
        source_id: str = DEFAULT_SOURCE_ID,
        endpoint: str | None = None,
        index_name: str | None = None,
        api_key: str | None = None,
        credential: Credential | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        """Missing arguments are read from `AZURE_SEARCH_ENDPOINT`, `AZURE_SEARCH_INDEX_NAME` and `AZURE_SEARCH_API_KEY`.

        Raises:
            SettingNotFoundError: The endpoint, the index or the credentials are missing; the text names the setting.
            ValueError: The mode is not `semantic`, or `top_k` is below 1.
            TypeError: An option is unknown.
        """
        if unknown := options.keys() - SearchOptions.__annotations__.keys():
            raise TypeError(f"AzureAISearchContextProvider has no option {', '.join(sorted(unknown))}.")
        super().__init__(source_id, context_prompt=options.get("context_prompt"))
        if options.get("mode", "semantic") != "semantic":
            raise ValueError("AzureAISearchContextProvider supports only mode='semantic', not knowledge bases ('agentic').")
        if options.get("top_k", 5) < 1:
            raise ValueError("top_k must be at least 1.")
        settings = load_settings(_Settings, env_prefix="AZURE_SEARCH_", env_file_path=options.get("env_file_path"))
        endpoint = _needed(endpoint or settings.get("endpoint"), "an endpoint", "endpoint=", "AZURE_SEARCH_ENDPOINT")
        index = _needed(index_name or settings.get("index_name"), "an index", "index_name=", "AZURE_SEARCH_INDEX_NAME")
        key = None if credential is not None else api_key or settings.get("api_key")
        if credential is None:
            _needed(key, "a key or a credential", "api_key= or credential=", "AZURE_SEARCH_API_KEY")
        self._url = f"{endpoint.rstrip('/')}/indexes/{quote(index, safe='')}/docs/search?api-version={API_VERSION}"
        self._key = None if key is None else str.__str__(key)
        self._token = None if credential is None else token_source(credential, SCOPE)
        self._options = options
        self._made: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that the provider opened; it can be used again."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Return the texts of matching documents.

        Raises:
            IntegrationException: The service returned an error status.
        """
        headers = {"api-key": self._key} if self._key is not None else {"Authorization": f"Bearer {await self._bearer()}"}
        response = await self._client().post(self._url, json=await self._query("\n".join(asked)), headers=headers)
        if response.status_code != 200:
            raise IntegrationException(f"Azure AI Search returned status {response.status_code}.", server=self.source_id)
        documents = cast("list[JsonObject]", response.json().get("value") or [])
        return [self._text(document) for document in documents]

    async def _query(self, text: str) -> JsonObject:
        options = self._options
        top = options.get("top_k", 5)
        query: JsonObject = {"search": text, "top": top}
        if (ranking := options.get("semantic_configuration_name")) is not None:
            query |= {"queryType": "semantic", "semanticConfiguration": ranking}
        if (field := options.get("vector_field_name")) is not None:
            embed = options.get("embedding_function")
            if embed is None:
                vector: JsonObject = {"kind": "text", "text": text}
            else:
                made = embed(text)
                vector = {"kind": "vector", "vector": list(await made if inspect.isawaitable(made) else made)}
            query["vectorQueries"] = [{**vector, "fields": field, "k": top}]
        return query

    def _text(self, document: JsonMapping) -> str:
        named = self._options.get("content_field_name")
        for field in (named,) if named is not None else TEXT_FIELDS:
            if isinstance(text := document.get(field), str):
                return text
        texts = [f"{key}: {value}" for key, value in document.items() if isinstance(value, str) and not key.startswith("@")]
        return "" if named is not None else "\n".join(texts)

    async def _bearer(self) -> str:
        assert self._token is not None
        found = self._token()
        return found if isinstance(found, str) else await found

    def _client(self) -> httpx2.AsyncClient:
        if (given := self._options.get("http_client")) is not None:
            return given
        if self._made is None:
            from gateway.egress.client import build_client

            self._made = build_client(self._url, self._url, timeout_seconds=SEARCH_SECONDS)
        return self._made


def _needed(value: Any, what: str, argument: str, variable: str) -> str:
    if not value:
        raise SettingNotFoundError(f"AzureAISearchContextProvider needs {what}: pass {argument} or set {variable}.")
    return str.__str__(value)
