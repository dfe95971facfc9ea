"""Where clients find their model, key and address, and the error if one is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI

from gateway import OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.openai_base import OpenAIClientBase
from gateway.config.settings import SecretString
from gateway.errors import ModelError, SettingNotFoundError
from tests.chat.asking import KEY, WHOLE, ask
from tests.fakes.openai_server import ScriptedServer

KINDS = [OpenAIChatClient, OpenAIChatCompletionClient]
AZURE = "https://moon.openai.azure.com"


class Token:
    """An access token."""

    token = "token-1"


class AsyncCredential:
    """An async credential like those of `azure-identity`."""

    async def get_token(self, *scopes: str) -> Token:
        assert scopes == ("https://cognitiveservices.azure.com/.default",)
        return Token()


class Credential:
    """A sync credential like those of `azure-identity`."""

    def get_token(self, *scopes: str) -> Token:
        return Token()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.requirement("CL8")
def test_missing_settings_come_from_the_environment(kind: type[OpenAIClientBase], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_MODEL", "of-all")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert (kind().model, kind().service_url()) == ("of-all", "http://127.0.0.1:1/v1")
    own = "OPENAI_CHAT_MODEL" if kind is OpenAIChatClient else "OPENAI_CHAT_COMPLETION_MODEL"
    monkeypatch.setenv(own, "of-this-kind")
    assert kind().model == "of-this-kind"
    assert kind("given", base_url="http://127.0.0.1:2/v1").service_url() == "http://127.0.0.1:2/v1"
    assert kind("given").client.api_key == "sk-env"


@pytest.mark.requirement("CL8")
def test_file_of_variables_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ".env"
    file.write_text("OPENAI_API_KEY=sk-file\nOPENAI_MODEL=from-file\n", encoding="utf-8")
    monkeypatch.setenv("OPENAI_MODEL", "from-env")
    client = OpenAIChatClient(env_file_path=str(file))
    assert (client.model, client.client.api_key) == ("from-file", "sk-file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "variables", "says"),
    [
        ({"model": "m"}, {}, ["OPENAI_API_KEY", "api_key="]),
        ({"api_key": "sk-x"}, {}, ["OPENAI_MODEL", "model="]),
        ({"azure_endpoint": AZURE, "model": "m"}, {}, ["AZURE_OPENAI_API_KEY", "credential="]),
        ({"azure_endpoint": AZURE, "api_key": "x"}, {}, ["AZURE_OPENAI_MODEL"]),
        ({"credential": Credential(), "model": "m"}, {}, ["AZURE_OPENAI_ENDPOINT"]),
    ],
)
def test_missing_setting_is_named(
    kind: type[OpenAIClientBase], given: dict[str, Any], variables: dict[str, str], says: list[str]
) -> None:
    with pytest.raises(SettingNotFoundError) as caught:
        kind(**given)
    assert all(word in str(caught.value) for word in says)


async def test_local_server_needs_no_key_and_a_secret_stays_one(server: ScriptedServer) -> None:
    client = OpenAIChatCompletionClient("m", base_url=server.base_url)
    secret = OpenAIChatCompletionClient("m", base_url=server.base_url, api_key=SecretString(KEY))
    await server.play({"text": "a"}, {"text": "b"})
    await ask(client, WHOLE)
    await ask(secret, WHOLE)
    assert [request["authorization"] for request in await server.requests()] == ["Bearer not-needed", f"Bearer {KEY}"]
    assert KEY not in repr(vars(secret.connection))
    await client.aclose()
    await secret.aclose()


@pytest.mark.parametrize("credential", [AsyncCredential(), Credential(), lambda: "token-1"], ids=["async", "sync", "function"])
@pytest.mark.requirement("CL8")
async def test_credential_gives_the_token_of_each_request(server: ScriptedServer, credential: Any) -> None:
    client = OpenAIChatClient("m", azure_endpoint="https://unused", base_url=server.base_url, credential=credential)
    await server.play({"text": "a"})
    await ask(client, WHOLE)
    [request] = await server.requests()
    assert request["authorization"] == "Bearer token-1"
    await client.aclose()


@pytest.mark.requirement("CL8")
async def test_function_may_give_the_key(server: ScriptedServer) -> None:
    async def key() -> str:
        await anyio.lowlevel.checkpoint()
        return "sk-rotated"

    client = OpenAIChatCompletionClient("m", base_url=server.base_url, api_key=key)
    await server.play({"text": "a"})
    await ask(client, WHOLE)
    assert (await server.requests())[0]["authorization"] == "Bearer sk-rotated"
    await client.aclose()


@pytest.mark.requirement("CL8")
def test_azure_endpoint_is_addressed_by_azure_rules() -> None:
    responses = OpenAIChatClient("dep", azure_endpoint=AZURE, api_key="x")
    completions = OpenAIChatCompletionClient("dep", azure_endpoint=AZURE, api_key="x")
    plain = OpenAIChatCompletionClient("dep", azure_endpoint=AZURE, api_key="x", base_url=f"{AZURE}/openai/v1")
    assert isinstance(responses.client, AsyncAzureOpenAI)
    assert str(responses.client.base_url) == f"{AZURE}/openai/v1/"
    assert str(completions.client.base_url) == f"{AZURE}/openai/deployments/dep/"
    assert type(plain.client) is AsyncOpenAI


async def test_client_that_is_given_is_used_and_left_open(server: ScriptedServer) -> None:
    async with AsyncOpenAI(api_key="sk-own", base_url=server.base_url, max_retries=0) as own:
        client = OpenAIChatCompletionClient("m", async_client=own, default_headers={"x-unused": "1"})
        await server.play({"text": "a"}, {"status": 500})
        await ask(client, WHOLE)
        await client.aclose()
        with pytest.raises(Exception, match="500"):
            await ask(client, WHOLE)
        assert [request["authorization"] for request in await server.requests()] == ["Bearer sk-own"] * 2
        assert client.client is own and not own.is_closed()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"api_key": "sk-…"}, "not the whole key; check OPENAI_API_KEY"),
        ({"api_key": "sk-right\n"}, "not the whole key; check OPENAI_API_KEY"),
        ({"base_url": "127.0.0.1:9/v1"}, "check OPENAI_BASE_URL"),
        ({"base_url": "http://127.0.0.1:94755/v1"}, "check OPENAI_BASE_URL"),
        ({"base_url": "http:///v1"}, "check OPENAI_BASE_URL"),
        ({"base_url": "", "azure_endpoint": "moon.openai.azure.com"}, "check AZURE_OPENAI_ENDPOINT"),
    ],
)
async def test_key_or_address_that_no_request_can_have_is_named(kind: type[OpenAIClientBase], given: dict[str, Any], what: str) -> None:
    settings: dict[str, Any] = {"api_key": KEY, "base_url": "http://127.0.0.1:9/v1", **given}
    client = kind("m", **settings)
    with pytest.raises(ModelError, match=what) as caught:
        await ask(client, WHOLE)
    assert not caught.value.retryable
