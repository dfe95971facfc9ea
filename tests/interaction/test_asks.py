"""The era bridge in all four cells (client and upstream each of 2025 or 2026), over sockets and pipes.

A server may request input during calls, reads and prompts, at a URL or in several rounds. The tests also cover clients that cannot
or do not answer.
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as t
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl

from tests.interaction.conftest import Gateways
from tests.interaction.ways import MODERN, Way, cells, connected, ways

pytestmark = [pytest.mark.timeout(60)]
MISSING_CAPABILITY = -32021


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("way", ways(), ids=str)
async def test_url_elicitation_is_shown_in_the_clients_protocol(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        result = await client.call_tool(way.name("ask_url"), {})
    assert text_of(result) == "accept"
    assert [(asked.mode, asked.url) for asked in heard.asked] == [("url", "https://accounts.example.com/consent")]
    assert bool(heard.asked[0].elicitation_id) is (way.era == "legacy")


@pytest.mark.parametrize("way", [way for way in ways() if way.era == "legacy" and way.upstream.startswith("new")], ids=str)
async def test_client_2025_is_notified_when_2026_url_elicitation_completes(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        await client.call_tool(way.name("ask_url"), {})
        with anyio.fail_after(20):
            while not (done := [m for m in heard.messages if getattr(m, "method", "") == "notifications/elicitation/complete"]):
                await anyio.sleep(0.01)
    assert [message.params.elicitation_id for message in done] == [heard.asked[0].elicitation_id]


@pytest.mark.parametrize("way", [way for way in ways() if way.upstream.startswith("old")], ids=str)
async def test_url_required_error_of_2025_server_elicits_from_2026_client(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        if way.era == "modern" or way.hops == 2:  # the front gateway is a 2026 client of the second, and then asks its own client
            assert text_of(await client.call_tool(way.name("need_url"), {})) == "signed in"
            assert [asked.url for asked in heard.asked] == ["https://accounts.example.com/sign-in"]
            return
        with pytest.raises(MCPError) as caught:
            await client.call_tool(way.name("need_url"), {})
        assert text_of(await client.call_tool(way.name("need_url"), {})) == "signed in"
    data: Any = caught.value.error.data
    assert caught.value.error.code == -32042
    assert [entry["url"] for entry in data["elicitations"]] == ["https://accounts.example.com/sign-in"]


@pytest.mark.parametrize("way", ways(), ids=str)
async def test_progress_and_logs_reach_the_current_leg_of_a_call(gateways: Gateways, way: Way) -> None:
    heard_progress: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard_progress.append(progress)

    async with connected(way, gateways.target(way)) as (client, heard):
        result = await client.call_tool(way.name("ask_twice"), {}, progress_callback=note)
        with anyio.fail_after(20):
            while not heard.logs:
                await anyio.sleep(0.01)
    assert text_of(result) == "Ada: Paris"
    assert len(heard.asked) == 2
    assert len(heard_progress) >= 3
    assert heard_progress == sorted(heard_progress)


@pytest.mark.parametrize("way", ways(), ids=str)
async def test_connected_client_answers_for_a_resource_and_a_prompt(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        resource: Any = await client.read_resource(way.uri("data://asked"))
        prompt: Any = await client.get_prompt(way.name("asked"), {})
    assert resource.contents[0].text == "for Ada"
    assert prompt.messages[0].content.text == "for Ada"
    assert [asked.message for asked in heard.asked] == [way.asking("Your name?")] * 2


@pytest.mark.parametrize("way", cells(), ids=str)
async def test_missing_client_capability_is_named_in_the_error(gateways: Gateways, way: Way) -> None:
    async def outcomes(client: Client) -> list[Any]:
        found: list[Any] = []
        for attempt in (
            lambda: client.call_tool(way.name("ask_name"), {}),
            lambda: client.read_resource(way.uri("data://asked")),
            lambda: client.get_prompt(way.name("asked"), {}),
        ):
            try:
                found.append(await attempt())
            except MCPError as error:
                found.append(error.error)
        return found

    async with connected(way, gateways.target(way), capable=False) as (client, _):
        with anyio.fail_after(20):
            called, *read = await outcomes(client)
    if way.era == "modern":
        for error in (called, *read):
            assert error.code == MISSING_CAPABILITY
            assert "elicitation" in error.data["requiredCapabilities"]
    else:
        assert called.is_error
        assert "elicitation" in text_of(called)
        assert all("elicitation" in error.message for error in read)


@pytest.mark.parametrize("way", cells(), ids=str)
async def test_client_disconnect_after_its_answer_cancels_upstream_call(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):

        async def cancelled() -> int:
            seen: Any = (await client.call_tool(way.name("stats"), {})).structured_content
            return seen["cancelled"].get("ask_then_hang", 0)

        before = await cancelled()
        async with anyio.create_task_group() as tasks:

            async def stop(progress: float, total: float | None, message: str | None) -> None:
                tasks.cancel_scope.cancel()

            async def call() -> None:
                await client.call_tool(way.name("ask_then_hang"), {}, progress_callback=stop)

            tasks.start_soon(call)
        with anyio.fail_after(20):
            while await cancelled() == before:
                await anyio.sleep(0.02)


@pytest.mark.parametrize("way", [way for way in cells() if way.era == "legacy" and way.upstream.startswith("old")], ids=str)
async def test_client_cancellation_while_elicited_cancels_upstream_call(gateways: Gateways, way: Way) -> None:
    asked = anyio.Event()

    async def never(context: Any, params: Any) -> t.ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with Client(str(gateways.target(way)), mode="legacy", elicitation_callback=never) as client:

        async def cancelled() -> int:
            seen: Any = (await client.call_tool(way.name("stats"), {})).structured_content
            return seen["cancelled"].get("ask_then_hang", 0)

        before = await cancelled()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, way.name("ask_then_hang"))
                await asked.wait()
                tasks.cancel_scope.cancel()
            while await cancelled() == before:
                await anyio.sleep(0.02)


@pytest.mark.parametrize("kind", ["old-http", "new-http"])
async def test_concurrent_clients_each_get_the_request_of_their_own_call(gateways: Gateways, kind: str) -> None:
    """`roots/list` arrives outside any call's stream, so the gateway can find its call only by a separate session per call."""
    way = Way("http", "modern", f"{kind}-roots")
    both, seen = anyio.Event(), list[str]()
    results: dict[str, str] = {}

    async def call(name: str) -> None:
        async def folders(context: Any) -> t.ListRootsResult:
            seen.append(name)
            if len(seen) == 2:
                both.set()
            await both.wait()
            return t.ListRootsResult(roots=[t.Root(uri=FileUrl(f"file:///{name}"))])

        async with Client(str(gateways.target(way)), mode=MODERN, cache=None, list_roots_callback=folders) as client:
            results[name] = text_of(await client.call_tool(way.name("ask_roots"), {}))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "ada")
            tasks.start_soon(call, "bob")
    assert results == {"ada": "file:///ada", "bob": "file:///bob"}
