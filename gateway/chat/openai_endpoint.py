"""Finds the address and authentication of an OpenAI-compatible API in constructor arguments, an `.env` file and the environment.

Names and precedence are those of Microsoft's agent framework, so that programs written for it find their settings. Azure is used if an
Azure endpoint or a credential is given, or if variables name an Azure endpoint, and neither arguments nor variables name an OpenAI key or
base URL.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast, runtime_checkable
from urllib.parse import urlsplit

import anyio.to_thread

from gateway.config.settings import SecretString, load_settings
from gateway.errors import (
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ModelError,
    NotSent,
    SettingNotFoundError,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEFAULT_BASE_URL = "https://api.openai.com/v1"

PLACEHOLDER_KEY = "not-needed"
"""API key that is sent if only a base URL is set, because local servers require a key and accept any."""

AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
"""OAuth scope of tokens for Azure OpenAI."""

FOUNDRY_SCOPE = "https://ai.azure.com/.default"
"""OAuth scope of tokens for a Microsoft Foundry project."""

KeySource = Callable[[], str | Awaitable[str]]
"""Function that returns the API key or the token for the next request, or an awaitable of it."""


@runtime_checkable
class TokenCredential(Protocol):
    """Interface of a credential object of the package `azure-identity`, synchronous or asynchronous."""

    def get_token(self, *scopes: str) -> object:
        """Return an object with the attribute `token`, or an awaitable of it."""
        ...


Key = str | KeySource
Credential = TokenCredential | KeySource


class _Settings(TypedDict, total=False):
    """Settings that OpenAI and Azure OpenAI have in common.

    A client takes its model from the setting for its kind, such as `embedding_model`; if that is not set, from `model`.
    """

    api_key: SecretString | None
    base_url: str | None
    model: str | None
    chat_model: str | None
    chat_completion_model: str | None
    embedding_model: str | None


class OpenAISettings(_Settings, total=False):
    """Settings of OpenAI, read from environment variables with the prefix `OPENAI_`."""

    org_id: str | None


class AzureOpenAISettings(_Settings, total=False):
    """Settings of Azure OpenAI, read from environment variables with the prefix `AZURE_OPENAI_`."""

    endpoint: str | None
    api_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointArguments:
    """Arguments of a client's constructor that describe the endpoint of a model. `find_endpoint` looks up those that are missing."""

    model: str | None = None
    api_key: Key | None = None
    base_url: str | None = None
    org_id: str | None = None
    azure_endpoint: str | None = None
    api_version: str | None = None
    credential: Credential | None = None
    default_headers: Mapping[str, str] | None = None
    async_client: AsyncOpenAI | None = None
    env_file_path: str | None = None
    env_file_encoding: str | None = None

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> EndpointArguments:
        """Return the arguments that describe the endpoint. They are taken from `arguments`, the `locals()` of a client's constructor.

        This works because all clients use the same parameter names.
        """
        return cls(**{one.name: arguments[one.name] for one in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address, authentication and other data from which `build_client` creates a client object of the `openai` package.

    If the caller passed its own client object, `client` is that object.
    """

    model: str
    base_url: str
    api_key: str | KeySource = field(default="", repr=False)
    org_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}), repr=False)
    azure_endpoint: str | None = None
    api_version: str | None = None
    is_azure: bool = False
    client: AsyncOpenAI | None = None

    def build_client(self, timeout_seconds: float) -> AsyncOpenAI:
        """Create a client object of the `openai` package. Its own retries are off, because `OpenAIConnection` makes the retries.

        Raises:
            ModelError: The address or the key is unusable, or the environment names an unusable proxy.
        """
        from openai import AsyncAzureOpenAI, AsyncOpenAI

        from gateway.egress.client import build_client

        self._check()
        try:
            http = build_client("model", self.base_url or self.azure_endpoint or "", timeout_seconds=timeout_seconds)
        except NotSent as error:
            raise ModelError(str(error)) from None
        key = self.api_key if isinstance(self.api_key, str) else _awaited(self.api_key)
        if self.azure_endpoint is not None and self.api_version is not None:
            azure = {"api_key": key} if isinstance(key, str) else {"azure_ad_token_provider": key}
            where = {"base_url": self.base_url} if self.base_url else {"azure_endpoint": self.azure_endpoint}
            if not self.base_url:
                where["azure_deployment"] = self.model
            return cast(
                "AsyncOpenAI",
                AsyncAzureOpenAI(  # pyright: ignore[reportCallIssue]  # its overloads do not cover keywords that are chosen at run time
                    **azure,  # pyright: ignore[reportArgumentType]
                    **where,
                    api_version=self.api_version,
                    default_headers=self.headers,
                    timeout=http.timeout,
                    http_client=http,
                    max_retries=0,
                ),
            )
        return AsyncOpenAI(
            api_key=key,
            base_url=self.base_url,
            organization=self.org_id,
            default_headers=self.headers,
            timeout=http.timeout,
            http_client=http,
            max_retries=0,
        )


    def _check(self) -> None:
        """Check that the address and the key can be used in a request.

        Raises:
            ModelError: The address or the key is malformed; the text names the variable to check.
        """
        prefix = "AZURE_OPENAI_" if self.is_azure else "OPENAI_"
        address = self.base_url or self.azure_endpoint or ""
        try:
            parts = urlsplit(address)
            is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable or not address.isprintable() or " " in address:
            name = "ENDPOINT" if self.is_azure else "BASE_URL"
            text = f"The address of the model endpoint must look like http://127.0.0.1:11434/v1; check {prefix}{name}."
            raise ChatClientInvalidRequestException(text)
        if isinstance(self.api_key, str) and not (self.api_key.isascii() and self.api_key.isprintable()):
            text = "The API key for the model has a line break or a non-ASCII character such as `…`, so it is not the whole key"
            raise ChatClientInvalidAuthException(f"{text}; check {prefix}API_KEY.")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the environment variables that one kind of client (chat, embeddings, …) reads for its model, and its defaults for Azure."""

    models: tuple[str, ...]
    """Names of the variables for the model, without the prefixes `OPENAI_` and `AZURE_OPENAI_`. The first of them that is set is used."""
    azure_api_version: str
    """Version of the Azure API that is used if none is set."""
    azure_path: str | None = None
    """Path that is appended to an Azure endpoint, for APIs whose address in Azure does not contain a deployment; `None` for other APIs."""


def find_endpoint(given: EndpointArguments, names: Names) -> Endpoint:
    """Determine the endpoint of a model from constructor arguments, the `.env` file and environment variables.

    Raises:
        SettingNotFoundError: The model, the key or, for Azure, the endpoint is missing; the text names what to set.
    """
    openai = load_settings(
        OpenAISettings, env_prefix="OPENAI_", env_file_path=given.env_file_path, env_file_encoding=given.env_file_encoding
    )
    azure = load_settings(
        AzureOpenAISettings, env_prefix="AZURE_OPENAI_", env_file_path=given.env_file_path, env_file_encoding=given.env_file_encoding
    )
    if (client := given.async_client) is not None:
        is_azure = type(client).__name__ == "AsyncAzureOpenAI"
        model = given.model or _model(azure if is_azure else openai, names) or ""
        return Endpoint(model=model, base_url=str(client.base_url), is_azure=is_azure, client=client)
    wants_azure = given.azure_endpoint is not None or given.credential is not None
    has_openai = bool(given.api_key or given.base_url or openai.get("api_key") or openai.get("base_url"))
    has_azure = bool(azure.get("endpoint") or azure.get("base_url"))
    return _azure(given, azure, names) if wants_azure or (has_azure and not has_openai) else _openai(given, openai, names)


def _openai(given: EndpointArguments, settings: OpenAISettings, names: Names) -> Endpoint:
    base_url = given.base_url or settings.get("base_url") or DEFAULT_BASE_URL
    key = given.api_key or settings.get("api_key")
    if not key and base_url == DEFAULT_BASE_URL:
        raise SettingNotFoundError("An OpenAI API key is needed: pass api_key=, or set OPENAI_API_KEY.", path="api_key")
    model = given.model or _model(settings, names)
    if not model:
        raise SettingNotFoundError(f"A model is needed: pass model=, or set {_listed(names, 'OPENAI_')}.", path="model")
    return Endpoint(
        model=model,
        base_url=base_url,
        api_key=_key(key or PLACEHOLDER_KEY),
        org_id=given.org_id or settings.get("org_id"),
        headers=given.default_headers or {},
    )


def _azure(given: EndpointArguments, settings: AzureOpenAISettings, names: Names) -> Endpoint:
    endpoint = given.azure_endpoint or settings.get("endpoint")
    base_url = given.base_url or settings.get("base_url") or ""
    if not (endpoint or base_url):
        text = "An Azure endpoint is needed: pass azure_endpoint=, or set AZURE_OPENAI_ENDPOINT."
        raise SettingNotFoundError(text, path="azure_endpoint")
    model = given.model or _model(settings, names)
    if not model:
        raise SettingNotFoundError(f"A deployment is needed: pass model=, or set {_listed(names, 'AZURE_OPENAI_')}.", path="model")
    source = token_source(given.credential, AZURE_SCOPE) if given.credential is not None else given.api_key or settings.get("api_key")
    if not source:
        text = "Azure needs a key or a credential: pass api_key= or credential=, or set AZURE_OPENAI_API_KEY."
        raise SettingNotFoundError(text, path="api_key")
    if not base_url and names.azure_path is not None and endpoint is not None:
        base_url = endpoint.rstrip("/") + names.azure_path
    is_plain = base_url.rstrip("/").endswith("/openai/v1") and names.azure_path is None
    version = given.api_version or settings.get("api_version") or names.azure_api_version
    return Endpoint(
        model=model,
        base_url=base_url,
        api_key=_key(source),
        headers=given.default_headers or {},
        azure_endpoint=endpoint or base_url,
        api_version=None if is_plain else version,
        is_azure=True,
    )


def token_source(credential: Credential, scope: str) -> KeySource:
    """Return a function that gets a token with the OAuth scope `scope` from a credential object.

    The credential object caches and renews its tokens. A credential that is a function is returned unchanged.
    """
    if not isinstance(credential, TokenCredential):
        return credential

    async def token() -> str:
        if inspect.iscoroutinefunction(credential.get_token):
            found = await credential.get_token(scope)
        else:
            found = await anyio.to_thread.run_sync(credential.get_token, scope)
        return str(cast("_Token", found).token)

    return token


class _Token(Protocol):
    token: str


def _awaited(source: KeySource) -> Callable[[], Awaitable[str]]:
    async def key() -> str:
        found = source()
        return found if isinstance(found, str) else await found

    return key


def _key(key: Key) -> str | KeySource:
    return str.__str__(key) if isinstance(key, str) else key


def _model(settings: _Settings, names: Names) -> str | None:
    found = dict(settings)
    return next((str(value) for name in names.models if (value := found.get(name.lower()))), None)


def _listed(names: Names, prefix: str) -> str:
    return " or ".join(prefix + name for name in names.models)
