"""Big results are shortened without loss: over both transports and in both eras, across restarts, for their own caller only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.large import lines_text, picture, rows_of, rows_text
from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, gateway_command, gateway_http, upstream_http, upstream_stdio, write_config
from tests.fakes.upstream import PIXEL
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(120)

MODULE = "tests.fakes.large"
SMALL: dict[str, Any] = {"policies": {"up": {"maxResultBytes": 100_000}, "old": {"maxResultBytes": 100_000}}}
MEGABYTES_20 = 220_000
"""Rows that make about 20 MB of JSON."""

MEGABYTES_5 = 80_000
"""Lines that make about 5 MB of text."""

SHORTENED = "dev.moongate/shortened"


@dataclass(frozen=True)
class Fronts:
    """The URLs and configuration files of gateways that serve the same upstream servers."""

    http: str
    stdio: Path
    small: str
    """Like `http` with a small size budget; `small_stdio` is like `stdio` with the same budget."""
    small_stdio: Path

    def target(self, front: str, *, small: bool = False) -> str | StdioServerParameters:
        if front == "http":
            return self.small if small else self.http
        command, args = gateway_command(self.small_stdio if small else self.stdio)
        return StdioServerParameters(command=command, args=args, cwd=ROOT)


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fronts]:
    folder = tmp_path_factory.mktemp("results")
    with ExitStack() as stack:
        url = stack.enter_context(upstream_http(module=MODULE))
        config = {"mcpServers": {"up": {"type": "http", "url": url}, "old": upstream_stdio("--legacy", module=MODULE)}}
        http = stack.enter_context(gateway_http(folder, config, "front"))
        small = stack.enter_context(gateway_http(folder, {**config, **SMALL}, "small"))
        yield Fronts(http, write_config(folder, config, "stdio"), small, write_config(folder, {**config, **SMALL}, "small-stdio"))


def ids_of(result: Any) -> list[str]:
    return [note["id"] for note in result.meta[SHORTENED]]


async def read_part(client: Client, arguments: dict[str, Any]) -> Any:
    return await client.call_tool("read_result", arguments)


async def read_all(client: Client, result_id: str, **how: Any) -> str:
    """Every page, put together again."""
    text: str = ""
    page = 1
    while True:
        part = await read_part(client, {"id": result_id, "page": page, "page_size": 262_144, **how})
        assert not part.is_error, part.content[0].text
        text += part.content[0].text
        if page == part.meta["dev.moongate/part"]["pages"]:
            return text
        page += 1


FRONTS = [("http", "modern"), ("http", "legacy"), ("stdio", "modern"), ("stdio", "legacy")]


WAYS = [(*front, upstream) for front in FRONTS for upstream in ("up", "old")]
HUGE = {("http", "modern", "up"), ("http", "legacy", "old")}
"""Paths whose results have 20 MB, one for each kind of server. The other paths have results of 2 MB and a smaller budget."""


@pytest.mark.parametrize(("front", "era", "upstream"), WAYS)
@pytest.mark.faults
async def test_twenty_megabytes_of_json_arrive_as_head_and_stay_readable(
    fronts: Fronts, front: str, era: Any, upstream: str
) -> None:
    huge = (front, era, upstream) in HUGE
    rows = MEGABYTES_20 if huge else MEGABYTES_20 // 10
    whole = rows_text(rows)
    assert len(whole) > (20_000_000 if huge else 2_000_000)
    async with connected(Way("http", era, upstream), fronts.target(front, small=not huge)) as (client, _):
        with anyio.fail_after(100):
            result: Any = await client.call_tool(f"{upstream}__rows", {"count": rows})
            [kept] = set(ids_of(result))
            again = await read_all(client, kept)
            one: Any = await client.call_tool("read_result", {"id": kept, "pointer": f"/rows/{rows - 100}"})
            searched = {"id": f"moongate://results/{kept}", "search": f"ROW NUMBER {rows // 2 + 1} "}
            found: Any = await client.call_tool("read_result", searched)
            link = next(block for block in result.content if block.type == "resource_link")
            if (front, era) != ("http", "legacy"):  # that client takes at most 1 MiB in one event
                linked: Any = await client.read_resource(link.uri)
                assert linked.contents[0].text == whole
    assert not result.is_error
    assert result.structured_content is None
    head, notice = result.content[0].text, result.content[1].text
    assert whole.startswith(head)
    assert 10_000 < len(head.encode()) < 20_000
    assert f'"rows": array, {rows:,} items (object)' in notice
    assert kept in notice
    assert sum(len(block.model_dump_json()) for block in result.content) < 30_000
    assert again == whole
    assert json.loads(one.content[0].text) == rows_of(rows - 99)["rows"][rows - 100]
    assert f"row number {rows // 2 + 1} x" in found.content[0].text
    assert link.size == len(whole.encode())


@pytest.mark.parametrize(("front", "era"), FRONTS)
async def test_five_megabytes_of_text_are_read_by_lines_and_join_again(fronts: Fronts, front: str, era: Any, tmp_path: Path) -> None:
    whole = lines_text(MEGABYTES_5)
    config = write_config(tmp_path, {"mcpServers": {"up": upstream_stdio(module=MODULE)}, **SMALL}, "lines")
    command, args = gateway_command(config)
    target = fronts.small if front == "http" else StdioServerParameters(command=command, args=args, cwd=ROOT)
    async with connected(Way("http", era, "up"), target) as (client, _):
        with anyio.fail_after(100):
            result: Any = await client.call_tool("up__lines", {"count": MEGABYTES_5})
            [kept] = ids_of(result)
            by_lines = [await read_all(client, kept, lines=f"{a}-{a + 19_999}") for a in range(1, MEGABYTES_5, 20_000)]
            odd: list[Any] = [await client.call_tool("read_result", {"id": kept, "page": n, "page_size": 257}) for n in range(1, 9)]
            none: Any = await client.call_tool("read_result", {"id": kept, "lines": "80001-"})
            not_json: Any = await client.call_tool("read_result", {"id": kept, "pointer": "/0"})
    assert len(whole) > 4_000_000
    assert "text, 80,000 lines" in result.content[1].text
    assert "\n".join(by_lines) == whole
    assert whole.startswith("".join(part.content[0].text for part in odd))
    assert none.is_error
    assert "80000 lines" in none.content[0].text
    assert not_json.is_error


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_media_order_annotations_and_meta_stay_when_texts_are_cut(fronts: Fronts, era: Any) -> None:
    async with connected(Way("http", era, "up"), fronts.small) as (client, _):
        result: Any = await client.call_tool("up__mixed", {"count": 5_000})
        texts = [await read_all(client, kept) for kept in ids_of(result)]
    kinds = [block.type for block in result.content]
    assert kinds == ["text", "image", "text", "text", "resource_link", "resource", "text", "resource_link", "audio", "text"]
    assert result.is_error
    assert result.meta["com.example/kept"] == 1
    assert result.content[1] == picture()
    assert result.content[8].data == PIXEL * 500
    assert (result.content[0].text, result.content[9].text) == ("first", "last")
    assert result.content[2].annotations.priority == 0.5
    assert result.content[5].resource.mime_type == "text/csv"
    assert texts == [lines_text(5_000)] * 2
    assert result.content[7].mime_type == "text/csv"


async def test_pictures_alone_are_never_shortened(fronts: Fronts) -> None:
    async with connected(Way("http", "modern", "up"), fronts.small) as (client, _):
        result: Any = await client.call_tool("up__pictures", {"count": 10})
    assert [block.type for block in result.content] == ["text"] + ["image"] * 10
    assert sum(len(block.data) for block in result.content[1:]) > 300_000


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("upstream", ["up", "old"])
async def test_large_picture_arrives_unchanged_and_its_caption_cleaned(fronts: Fronts, era: Any, upstream: str) -> None:
    async with connected(Way("http", era, upstream), fronts.http) as (client, _):
        plain: Any = await client.call_tool(f"{upstream}__shown", {"count": 12_000})
        hiding: Any = await client.call_tool(f"{upstream}__secretly_shown", {"count": 12_000})
    for result, caption, meta in ((plain, "a plain caption", None), (hiding, "a caption", "stripped")):
        assert [block.type for block in result.content] == ["text", "image"]
        assert result.content[0].text == caption
        assert result.content[1].data == PIXEL * 12_000
        assert (dict(result.meta) if result.meta else {}).get("dev.moongate/hiddenText") == meta


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("upstream", ["up", "old"])
async def test_long_text_that_is_also_structured_arrives_as_both_cleaned(
    fronts: Fronts, era: Any, upstream: str
) -> None:
    async with connected(Way("http", era, upstream), fronts.http) as (client, _):
        for tool in ("twice", "secretly_twice"):
            result: Any = await client.call_tool(f"{upstream}__{tool}", {"count": 3_000})
            assert [block.text for block in result.content] == [lines_text(3_000)]
            assert result.structured_content == {"result": lines_text(3_000)}


async def test_many_small_texts_are_kept_as_one_document(fronts: Fronts) -> None:
    async with connected(Way("http", "modern", "up"), fronts.small) as (client, _):
        result: Any = await client.call_tool("up__crowd", {"count": 5_000})
        [kept] = ids_of(result)
        blocks = json.loads(await read_all(client, kept))
    assert [block.type for block in result.content] == ["text", "text", "resource_link", "image"]
    assert [block["text"] for block in blocks] == [f"block {n} " + "y" * 90 for n in range(5_000)]


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("tool", ["typed_rows", "closed_rows"])
async def test_structured_content_with_schema_still_matches_after_cut(fronts: Fronts, era: Any, tool: str) -> None:
    async with connected(Way("http", era, "up"), fronts.small) as (client, _):
        result: Any = await client.call_tool(f"up__{tool}", {"count": 5_000})  # the SDK client checks it against the schema
        texts = {kept: await read_all(client, kept) for kept in ids_of(result)}
    cut = dict(result.structured_content)
    marker = cut.pop(SHORTENED, None)
    assert not result.is_error
    assert cut["total"] == 5_000
    assert 0 < len(cut["rows"]) < 100
    assert cut["rows"] == rows_of(5_000)["rows"][: len(cut["rows"])]
    assert (marker is not None) is (tool == "typed_rows")
    assert "do not take it for the whole" in result.content[-1].text
    assert list(texts.values()) == [rows_text(5_000)]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_uncuttable_structured_content_is_an_error_and_kept_whole(fronts: Fronts, era: Any) -> None:
    async with connected(Way("http", era, "up"), fronts.small) as (client, _):
        result: Any = await client.call_tool("up__uncuttable_rows", {"count": 5_000})
        [kept] = set(ids_of(result))
        assert await read_all(client, kept) == rows_text(5_000)
    assert result.is_error
    assert result.structured_content is None
    assert "The call succeeded" in result.content[-1].text


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_large_resource_and_large_prompt_are_shortened_alike(fronts: Fronts, era: Any) -> None:
    whole = lines_text(100_000)
    async with connected(Way("http", era, "up"), fronts.small) as (client, _):
        resource: Any = await client.read_resource("up+data://lines")
        prompt: Any = await client.get_prompt("up__long")
        head, notice = resource.contents
        assert await read_all(client, str(notice.uri)) == whole
        assert await read_all(client, prompt.meta[SHORTENED][0]["id"]) == whole
    assert str(head.uri) == "up+data://lines"
    assert whole.startswith(head.text)
    assert [message.role for message in prompt.messages] == ["assistant"] * 3
    assert [message.content.type for message in prompt.messages] == ["text", "text", "resource_link"]


async def test_result_too_large_to_keep_is_rejected_by_a_named_rule(tmp_path: Path) -> None:
    policy = {"up": {"maxResultBytes": 10_000, "maxKeptBytes": 100_000}}
    storage = {"dir": str(tmp_path / "state"), "maxResultBytesPerCaller": 50_000}
    config = {"mcpServers": {"up": upstream_stdio(module=MODULE)}, "policies": policy, "storage": storage}
    with gateway_http(tmp_path, config) as url:
        async with connected(Way("http", "modern", "up"), url) as (client, _):
            large: Any = await client.call_tool("up__lines", {"count": 10_000})
            middle: Any = await client.call_tool("up__lines", {"count": 1_400})
            fits: Any = await client.call_tool("up__lines", {"count": 700})
    assert large.is_error
    assert "maxKeptBytes" in large.content[0].text
    assert middle.is_error
    assert "maxResultBytesPerCaller" in middle.content[0].text
    assert not fits.is_error


async def test_result_of_another_caller_reads_as_unknown(tmp_path: Path) -> None:
    config = {"mcpServers": {"up": upstream_stdio(module=MODULE)}, **SMALL}
    path = write_config(tmp_path, config)
    keys = [new_key(path, name) for name in ("ada", "bob")]
    with gateway_http(tmp_path, config) as url:
        async with connected_with(url, keys[0]) as ada, connected_with(url, keys[1]) as bob:
            result: Any = await ada.call_tool("up__lines", {"count": 5_000})
            [kept] = ids_of(result)
            answers: list[str] = []
            for result_id in (kept, "A" * len(kept)):
                read: Any = await bob.call_tool("read_result", {"id": result_id})
                assert read.is_error
                with pytest.raises(MCPError) as refused:
                    await bob.read_resource(f"moongate://results/{result_id}")
                answers.append(f"{read.content[0].text} {refused.value.error}".replace(result_id, "ID"))
            assert await read_all(ada, kept) == lines_text(5_000)
    assert answers[0] == answers[1]


async def test_results_outlive_the_process_and_share_the_state_folder(tmp_path: Path) -> None:
    config = {"mcpServers": {"up": upstream_stdio(module=MODULE)}, **SMALL, "storage": {"dir": str(tmp_path / "state")}}
    with gateway_http(tmp_path, config, "one") as one, gateway_http(tmp_path, config, "two") as two:
        async with connected(Way("http", "modern", "up"), one) as (client, _):
            [kept] = ids_of(await client.call_tool("up__lines", {"count": 5_000}))
        async with connected(Way("http", "modern", "up"), two) as (client, _):
            assert await read_all(client, kept) == lines_text(5_000)
    [file] = [path for path in (tmp_path / "state" / "results").rglob("*") if path.is_file()]
    assert file.stat().st_mode & 0o777 == 0o600
    with gateway_http(tmp_path, config, "three") as three:
        async with connected(Way("http", "legacy", "up"), three) as (client, _):
            assert await read_all(client, kept) == lines_text(5_000)


async def test_results_expire_and_are_swept_while_the_gateway_runs(tmp_path: Path) -> None:
    storage = {"dir": str(tmp_path / "state"), "resultTtlSeconds": 2}
    with gateway_http(tmp_path, {"mcpServers": {"up": upstream_stdio(module=MODULE)}, **SMALL, "storage": storage}) as url:
        async with connected(Way("http", "modern", "up"), url) as (client, _):
            [kept] = ids_of(await client.call_tool("up__lines", {"count": 5_000}))
            with anyio.fail_after(20):
                while any(path.is_file() for path in (tmp_path / "state" / "results").rglob("*")):
                    await anyio.sleep(0.05)
                gone: Any = await client.call_tool("read_result", {"id": kept})
    assert gone.is_error
    assert "may have expired" in gone.content[0].text


def new_key(config: Path, name: str) -> str:
    """An API key of a gateway, made as an operator makes it."""
    command, args = sooner("gateway", "keys", "add", name, "--config", str(config), "--json")
    made = subprocess.run(
        [command, *args],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return str(json.loads(made.stdout)["key"])


def connected_with(url: str, key: str) -> Client:
    """Return a client that sends this API key."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return Client(streamable_http_client(url, http_client=http), mode="2026-07-28", cache=None)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_result_no_client_could_read_is_a_named_error(tmp_path: Path, era: Any) -> None:
    odd: list[dict[str, Any]] = [{"content": [block]} for block in (None, {"type": "text", "text": 5}, {"type": ["text"]}, {"type": "new"})]
    told = {"tools": [{"name": "odd", "inputSchema": {"type": "object"}}], "results": {"odd": [*odd, {"content": [], "_meta": [1]}]}}
    with raw_inside(told) as url, gateway_inside(tmp_path, {"mcpServers": {"up": {"type": "http", "url": url}}}) as gateway:
        async with Client(gateway.url, mode=era) as client:
            for _ in range(5):
                result = await client.call_tool("up__odd", {})
                [block] = result.content
                assert result.is_error and "cannot be read; it may have run" in getattr(block, "text", ""), result
