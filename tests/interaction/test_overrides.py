"""Tools published otherwise than their server wrote them (`policies.<s>.overrides`), on both kinds of server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.fakes.running import gateway_http, raw_http, raw_stdio
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(60)

SEARCH: dict[str, Any] = {
    "name": "search",
    "title": "Server's title",
    "description": "Server's words.",
    "annotations": {"title": "Server's title", "readOnlyHint": True},
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "tenant": {"type": "string", "x-mcp-header": "Tenant"},
            "region": {"type": "string", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "maximum": 100},
            "debug": {"type": "boolean"},
        },
        "required": ["query", "tenant", "limit", "debug"],
        "additionalProperties": False,
    },
}
OTHERS = ("gone", "inner", "old", "new", "other")
ONE: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
TOOLS = [SEARCH, *({"name": name, "inputSchema": ONE} for name in OTHERS)]
OVERRIDES = {
    "search": {
        "name": "find.docs",
        "title": "Find",
        "description": "Finds documents.",
        "fixed": {"tenant": "acme"},
        "defaults": {"limit": 10, "region": "eu"},
        "hide": ["debug"],
    },
    "gone": {"enabled": False},
    "inner": {"listed": False, "fixed": {"a": "kept", "undeclared": 1}},
    "old": {"name": "new"},
}
POLICY = {"overrides": OVERRIDES, "arguments": {"search": {"limit": {"minimum": 5}, "query": {"maxLength": 9}}}}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with ExitStack() as stack:
        url = stack.enter_context(raw_http({"tools": TOOLS}, "--modern"))
        servers = {"new": {"type": "http", "url": url}, "old": raw_stdio({"tools": TOOLS})}
        config = {"mcpServers": servers, "policies": dict.fromkeys(servers, POLICY)}
        yield stack.enter_context(gateway_http(tmp_path_factory.mktemp("front"), config))


async def call(front: str, name: str, arguments: dict[str, Any], era: Era = "modern") -> Any:
    async with connected(Way("http", era, "new"), front) as (client, _):
        await client.list_tools()  # a modern client then sends the headers that the published schema asks for
        return await client.call_tool(name, arguments)


async def test_name_title_description_and_schema_are_the_operators(front: str) -> None:
    async with connected(Way("http", "modern", "new"), front) as (client, _):
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    found = listed["new__find_docs"]
    assert (found.title, found.description) == ("Find", "Finds documents.")
    assert found.annotations is not None
    assert (found.annotations.title, found.annotations.read_only_hint) == ("Find", True)
    properties = found.input_schema["properties"]
    assert list(properties) == ["query", "region", "limit"]
    assert properties["limit"] == {"type": "integer", "maximum": 100, "minimum": 5, "default": 10}
    assert found.input_schema["required"] == ["query"]


@pytest.mark.requirement(16)
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("server", ["new", "old"])
async def test_fixed_values_and_defaults_are_sent_under_server_names(front: str, server: str, era: Era) -> None:
    name = f"{server}__find_docs"
    filled = (await call(front, name, {"query": "x"}, era)).structured_content["got"]
    assert filled["name"] == "search"
    assert filled["arguments"] == {"limit": 10, "region": "eu", "query": "x", "tenant": "acme"}
    own = (await call(front, name, {"query": "x", "limit": 7, "region": "us"}, era)).structured_content["got"]
    assert own["arguments"] == {"limit": 7, "region": "us", "query": "x", "tenant": "acme"}


@pytest.mark.attack(20)
async def test_caller_cannot_change_fixed_value_or_set_hidden_argument(front: str) -> None:
    result = await call(front, "old__find_docs", {"query": "x", "tenant": "evil", "debug": True})
    assert result.structured_content["got"]["arguments"] == {"limit": 10, "region": "eu", "query": "x", "tenant": "acme"}
    assert result.meta["dev.moongate/droppedArguments"] == ["tenant", "debug"]


@pytest.mark.parametrize("given", [{}, {"region": "us"}])
async def test_headers_carry_the_arguments_that_leave(front: str, given: dict[str, str]) -> None:
    headers = (await call(front, "new__find_docs", {"query": "x", **given})).structured_content["headers"]
    assert headers["mcp-param-tenant"] == "acme"
    assert headers["mcp-param-region"] == given.get("region", "eu")
    assert headers["mcp-name"] == "search"


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"query": "far too long"}, "arguments.search.query"),
        ({"query": "x", "limit": 2}, "arguments.search.limit"),
        ({}, "inputSchema"),
    ],
)
async def test_rules_go_on_using_the_servers_own_name(front: str, given: dict[str, Any], rule: str) -> None:
    result = await call(front, "old__find_docs", given)
    assert result.is_error
    assert result.meta["dev.moongate/rule"] == rule


@pytest.mark.parametrize("name", ["new__search", "new__gone", "new__inner"])
async def test_renamed_disabled_and_unlisted_tools_are_unknown_to_clients(front: str, name: str) -> None:
    async with connected(Way("http", "modern", "new"), front) as (client, _):
        assert name not in {tool.name for tool in (await client.list_tools()).tools}
        with pytest.raises(MCPError) as caught:
            await client.call_tool(name, {})
    assert caught.value.error.code == -32602


async def test_tool_keeps_its_name_against_one_renamed_to_it(front: str) -> None:
    got = (await call(front, "new__new", {"a": 1})).structured_content["got"]
    assert got["name"] == "new"
    async with connected(Way("http", "modern", "new"), front) as (client, _):
        assert "new__old" not in {tool.name for tool in (await client.list_tools()).tools}


async def test_workflow_may_call_a_tool_hidden_from_clients(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "inside.workflow.yaml").write_text(
        "name: inside\ndescription: Calls the inner tool.\nexecutors:\n"
        "  one: {tool: up/inner, arguments: {a: mine, b: 1}}\nstart: one\n"
    )
    config = {"mcpServers": {"up": raw_stdio({"tools": TOOLS})}, "policies": {"up": POLICY}, "expose": {"agents": [str(folder)]}}
    with gateway_http(tmp_path, config) as front:
        result = await call(front, "workflow__inside", {})
    assert not result.is_error, result
    assert result.structured_content["got"]["arguments"] == {"a": "kept"}
