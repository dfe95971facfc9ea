"""`FoundryChatClient`: a chat client for the models of a Microsoft Foundry project, through its OpenAI-compatible endpoint.

Foundry offers the Responses API below the project's endpoint, so the client is `OpenAIChatClient` with other authentication: a key, a
credential of the package `azure-identity` (installed by the extra `foundry`), or a function that returns a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

from gateway.chat.chat_client import ChatClientArguments, OptionsT
from gateway.chat.embeddings import OpenAIEmbeddingClient
from gateway.chat.model_retry import RetryPolicy
from gateway.chat.openai_endpoint import FOUNDRY_SCOPE, Credential, Key, TokenCredential, token_source
from gateway.chat.openai_options import OpenAIChatOptions
from gateway.chat.responses_client import OpenAIChatClient
from gateway.config.settings import SecretString, load_settings
from gateway.errors import SettingNotFoundError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

FoundryChatOptions = OpenAIChatOptions
"""Options of a model request: an alias of `OpenAIChatOptions`, under the name that agent-framework uses."""

API_PATH = "/openai/v1"
"""Path of the OpenAI-compatible API below the endpoint of a Foundry project."""


class FoundrySettings(TypedDict, total=False):
    """Settings of Microsoft Foundry, read from environment variables with the prefix `FOUNDRY_`."""

    project_endpoint: str | None
    model: str | None
    embedding_model: str | None
    api_key: SecretString | None


class FoundryArguments(ChatClientArguments, total=False):
    """Keyword arguments of `OpenAIChatClient` that `FoundryChatClient` accepts and passes to it."""

    default_headers: Mapping[str, str] | None
    instruction_role: str | None
    retry: RetryPolicy | None


class FoundryChatClient(OpenAIChatClient[OptionsT]):
    """A chat client for the models of a Microsoft Foundry project."""

    OTEL_PROVIDER_NAME = "azure.ai.foundry"

    def __init__(
        self,
        *,
        project_endpoint: str | None = None,
        model: str | None = None,
        credential: Credential | None = None,
        api_key: Key | None = None,
        async_client: AsyncOpenAI | None = None,
        env_file_path: str | None = None,
        env_file_encoding: str | None = None,
        **arguments: Unpack[FoundryArguments],
    ) -> None:
        """Store the settings. Missing arguments come from `FOUNDRY_PROJECT_ENDPOINT`, `FOUNDRY_MODEL` and `FOUNDRY_API_KEY`.

        These variables are looked up in the `.env` file, then in the environment.

        Raises:
            SettingNotFoundError: The endpoint, the model or the authentication is missing; the text says what to set.
        """
        settings = _settings(env_file_path, env_file_encoding)
        model = model or _needed(settings.get("model"), "model", "a model", "FOUNDRY_MODEL")
        project = None if async_client is not None else _Project.find(project_endpoint, credential or api_key, settings)
        super().__init__(
            model,
            api_key=project and project.key,
            base_url=project and project.address,
            async_client=async_client,
            **arguments,
        )


class FoundryEmbeddingClient(OpenAIEmbeddingClient):
    """An embedding client for the models of a Microsoft Foundry project."""

    OTEL_PROVIDER_NAME = "azure.ai.foundry"

    def __init__(
        self,
        *,
        project_endpoint: str | None = None,
        model: str | None = None,
        credential: Credential | None = None,
        api_key: Key | None = None,
        env_file_path: str | None = None,
        env_file_encoding: str | None = None,
    ) -> None:
        """Store the settings. Missing arguments come from `FOUNDRY_PROJECT_ENDPOINT`, `FOUNDRY_EMBEDDING_MODEL` and `FOUNDRY_API_KEY`.

        Raises:
            SettingNotFoundError: The endpoint, the model or the authentication is missing; the text says what to set.
        """
        settings = _settings(env_file_path, env_file_encoding)
        model = model or _needed(settings.get("embedding_model"), "model", "a model", "FOUNDRY_EMBEDDING_MODEL")
        project = _Project.find(project_endpoint, credential or api_key, settings)
        super().__init__(model, api_key=project.key, base_url=project.address)


def _settings(env_file_path: str | None, env_file_encoding: str | None) -> FoundrySettings:
    return load_settings(FoundrySettings, env_prefix="FOUNDRY_", env_file_path=env_file_path, env_file_encoding=env_file_encoding)


def _needed(found: str | None, name: str, what: str, variable: str) -> str:
    if not found:
        raise SettingNotFoundError(f"Foundry needs {what}: pass {name}=, or set {variable}.", path=name)
    return found


@dataclass(frozen=True, slots=True)
class _Project:
    """A Foundry project: the address of its OpenAI-compatible API, and its key or a function that returns a token."""

    address: str
    key: Key

    @classmethod
    def find(cls, endpoint: str | None, credential: Credential | Key | None, settings: FoundrySettings) -> _Project:
        key = token_source(credential, FOUNDRY_SCOPE) if isinstance(credential, TokenCredential) else credential or settings.get("api_key")
        if not key:
            raise SettingNotFoundError(
                "Foundry needs authentication: pass credential= (for example `DefaultAzureCredential()` of azure-identity, which "
                "pip install 'moongate[foundry]' brings) or api_key=, or set FOUNDRY_API_KEY.",
                path="credential",
            )
        found = endpoint or settings.get("project_endpoint")
        address = _needed(found, "project_endpoint", "the project's endpoint", "FOUNDRY_PROJECT_ENDPOINT").rstrip("/")
        return cls(address if address.endswith(API_PATH) else address + API_PATH, key)
