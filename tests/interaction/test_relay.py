"""Everything that a gateway must pass on unchanged, on every path from client to server."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from tests.interaction.conftest import Gateways
from tests.interaction.ways import Way, connected, ways

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("way", ways(), ids=str)]


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content if block.type == "text"]


async def test_tools_are_listed_under_their_source_in_server_order(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        names = [tool.name for tool in (await client.list_tools()).tools]
    own = [name for name in names if name.startswith(way.name(""))]
    assert own[:3] == [way.name("echo"), way.name("add"), way.name("fail")]


async def test_result_passes_unchanged_with_structured_content_and_meta(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        result = await client.call_tool(way.name("echo"), {"text": "héllo ✓"})
    assert texts(result) == ["héllo ✓"]
    assert result.structured_content == {"got": {"text": "héllo ✓"}}
    assert (result.meta or {})["com.example/kept"] == 1


@pytest.mark.requirement(1, 25)
@pytest.mark.attack(14)
async def test_undeclared_argument_is_dropped_and_named_to_the_client(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        result = await client.call_tool(way.name("echo"), {"text": "x", "session": "secret"})
    assert result.structured_content == {"got": {"text": "x"}}
    assert (result.meta or {})["dev.moongate/droppedArguments"] == ["session"]


@pytest.mark.attack(14)
async def test_arguments_against_the_schema_are_rejected_before_sending(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        before = (await client.call_tool(way.name("stats"), {})).structured_content
        result = await client.call_tool(way.name("add"), {"a": 1, "b": "two"})
        after = (await client.call_tool(way.name("stats"), {})).structured_content
    assert result.is_error
    assert "b" in texts(result)[0]
    assert before is not None and after is not None
    assert after["calls"].get("add", 0) == before["calls"].get("add", 0)


async def test_images_audio_links_and_embedded_resources_arrive_unchanged(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        picture: Any = (await client.call_tool(way.name("picture"), {})).content[0]
        rich: list[Any] = list((await client.call_tool(way.name("rich"), {})).content)
        embedded, link, audio = rich
        followed = await client.read_resource(link.uri)
    assert (picture.type, picture.mime_type) == ("image", "image/png")
    assert (embedded.resource.text, embedded.resource.uri) == ("inside", way.uri("data://inner"))
    assert (link.uri, link.size) == (way.uri("data://report"), 3)
    assert audio.mime_type == "audio/wav"
    assert followed.contents[0].uri == link.uri


async def test_tool_failure_stays_an_error_result(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        result = await client.call_tool(way.name("fail"), {})
    assert result.is_error
    assert texts(result) == ["it did not work"]


async def test_upstream_protocol_error_becomes_a_readable_result(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        result = await client.call_tool(way.name("raise_error"), {})
    assert result.is_error
    assert "the database said no" in texts(result)[0]


async def test_unknown_tool_is_an_invalid_params_error(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        with pytest.raises(MCPError) as caught:
            await client.call_tool(way.name("no_such_tool"), {})
    assert caught.value.error.code == -32602


async def test_progress_arrives_in_order(gateways: Gateways, way: Way) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with connected(way, gateways.target(way)) as (client, _):
        await client.call_tool(way.name("progress"), {}, progress_callback=note)
    assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_log_message_reaches_the_client_whose_call_caused_it(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        with anyio.fail_after(20):
            await client.call_tool(way.name("say"), {"level": "warning"})
            while not heard.logs:
                await anyio.sleep(0.01)
    assert [(entry.level, entry.data, entry.logger) for entry in heard.logs] == [("warning", {"said": "hello"}, "fake")]


async def test_connected_client_answers_an_elicitation(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        result = await client.call_tool(way.name("ask_name"), {})
    assert texts(result) == ["accept: Ada"]
    assert [asked.message for asked in heard.asked] == [way.asking("Your name?")]


@pytest.mark.requirement(39, 48, 50)
async def test_sampling_request_is_relayed_with_tokens_capped_per_gateway(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, heard):
        result = await client.call_tool(way.name("ask_model"), {})
    assert texts(result) == ["Paris"]
    assert [asked.max_tokens for asked in heard.asked] == [4096]


async def test_workspace_folders_come_from_the_connected_client(gateways: Gateways, way: Way) -> None:
    way = Way(way.front, way.era, f"{way.upstream}-roots")
    async with connected(way, gateways.target(way)) as (client, _):
        result = await client.call_tool(way.name("ask_roots"), {})
    assert texts(result) == ["file:///work/ada"]


async def test_client_without_elicitation_gets_an_error_not_a_hang(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way), capable=False) as (client, _):
        with anyio.fail_after(20):
            try:
                result = await client.call_tool(way.name("ask_name"), {})
            except MCPError as error:
                assert error.error.code == -32021
            else:
                assert result.is_error


async def test_cancelling_a_call_reaches_the_server(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        before = (await client.call_tool(way.name("stats"), {})).structured_content
        async with anyio.create_task_group() as tasks:

            async def stop(progress: float, total: float | None, message: str | None) -> None:
                tasks.cancel_scope.cancel()

            async def call() -> None:
                await client.call_tool(way.name("hang"), {}, progress_callback=stop)

            tasks.start_soon(call)
        assert before is not None
        with anyio.fail_after(20):
            while True:
                after = (await client.call_tool(way.name("stats"), {})).structured_content
                assert after is not None
                if after["cancelled"].get("hang", 0) > before["cancelled"].get("hang", 0):
                    break
                await anyio.sleep(0.02)


async def test_vendor_meta_crosses_and_connection_meta_does_not(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        seen = (await client.call_tool(way.name("who"), {}, meta={"com.example/tenant": "a"})).structured_content
    assert seen is not None
    assert "com.example/tenant" in seen["meta"]
    assert not [key for key in seen["meta"] if key == "progressToken"]
    assert {"elicitation", "sampling"} <= set(seen["capabilities"])


async def test_resources_are_read_whole_listed_or_not(gateways: Gateways, way: Way) -> None:
    async with connected(way, gateways.target(way)) as (client, _):
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        templates = [template.uri_template for template in (await client.list_resource_templates()).resource_templates]
        blob: Any = (await client.read_resource(way.uri("data://report"))).contents[0]
        item: Any = (await client.read_resource(way.uri("data://item/7"))).contents[0]
    assert way.uri("data://watched") in listed
    assert way.uri("data://item/{id}") in templates
    assert blob.mime_type == "application/pdf"
    assert item.text == "data://item/7"


async def test_missing_resource_is_named_in_the_error(gateways: Gateways, way: Way) -> None:
    uri = way.uri("data://nothing")
    async with connected(way, gateways.target(way)) as (client, _):
        with pytest.raises(MCPError) as caught:
            await client.read_resource(uri)
    assert caught.value.error.code == (-32002 if way.era == "legacy" else -32602)
    assert caught.value.error.data == {"uri": uri}


async def test_prompts_and_their_completion_come_from_the_server(gateways: Gateways, way: Way) -> None:
    import mcp_types as t

    name = way.name("greet")
    async with connected(way, gateways.target(way)) as (client, _):
        listed = [prompt.name for prompt in (await client.list_prompts()).prompts]
        rendered: Any = await client.get_prompt(name, {"who": "Ada"})
        completed = await client.complete(t.PromptReference(type="ref/prompt", name=name), {"name": "who", "value": "A"})
    assert name in listed
    assert rendered.messages[0].content.text == "Greet Ada."
    assert completed.completion.values == ["Ada"]
