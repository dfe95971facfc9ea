"""One scripted OpenAI-compatible server for all chat tests; each test sets its own script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from gateway import OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.model_retry import RetryPolicy
from gateway.chat.openai_base import OpenAIClientBase
from tests.chat.asking import KEY
from tests.fakes.openai_server import ScriptedServer, openai_server

AT_ONCE = RetryPolicy(base_seconds=0.0)
"""A retry policy without waits, because the tests examine only the repeated requests."""


@pytest.fixture(scope="session")
def running_server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


@pytest.fixture
def server(running_server: ScriptedServer) -> ScriptedServer:
    return running_server


@pytest.fixture
async def responses(server: ScriptedServer) -> AsyncGenerator[OpenAIChatClient]:
    made = OpenAIChatClient("model-a", api_key=KEY, base_url=server.base_url, timeout_seconds=5, retry=AT_ONCE)
    yield made
    await made.aclose()


@pytest.fixture
async def completions(server: ScriptedServer) -> AsyncGenerator[OpenAIChatCompletionClient]:
    made = OpenAIChatCompletionClient("model-a", api_key=KEY, base_url=server.base_url, timeout_seconds=5, retry=AT_ONCE)
    yield made
    await made.aclose()


@pytest.fixture(params=["responses", "completions"])
def client(request: pytest.FixtureRequest) -> OpenAIClientBase:
    return request.getfixturevalue(request.param)
