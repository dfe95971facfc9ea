"""`AzureAISearchContextProvider`: adds documents of an Azure AI Search index to an agent's run, over the REST API.

The provider needs no Azure package, unless the program passes a `credential` of `azure-identity` (extra `foundry`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack, cast
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
"""OAuth scope of the access token that is requested from a `credential`."""

SEARCH_SECONDS = 30.0
"""Time limit, in seconds, for one search request with the provider's own HTTP client."""

TEXT_FIELDS = ("content", "chunk", "text", "body")
"""Default fields of an index with a document's text; the first one that the document has is used, or else all its text fields."""

Embed = Callable[[str], Awaitable[Sequence[float]] | Sequence[float]]
"""Sync or async function that returns the embedding vector of a text."""


class SearchOptions(TypedDict, total=False):
    """Options of `AzureAISearchContextProvider` for the search and its results."""

    mode: str
    """Search mode. Only `semantic` is supported; it also works for indexes without a semantic configuration."""
    top_k: int
    """Maximum number of documents per run. Default: 5."""
    semantic_configuration_name: str | None
    """Semantic configuration of the index that ranks the results; without it, the search matches words."""
    vector_field_name: str | None
    """Field of the index for an additional vector search. Without `embedding_function`, the index creates the query vector."""
    embedding_function: Embed | None
    """Sync or async function that creates the query vector of the additional vector search."""
    content_field_name: str | None
    """Field of the index with a document's text. Default: the first of `TEXT_FIELDS` that it has, or else all its text fields."""
    context_prompt: str | None
    """Text that is put before the found documents for the model."""
    http_client: httpx2.AsyncClient | None
    """HTTP client for the search requests; the provider does not close it."""
    env_file_path: str | None
    """Path of a `.env` file whose settings take precedence over environment variables."""


class _Settings(TypedDict, total=False):
    endpoint: str | None
    index_name: str | None
    api_key: SecretString | None


class AzureAISearchContextProvider(RecallingProvider):
    """Context provider that adds documents of an Azure AI Search index that match the input of an agent's run; it stores nothing."""

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
        """Configure the search.

        Missing arguments are read from the variables `AZURE_SEARCH_ENDPOINT`, `AZURE_SEARCH_INDEX_NAME` and `AZURE_SEARCH_API_KEY`.

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

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that the provider opened. A later search opens new connections."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Return the texts of the documents in the index that match the run's input.

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
