"""Sampling requests of the servers of an `MCPTool`: a callback of the program approves them, and limits cap their number and size."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from gateway import MCPStreamableHTTPTool, ScriptedChatClient
from gateway.errors import ModelError, ToolFailed, UpstreamError
from gateway.upstream.library.mcp_tool_options import MCPToolOptions
from tests.upstream.library.made_tools import Make, texts


def sampling(client: ScriptedChatClient | None = None, **more: Any) -> MCPToolOptions:
    options: dict[str, Any] = {"client": client, **more}
    return options  # pyright: ignore[reportReturnType]  # built from a test's keywords


@pytest.mark.requirement(28)
async def test_sampling_is_announced_only_with_a_chat_client(make: Make) -> None:
    async with make() as plain, make(sampling(ScriptedChatClient([]))) as able:
        without, having = await plain.call_tool("who"), await able.call_tool("who")
    assert "sampling" not in str(texts(without)[0])
    assert "sampling" in str(texts(having)[0])


@pytest.mark.requirement(30)
async def test_without_an_approval_every_request_is_refused(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedChatClient(["Paris"])
    async with make(sampling(client)) as tool:
        with pytest.raises((ToolFailed, UpstreamError), match="sampling"):
            await tool.call_tool("ask_model")
    assert client.requests == []


def approve(params: Any) -> bool:
    return True


def approve_loosely(params: Any) -> Any:
    return "yes"


async def approve_later(params: Any) -> bool:
    await anyio.lowlevel.checkpoint()
    return True


@pytest.mark.requirement(31, 39)
@pytest.mark.parametrize("decision", [approve, approve_loosely, approve_later], ids=["sync", "truthy", "async"])
async def test_approved_sampling_request_is_answered_within_the_cap(make: Make, decision: Any) -> None:
    client = ScriptedChatClient(["Paris"])
    async with make(sampling(client, sampling_approval_callback=decision)) as tool:
        assert texts(await tool.call_tool("ask_model")) == ["Paris"]
    assert client.requests[0][1].get("max_tokens") == 4096


def refuse(params: Any) -> bool:
    return False


def refuse_loosely(params: Any) -> Any:
    return 0


def explode(params: Any) -> bool:
    raise RuntimeError("no decision today")


@pytest.mark.requirement(31, 32, 35)
@pytest.mark.parametrize("decision", [refuse, refuse_loosely, explode], ids=["false", "falsy", "raises"])
async def test_rejected_sampling_request_consumes_the_budget(urls: dict[str, str], decision: Any) -> None:
    asked: list[Any] = []

    def decide(params: Any) -> bool:
        asked.append(params)
        return bool(decision(params))

    client = ScriptedChatClient([])
    options = sampling(client, sampling_approval_callback=decide, sampling_max_requests=2)
    async with MCPStreamableHTTPTool("fake", urls["legacy"], **options) as tool:
        for _ in range(4):
            with pytest.raises((ToolFailed, UpstreamError)):
                await tool.call_tool("ask_model")
    assert len(asked) == 2
    assert client.requests == []


@pytest.mark.requirement(33)
async def test_the_callback_sees_the_request_before_it_is_capped(make: Make) -> None:
    seen: list[int] = []

    def decide(params: Any) -> bool:
        seen.append(params.max_tokens)
        return True

    client = ScriptedChatClient(["Paris"])
    async with make(sampling(client, sampling_approval_callback=decide, sampling_max_tokens=50)) as tool:
        await tool.call_tool("ask_model")
    assert seen == [100_000]
    assert client.requests[0][1].get("max_tokens") == 50


@pytest.mark.requirement(36, 38)
async def test_default_budget_is_25_and_a_new_connection_refills_it(urls: dict[str, str]) -> None:
    client = ScriptedChatClient(["Paris"] * 40)
    options = sampling(client, sampling_approval_callback=approve)
    async with MCPStreamableHTTPTool("fake", urls["legacy"], **options) as tool:
        for _ in range(25):
            await tool.call_tool("ask_model")
        await tool.load_tools()
        with pytest.raises((ToolFailed, UpstreamError)):
            await tool.call_tool("ask_model")
        assert len(client.requests) == 25
        await tool.connect(reset=True)
        assert texts(await tool.call_tool("ask_model")) == ["Paris"]


@pytest.mark.requirement(37)
async def test_budget_none_is_unlimited_and_budget_zero_rejects_all(urls: dict[str, str]) -> None:
    client = ScriptedChatClient(["Paris"] * 40)
    always: Any = {"sampling_approval_callback": approve}
    async with MCPStreamableHTTPTool("fake", urls["legacy"], **sampling(client, **always, sampling_max_requests=None)) as tool:
        for _ in range(30):
            await tool.call_tool("ask_model")
    async with MCPStreamableHTTPTool("fake", urls["legacy"], **sampling(client, **always, sampling_max_requests=0)) as tool:
        with pytest.raises((ToolFailed, UpstreamError)):
            await tool.call_tool("ask_model")
    assert len(client.requests) == 30


@pytest.mark.requirement(29, 42)
async def test_unanswerable_request_is_an_internal_error(urls: dict[str, str]) -> None:
    client = ScriptedChatClient([ModelError("overloaded")])
    options = sampling(client, sampling_approval_callback=approve)
    async with MCPStreamableHTTPTool("fake", urls["legacy"], **options) as tool:
        with pytest.raises((ToolFailed, UpstreamError)):
            await tool.call_tool("ask_model")
    async with MCPStreamableHTTPTool("fake", urls["legacy"]) as tool:
        with pytest.raises((ToolFailed, UpstreamError)):
            await tool.call_tool("ask_model")


@pytest.mark.requirement(40)
async def test_every_decision_is_logged_without_content(urls: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedChatClient(["Paris, of course"])
    options = sampling(client, sampling_approval_callback=approve, sampling_max_requests=1)
    with caplog.at_level(logging.DEBUG, logger="gateway"):
        async with MCPStreamableHTTPTool("fake", urls["legacy"], **options) as tool:
            await tool.call_tool("ask_model")
            with pytest.raises((ToolFailed, UpstreamError)):
                await tool.call_tool("ask_model")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("messages=1 max_tokens=100000" in text for text in warnings)
    assert any("max_tokens=100000 capped=4096" in text for text in warnings)
    assert any("rule=sampling.maxRequests" in text for text in warnings)
    assert not any("France" in r.getMessage() or "Paris" in r.getMessage() for r in caplog.records)


@asynccontextmanager
async def own_session(url: str) -> AsyncGenerator[ClientSession]:
    async with streamable_http_client(url) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield session


@pytest.mark.requirement(45)
async def test_sampling_settings_do_not_apply_to_a_given_session(urls: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedChatClient(["Paris"])
    async with own_session(urls["legacy"]) as session:
        options = sampling(client, sampling_approval_callback=approve, session=session)
        async with MCPStreamableHTTPTool("fake", urls["legacy"], **options) as tool:
            assert texts(await tool.call_tool("echo", text="hi"))[0] == "hi"
            with pytest.raises((ToolFailed, UpstreamError)):
                await tool.call_tool("ask_model")
        assert (await session.list_tools()).tools  # still the program's, and open
    assert "these sampling settings do not apply" in caplog.text
    assert client.requests == []
