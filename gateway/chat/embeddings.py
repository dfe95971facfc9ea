"""Embedding clients, which convert texts to vectors for memory and retrieval. `OpenAIEmbeddingClient` uses OpenAI-compatible servers.

The public names are those of Microsoft's agent framework.
"""

from __future__ import annotations

import base64
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypedDict, cast, runtime_checkable

from typing_extensions import TypeVar

from gateway.chat.model_retry import RetryPolicy
from gateway.chat.model_tracing import DURATION, LABELS, answered, count_tokens
from gateway.chat.openai_connection import OpenAIConnection, counts
from gateway.chat.openai_endpoint import Credential, EndpointArguments, Key, Names, find_endpoint
from gateway.errors import ChatClientInvalidRequestException, ChatClientInvalidResponseException
from gateway.json_types import JsonObject, objects_in
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Operation
from gateway.types.content import UsageDetails

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAX_INPUTS = 2048
"""Maximum texts in one request to OpenAI's API. More texts are sent in several requests."""

_USAGE = {"prompt_tokens": "input_token_count", "total_tokens": "total_token_count"}


class EmbeddingGenerationOptions(TypedDict, total=False):
    """Options of an embedding request."""

    model: str
    dimensions: int


class OpenAIEmbeddingOptions(EmbeddingGenerationOptions, total=False):
    """Options of an embedding request to OpenAI's API."""

    encoding_format: str
    """Encoding of vectors in the response: `float`, or `base64`, which makes responses half as long."""
    user: str


EmbeddingT = TypeVar("EmbeddingT", default=list[float])
"""Type of a vector, such as `list[float]`, `list[int]` or `bytes`."""
EmbeddingInputT = TypeVar("EmbeddingInputT", default=str)
"""Type of the values that are converted to vectors, such as `str`."""
EmbeddingOptionsT = TypeVar("EmbeddingOptionsT", bound=Mapping[str, Any], default=EmbeddingGenerationOptions)
"""Type of the options that an embedding client accepts."""
InputT_contra = TypeVar("InputT_contra", contravariant=True, default=str)
OptionsT_contra = TypeVar("OptionsT_contra", bound=Mapping[str, Any], contravariant=True, default=EmbeddingGenerationOptions)


class Embedding(Generic[EmbeddingT]):
    """A vector, with the model that made it. The vector may have any type, such as `list[float]`."""

    __slots__ = ("_dimensions", "additional_properties", "created_at", "model", "vector")

    def __init__(
        self,
        vector: EmbeddingT,
        *,
        model: str | None = None,
        dimensions: int | None = None,
        created_at: datetime | None = None,
        additional_properties: JsonObject | None = None,
    ) -> None:
        self.vector = vector
        self.model = model
        self._dimensions = dimensions
        self.created_at = created_at
        self.additional_properties: JsonObject = dict(additional_properties or {})

    @property
    def dimensions(self) -> int | None:
        """Number of dimensions that the constructor received, or the vector's length. `None` if the vector is base64 or has no length."""
        if self._dimensions is not None:
            return self._dimensions
        return len(self.vector) if isinstance(self.vector, Sized) and not isinstance(self.vector, str) else None

    def __repr__(self) -> str:
        return f"Embedding({self.dimensions} dimensions, model={self.model!r})"


class GeneratedEmbeddings(list[Embedding[EmbeddingT]], Generic[EmbeddingT, EmbeddingOptionsT]):
    """A list of embeddings in the order of the inputs, with the number of tokens used."""

    def __init__(
        self,
        embeddings: Iterable[Embedding[EmbeddingT]] | None = None,
        *,
        options: EmbeddingOptionsT | None = None,
        usage: UsageDetails | None = None,
        additional_properties: JsonObject | None = None,
    ) -> None:
        super().__init__(embeddings or ())
        self.options = options
        self.usage = usage
        self.additional_properties: JsonObject = dict(additional_properties or {})


GeneratedT = TypeVar("GeneratedT", bound=GeneratedEmbeddings[Any, Any])


@runtime_checkable
class SupportsGetEmbeddings(Protocol[InputT_contra, EmbeddingT, OptionsT_contra]):
    """Interface of an object that creates embeddings."""

    def get_embeddings(
        self, values: Sequence[InputT_contra], *, options: OptionsT_contra | None = None
    ) -> Awaitable[GeneratedEmbeddings[EmbeddingT, Any]]:
        """Return an embedding for each of `values`, in order."""
        ...


class BaseEmbeddingClient(ABC, Generic[EmbeddingInputT, EmbeddingT, EmbeddingOptionsT]):
    """Base class of embedding clients. Subclasses implement `get_embeddings`.

    Generic over the types of input (`str`), vector (`list[float]`) and options.
    """

    OTEL_PROVIDER_NAME = "unknown"
    """Name of the model's provider in telemetry."""

    def __init__(self, *, additional_properties: JsonObject | None = None) -> None:
        self.additional_properties: JsonObject = dict(additional_properties or {})

    @abstractmethod
    async def get_embeddings(
        self, values: Sequence[EmbeddingInputT], *, options: EmbeddingOptionsT | None = None
    ) -> GeneratedEmbeddings[EmbeddingT, EmbeddingOptionsT]:
        """Return an embedding for each of `values`, in order."""


