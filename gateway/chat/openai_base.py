"""`OpenAIClientBase`: base class of the two OpenAI-compatible chat clients, with their constructor and connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Unpack

from gateway.chat.chat_client import BaseChatClient, ChatClientArguments, OptionsT
from gateway.chat.model_retry import RetryPolicy
from gateway.chat.openai_connection import REQUEST_TIMEOUT_SECONDS, OpenAIConnection
from gateway.chat.openai_endpoint import Credential, EndpointArguments, Key, Names, find_endpoint
from gateway.errors import ChatClientInvalidRequestException
from gateway.types.options import ChatOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIClientBase(BaseChatClient[OptionsT]):
    """Base class of chat clients for an OpenAI-compatible endpoint.

    A client owns its connection pool unless an `async_client` is passed; close the pool with `aclose`.
    """

    NAMES: ClassVar[Names]
    OTEL_PROVIDER_NAME = "openai"

    def __init__(
        self,
        model: str | None = None,
        *,
        api_key: Key | None = None,
        base_url: str | None = None,
        org_id: str | None = None,
        azure_endpoint: str | None = None,
        api_version: str | None = None,
        credential: Credential | None = None,
        default_headers: Mapping[str, str] | None = None,
        async_client: AsyncOpenAI | None = None,
        instruction_role: str | None = None,
        env_file_path: str | None = None,
        env_file_encoding: str | None = None,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        retry: RetryPolicy | None = None,
        **arguments: Unpack[ChatClientArguments],
    ) -> None:
        """Store the settings. Missing arguments are looked up in the `.env` file, then in the environment. Nothing connects yet.

        `api_key` may be a function that returns the key for the next request; `credential` may be a credential object of the package
        `azure-identity`. An `async_client` that is passed decides the number of retries, and `aclose` does not close it.

        Raises:
            SettingNotFoundError: No model, no key or, for Azure, no endpoint is set; the text says what to set.
        """
        endpoint = find_endpoint(EndpointArguments.among(locals()), self.NAMES)
        super().__init__(endpoint.model, **arguments)
        if endpoint.is_azure and self.otel_provider_name == "openai":
            self.otel_provider_name = "azure.ai.openai"
        self.connection = OpenAIConnection(endpoint, timeout_seconds=timeout_seconds, retry=retry)
        self.instruction_role = instruction_role

    @property
    def client(self) -> AsyncOpenAI:
        """The client object of the `openai` package, created at first use."""
        return self.connection.client

    def service_url(self) -> str:
        """Return the base URL of the API."""
        return self.connection.endpoint.base_url

    async def aclose(self) -> None:
        """Close the connections. The client can be used again."""
        await self.connection.aclose()

    def _model_of(self, options: ChatOptions) -> str:
        model = options.get("model") or self.model
        if not model:
            raise ChatClientInvalidRequestException("No model is set: pass one to the client, or set the option `model`.")
        return model
