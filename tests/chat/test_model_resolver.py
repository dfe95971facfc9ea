"""The model that an agent gets for its spec and the environment."""

from __future__ import annotations

import pytest

from gateway import CallContext, OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.model_resolver import DEFAULT_MODEL, ModelResolver
from gateway.chat.sampling_client import SamplingChatClient
from gateway.errors import ModelError
from gateway.tools.call_facts import CallFacts
from gateway.tools.ports import ClientProfile

KEY = {"OPENAI_API_KEY": "sk-x"}
URL = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
PLAIN = CallContext()
SAMPLING = CallContext(CallFacts(client=ClientProfile(capabilities={"sampling": {}})))


@pytest.mark.parametrize(
    ("spec", "environ", "default", "kind", "model"),
    [
        ("auto", KEY, None, OpenAIChatClient, DEFAULT_MODEL),
        ("auto", KEY, "from-defaults", OpenAIChatClient, "from-defaults"),
        ("auto", {**KEY, "OPENAI_MODEL": "from-env"}, "from-defaults", OpenAIChatClient, "from-env"),
        ("auto", {**URL, "OPENAI_MODEL": "local"}, None, OpenAIChatCompletionClient, "local"),
        ("openai:big", {**KEY, **URL}, None, OpenAIChatClient, "big"),
        ("openai-chat:small", KEY, None, OpenAIChatCompletionClient, "small"),
    ],
)
async def test_the_endpoint_of_the_environment_decides(
    spec: str, environ: dict[str, str], default: str | None, kind: type, model: str
) -> None:
    resolver = ModelResolver(environ, default)
    client = resolver.resolve(spec, SAMPLING)
    assert (type(client), client.model) == (kind, model)
    assert resolver.resolve(spec, SAMPLING) is client
    await resolver.aclose()


def test_clients_own_model_is_chosen_for_each_run_without_endpoint() -> None:
    resolver = ModelResolver({}, "unused")
    first = resolver.resolve("auto", SAMPLING)
    assert isinstance(first, SamplingChatClient)
    assert resolver.resolve("auto", SAMPLING) is not first


@pytest.mark.parametrize(
    ("spec", "environ", "says"),
    [
        ("auto", {}, ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "sampling"]),
        ("auto", URL, ["OPENAI_MODEL", "defaults.model"]),
        ("openai:big", {}, ["openai:big", "OPENAI_API_KEY"]),
        ("claude:opus", KEY, ["claude:opus", "openai:NAME", "openai-chat:NAME"]),
        ("openai:", KEY, ["openai:NAME"]),
    ],
)
def test_unavailable_model_is_an_error_that_names_the_setting(spec: str, environ: dict[str, str], says: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        ModelResolver(environ, None).resolve(spec, PLAIN)
    assert all(word in str(caught.value) for word in says)