async def traced_embeddings(provider: str, model: str, work: Callable[[], Awaitable[GeneratedT]]) -> GeneratedT:
    """Await `work`, which requests embeddings, and return its result. If instrumentation is on, record a span and metrics."""
    if not OBSERVABILITY_SETTINGS.enable_instrumentation:
        return await work()
    attributes = {"gen_ai.operation.name": "embeddings", "gen_ai.provider.name": provider, "gen_ai.request.model": model}
    operation = Operation(f"embeddings {model}", attributes, kind="client", metric=DURATION)
    with operation.running(labels=LABELS):
        found = await work()
        operation.add(answered(None, None, None, found.usage))
        count_tokens(found.usage, attributes)
        return found


class OpenAIEmbeddingClient(BaseEmbeddingClient[str, list[float], OpenAIEmbeddingOptions]):
    """An embedding client for OpenAI's embeddings API and compatible servers.

    It owns its connection pool unless an `async_client` is passed; close the pool with `aclose`.
    """

    NAMES: ClassVar[Names] = Names(models=("EMBEDDING_MODEL", "MODEL"), azure_api_version="2024-10-21")
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
        env_file_path: str | None = None,
        env_file_encoding: str | None = None,
        additional_properties: JsonObject | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Store the settings. Arguments are those of `OpenAIChatClient`; missing ones are looked up in the `.env` file and the environment.

        The model defaults to `OPENAI_EMBEDDING_MODEL`, then `OPENAI_MODEL` (for Azure, the prefix is `AZURE_OPENAI_`).

        Raises:
            SettingNotFoundError: No model, no key or, for Azure, no endpoint is set; the text says what to set.
        """
        super().__init__(additional_properties=additional_properties)
        endpoint = find_endpoint(EndpointArguments.among(locals()), self.NAMES)
        self.model = endpoint.model
        self._connection = OpenAIConnection(endpoint, retry=retry)

    def service_url(self) -> str:
        """Return the base URL of the API."""
        return self._connection.endpoint.base_url

    async def aclose(self) -> None:
        """Close the connections. The client can be used again."""
        await self._connection.aclose()

    async def get_embeddings(
        self, values: Sequence[str], *, options: OpenAIEmbeddingOptions | EmbeddingGenerationOptions | None = None
    ) -> GeneratedEmbeddings[list[float], OpenAIEmbeddingOptions]:
        """Return an embedding for each of the texts `values`, in order; an empty list for no texts.

        Raises:
            ModelError: No model is set, or the endpoint failed or returned a wrong number of vectors or a malformed vector.
        """
        chosen: JsonObject = {key: value for key, value in (options or {}).items() if value is not None}
        model = str(chosen.pop("model", None) or self.model)
        if not model:
            raise ChatClientInvalidRequestException("No model is set: pass one to the client, or set the option `model`.")
        own = cast("OpenAIEmbeddingOptions | None", options)
        return await traced_embeddings(self.OTEL_PROVIDER_NAME, model, lambda: self._vectors(model, values, chosen, own))

    async def _vectors(
        self, model: str, values: Sequence[str], chosen: JsonObject, options: OpenAIEmbeddingOptions | None
    ) -> GeneratedEmbeddings[list[float], OpenAIEmbeddingOptions]:
        result: GeneratedEmbeddings[list[float], OpenAIEmbeddingOptions] = GeneratedEmbeddings(options=options)
        for start in range(0, len(values), MAX_INPUTS):
            part = list(values[start : start + MAX_INPUTS])
            answer = await self._connection.answer(model, "/embeddings", {"input": part, "model": model, **chosen})
            result += _vectors(answer, model, len(part))
            used = counts(answer.get("usage"), _USAGE, {}) or {}
            result.usage = {key: (result.usage or {}).get(key, 0) + value for key, value in used.items()} or result.usage
        return result


def _vectors(answer: JsonObject, model: str, expected: int) -> list[Embedding[list[float]]]:
    entries = objects_in(answer.get("data"))
    if all(isinstance(entry.get("index"), int) for entry in entries):
        entries.sort(key=lambda entry: cast("int", entry["index"]))
    if len(entries) != expected:
        raise ChatClientInvalidResponseException(f"Model {model!r} returned {len(entries)} vector(s) for {expected} text(s).")
    named = str(answer.get("model") or model)
    return [Embedding(_vector(entry.get("embedding"), model), model=named) for entry in entries]


def _vector(value: object, model: str) -> list[float]:
    """Convert a vector from a response to floats. In the response it is a list of numbers, or base64 text of little-endian 32-bit floats.

    Raises:
        ChatClientInvalidResponseException: The vector is malformed.
    """
    try:
        if isinstance(value, str):
            raw = base64.b64decode(value, validate=True)
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
        return [float(number) for number in cast("list[float]", value)]
    except (ValueError, TypeError, struct.error):
        raise ChatClientInvalidResponseException(f"Model {model!r} returned an invalid vector.") from None
