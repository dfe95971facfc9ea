"""Embeddings from a compatible server, and common behaviour of embedding clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TypedDict

import pytest

from gateway.chat.embeddings import (
    MAX_INPUTS,
    BaseEmbeddingClient,
    Embedding,
    EmbeddingGenerationOptions,
    GeneratedEmbeddings,
    OpenAIEmbeddingClient,
    SupportsGetEmbeddings,
)
from gateway.errors import ChatClientInvalidAuthException
from tests.chat.asking import KEY
from tests.fakes.openai_server import ScriptedServer

pytestmark = pytest.mark.requirement("EM1")


@pytest.fixture
async def embedder(server: ScriptedServer) -> AsyncGenerator[OpenAIEmbeddingClient]:
    made = OpenAIEmbeddingClient(model="embed-a", api_key=KEY, base_url=server.base_url)
    yield made
    await made.aclose()


async def test_each_text_gets_its_vector_in_order_with_usage_and_options(embedder: OpenAIEmbeddingClient, server: ScriptedServer) -> None:
    await server.play()
    options: EmbeddingGenerationOptions = {"dimensions": 2}
    found = await embedder.get_embeddings(["a", "bb", "ccc"], options=options)
    assert isinstance(found, list)
    assert [e.vector for e in found] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert [(e.dimensions, e.model) for e in found] == [(2, "embed-a")] * 3
    assert (found.usage, found.options) == ({"input_token_count": 3, "total_token_count": 3}, options)
    [request] = await server.requests()
    assert request["body"] == {"input": ["a", "bb", "ccc"], "model": "embed-a", "dimensions": 2}


async def test_vectors_in_base64_are_read(embedder: OpenAIEmbeddingClient, server: ScriptedServer) -> None:
    await server.play()
    [found] = await embedder.get_embeddings(["abcd"], options={"encoding_format": "base64"})
    assert found.vector == [4.0, 4.0, 4.0]


async def test_no_texts_send_nothing_and_many_are_sent_in_batches(embedder: OpenAIEmbeddingClient, server: ScriptedServer) -> None:
    await server.play()
    assert await embedder.get_embeddings([]) == []
    found = await embedder.get_embeddings(["a"] * (MAX_INPUTS + 1))
    assert (len(found), found.usage) == (MAX_INPUTS + 1, {"input_token_count": MAX_INPUTS + 1, "total_token_count": MAX_INPUTS + 1})
    assert len(await server.requests()) == 2


async def test_refused_key_is_the_same_error_as_of_a_chat_client(embedder: OpenAIEmbeddingClient, server: ScriptedServer) -> None:
    await server.play(apiKey="another")
    with pytest.raises(ChatClientInvalidAuthException, match="OPENAI_API_KEY"):
        await embedder.get_embeddings(["a"])


async def test_dimensions_are_the_given_ones_or_the_vector_length() -> None:
    assert Embedding([0.1, 0.2]).dimensions == 2
    assert Embedding([0.1, 0.2], dimensions=3).dimensions == 3


async def test_custom_client_needs_one_method_of_the_protocol(embedder: OpenAIEmbeddingClient) -> None:
    class Lengths(BaseEmbeddingClient):
        async def get_embeddings(self, values: Sequence[str], *, options: EmbeddingGenerationOptions | None = None) -> GeneratedEmbeddings:
            return GeneratedEmbeddings([Embedding([float(len(value))]) for value in values], options=options)

    assert [e.vector for e in await Lengths().get_embeddings(["a", "bb"])] == [[1.0], [2.0]]
    assert isinstance(Lengths(), SupportsGetEmbeddings) and isinstance(embedder, SupportsGetEmbeddings)
    assert (Lengths.OTEL_PROVIDER_NAME, OpenAIEmbeddingClient.OTEL_PROVIDER_NAME) == ("unknown", "openai")


def test_dimensions_are_unknown_for_unsized_vectors_and_texts() -> None:
    assert Embedding(iter([0.1])).dimensions is None
    assert Embedding("AACAPw==").dimensions is None
    assert Embedding(b"\0\1\2").dimensions == 3
    assert Embedding("AACAPw==", dimensions=1).dimensions == 1


class Sizes(TypedDict, total=False):
    """Options of a custom client."""

    unit: int


class Codes(BaseEmbeddingClient[bytes, list[int], Sizes]):
    """A client that embeds bytes as integers."""

    model = "codes"

    async def get_embeddings(self, values: Sequence[bytes], *, options: Sizes | None = None) -> GeneratedEmbeddings[list[int], Sizes]:
        if not values:
            raise ValueError("SECRET")
        unit = (options or {}).get("unit", 1)
        found = [Embedding([code // unit for code in value]) for value in values]
        return GeneratedEmbeddings[list[int], Sizes](found, options=options, usage={"input_token_count": 3})


async def test_base_client_is_generic_over_input_vector_and_options() -> None:
    found = await Codes(additional_properties={"a": 1}).get_embeddings([b"\x04\x08"], options={"unit": 4})
    assert ([e.vector for e in found], found.options) == ([[1, 2]], {"unit": 4})
    assert isinstance(Codes(), SupportsGetEmbeddings)
    assert BaseEmbeddingClient[str], SupportsGetEmbeddings[str, list[float]]
