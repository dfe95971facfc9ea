"""The arguments and metadata that the gateway sends, checked with servers that return the received parameters."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, gateway_http, raw_http, raw_stdio
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(60)

FRAMEWORK = ["chat_options", "tools", "tool_choice", "session", "thread", "conversation_id", "options", "response_format"]
INTERNALS = ["name", "tool_name", "arguments", "self", "ctx", "_remote_tool_name"]


def tool(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **more}


def having(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {} for name in names}, **more}


TOOLS = [
    tool("two", having("a", "b")),
    tool("none", {"type": "object"}),
    tool("anything", {"type": "object", "additionalProperties": True}),
    tool("null_properties", {"type": "object", "properties": None}),
    tool("odd_properties", {"type": "object", "properties": ["a"]}),
    tool("null_schema"),
    {"name": "no_schema"},
    tool("framework", having("a", *FRAMEWORK, required=["a", "session"])),
    tool("internals", having(*INTERNALS)),
    tool("with_meta_argument", having("a", "_meta")),
    tool("tagged", having("a"), _meta={"com.example/tenant": "listing", "dev.moongate/via": ["forged"], "bad key": 1}),
]
EXTRAS = {"*": "everywhere", "two": ["trace", "_meta"], "many__two": "never", "framework": ["options"], "none": ["extra", "thread"]}
NOTHING_DECLARED = ("none", "anything", "null_properties", "odd_properties", "null_schema", "no_schema")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with ExitStack() as stack:
        url = stack.enter_context(raw_http({"tools": TOOLS}, "--modern"))
        servers = {"many": raw_stdio({"tools": TOOLS}), "plain": {"type": "http", "url": url}}
        policies = {
            "many": {"additionalArguments": EXTRAS},
            "plain": {"additionalArguments": "extra", "arguments": {"two": {"shown": {"type": "string"}}}},
        }
        yield stack.enter_context(
            gateway_http(tmp_path_factory.mktemp("front"), {"mcpServers": servers, "policies": policies})
        )


async def sent(front: str, name: str, arguments: dict[str, Any], *, era: Era = "modern", meta: Any = None) -> dict[str, Any]:
    """Call a tool and return the parameters that the server received."""
    result = await call(front, name, arguments, era=era, meta=meta)
    assert not result.is_error, result
    got: dict[str, Any] = result.structured_content["got"]
    return got


async def call(front: str, name: str, arguments: dict[str, Any], *, era: Era = "modern", meta: Any = None) -> Any:
    async with connected(Way("http", era, "many"), front) as (client, _):
        return await client.call_tool(name, arguments, meta=meta)


@pytest.mark.requirement(1, "MC6")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("server", ["many", "plain"])
async def test_exactly_the_declared_arguments_reach_the_server(front: str, server: str, era: Era) -> None:
    got = await sent(front, f"{server}__two", {"a": 1, "b": [2], "thread": "t", "foo": "f"}, era=era)
    assert got["arguments"] == {"a": 1, "b": [2]}


@pytest.mark.requirement(2, 3, 4)
@pytest.mark.parametrize("name", NOTHING_DECLARED)
async def test_tool_without_schema_gets_only_configured_extras(front: str, name: str) -> None:
    given = {"a": 1, "everywhere": 2, "extra": 3}
    assert (await sent(front, f"many__{name}", given))["arguments"] == {"everywhere": 2, **({"extra": 3} if name == "none" else {})}
    assert (await sent(front, f"plain__{name}", given))["arguments"] == {"extra": 3}
    assert (await sent(front, f"plain__{name}", {"a": 1}))["arguments"] == {}


@pytest.mark.requirement(4, 22)
async def test_unreadable_schema_is_listed_without_properties(front: str) -> None:
    async with connected(Way("http", "legacy", "many"), front) as (client, _):
        listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    for name in NOTHING_DECLARED:
        assert listed[f"many__{name}"]["properties"] == {}
        assert listed[f"many__{name}"]["type"] == "object"


@pytest.mark.requirement(5, 8)
async def test_extra_name_applies_to_every_tool_of_its_server_only(front: str) -> None:
    for name in ("two", "none", "framework"):
        assert "extra" in (await sent(front, f"plain__{name}", {"extra": 1, "a": 1}))["arguments"]
    assert "extra" not in (await sent(front, "many__two", {"extra": 1}))["arguments"]


@pytest.mark.requirement(6, 7, 8)
async def test_extras_by_tool_join_server_extras_under_server_names(front: str) -> None:
    got = await sent(front, "many__two", {"trace": 1, "everywhere": 2, "never": 3})
    assert got["arguments"] == {"trace": 1, "everywhere": 2}
    assert (await sent(front, "many__none", {"trace": 1, "everywhere": 2}))["arguments"] == {"everywhere": 2}


@pytest.mark.requirement(9)
async def test_declared_framework_names_are_neither_listed_nor_sent(front: str) -> None:
    given = {"a": 1, **dict.fromkeys(FRAMEWORK, "secret")}
    result = await call(front, "plain__framework", given)
    assert result.structured_content["got"]["arguments"] == {"a": 1}
    assert sorted(result.meta["dev.moongate/droppedArguments"]) == sorted(FRAMEWORK)
    async with connected(Way("http", "modern", "plain"), front) as (client, _):
        listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert list(listed["plain__framework"]["properties"]) == ["a"]
    assert listed["plain__framework"]["required"] == ["a"]


@pytest.mark.requirement(10)
async def test_framework_name_listed_as_extra_is_sent_declared_or_not(front: str) -> None:
    declared = await sent(front, "many__framework", {"a": 1, "options": {"x": 1}, "session": "s"})
    assert declared["arguments"] == {"a": 1, "options": {"x": 1}}
    undeclared = await sent(front, "many__none", {"thread": "t", "session": "s"})
    assert undeclared["arguments"] == {"thread": "t"}


@pytest.mark.requirement(11, 14)
@pytest.mark.parametrize("name", ["many__with_meta_argument", "many__two"])
async def test_meta_given_as_argument_is_discarded(front: str, name: str) -> None:
    without_host = await sent(front, name, {"a": 1, "_meta": {"com.example/tenant": "model"}})
    assert without_host["arguments"] == {"a": 1}
    assert "com.example/tenant" not in without_host["_meta"]
    with_host = await sent(front, name, {"a": 1, "_meta": {"com.example/tenant": "model"}}, meta={"com.example/tenant": "host"})
    assert with_host["_meta"]["com.example/tenant"] == "host"


@pytest.mark.requirement(12)
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("server", ["many", "plain"])
async def test_metadata_of_the_host_reaches_the_request(front: str, server: str, era: Era) -> None:
    got = await sent(front, f"{server}__two", {"a": 1}, era=era, meta={"com.example/tenant": {"id": 7}, "note": "x"})
    assert got["_meta"]["com.example/tenant"] == {"id": 7}
    assert got["_meta"]["note"] == "x"


@pytest.mark.requirement(13)
@pytest.mark.parametrize("key", ["bad key", "-x", "a/b/c", "1com/x", "com.example/", "é"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_metadata_under_malformed_key_is_an_error_and_not_sent(front: str, key: str, era: Era) -> None:
    if key == "com.example/":  # a prefix without a name is well formed
        assert key in (await sent(front, "many__two", {}, era=era, meta={key: 1}))["_meta"]
        return
    result = await call(front, "many__two", {"a": 1}, era=era, meta={key: 1})
    assert result.is_error
    assert result.meta["dev.moongate/rule"] == "_meta"
    assert result.structured_content is None


@pytest.mark.requirement(15, "MC11")
async def test_listing_metadata_wins_over_host_and_cannot_forge_ours(front: str) -> None:
    got = await sent(front, "many__tagged", {"a": 1}, meta={"com.example/tenant": "host", "com.example/other": "host"})
    assert got["_meta"]["com.example/tenant"] == "listing"
    assert got["_meta"]["com.example/other"] == "host"
    assert "forged" not in got["_meta"]["dev.moongate/via"]
    assert "bad key" not in got["_meta"]


@pytest.mark.requirement(17, 18)
@pytest.mark.parametrize("option", ["additionalArguments", "additional_tool_argument_names", "additionalArgumentNames"])
@pytest.mark.attack(14)
async def test_no_argument_and_no_published_rule_widens_the_allowlist(front: str, option: str) -> None:
    got = await sent(front, "plain__two", {"a": 1, "shown": "x", "b": 2, "c": 3, option: ["c", "shown"]})
    assert got["arguments"] == {"a": 1, "b": 2}


@pytest.mark.requirement(23, 24)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_arguments_named_like_internals_stay_plain_arguments(front: str, era: Era) -> None:
    given = dict.fromkeys(INTERNALS, "two")
    got = await sent(front, "many__internals", given, era=era)
    assert got["name"] == "internals"
    assert got["arguments"] == given
    undeclared = await sent(front, "many__two", {"a": 1, **given}, era=era)
    assert (undeclared["name"], undeclared["arguments"]) == ("two", {"a": 1})


@pytest.mark.requirement(27)
async def test_reserved_arguments_of_another_gateway_are_stripped(front: str) -> None:
    got = await sent(front, "many__two", {"a": 1, "session_id": "s", "dry_run": True, "_dry_run": True, "sessionId": "s"})
    assert got["arguments"] == {"a": 1}


@pytest.mark.requirement(20)
async def test_unlisted_name_is_unknown_and_forwards_nothing(front: str) -> None:
    async with connected(Way("http", "modern", "many"), front) as (client, _):
        with pytest.raises(MCPError) as caught:
            await client.call_tool("many__never_listed", {"everywhere": 1})
    assert caught.value.error.code == -32602


@pytest.mark.requirement(19)
async def test_after_the_list_changed_the_new_declaration_counts(tmp_path: Path) -> None:
    told = {"tools": [tool("two", having("a")), tool("change")], "later": [tool("two", having("b")), tool("change")]}
    with gateway_http(tmp_path, {"mcpServers": {"up": raw_stdio(told)}, "policies": {"up": {"pins": "off"}}}) as front:
        async with connected(Way("http", "legacy", "up"), front) as (client, _):
            before: Any = await client.call_tool("up__two", {"a": 1, "b": 2})
            await client.call_tool("up__change", {})
            with anyio.fail_after(20):
                while "b" not in next(t for t in (await client.list_tools()).tools if t.name == "up__two").input_schema["properties"]:
                    await anyio.sleep(0.02)
            after: Any = await client.call_tool("up__two", {"a": 1, "b": 2})
    assert before.structured_content["got"]["arguments"] == {"a": 1}
    assert after.structured_content["got"]["arguments"] == {"b": 2}


@pytest.mark.requirement(1, 25)
async def test_agent_and_workflow_calls_pass_the_same_filter(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "helper.agent.md").write_text("---\nname: helper\ndescription: Helps.\ntools: [up/two]\n---\nDo it.\n")
    (folder / "flow.workflow.yaml").write_text(
        "name: flow\ndescription: Calls it.\nexecutors:\n  one: {tool: up/two, arguments: {a: 1, session: s, foo: f}}\nstart: one\n"
    )
    given = {"a": 1, "session": "s", "foo": "f", "_meta": {"com.example/x": 1}}
    turns = [
        {"when": {"last_role": "user"}, "tool_calls": [{"name": "up__two", "arguments": given}]},
        {"when": {"last_role": "tool"}, "text": "{last_tool}"},
    ]
    config = {"mcpServers": {"up": raw_stdio({"tools": TOOLS})}, "expose": {"agents": [str(folder)]}}
    with openai_server(*turns) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": ""}
        with gateway_http(tmp_path, config, env=env) as front:
            by_agent = await call(front, "agent__helper", {"task": "go"})
            by_workflow = await call(front, "workflow__flow", {})
    received = json.loads(by_agent.content[0].text)
    assert received["arguments"] == {"a": 1}
    assert "com.example/x" not in received["_meta"]
    assert by_workflow.structured_content["got"]["arguments"] == {"a": 1}


@pytest.mark.requirement(21)
@pytest.mark.parametrize("modern", [False, True], ids=["2025-dialect", "modern-dialect"])
async def test_call_that_becomes_a_task_passes_the_same_filter(tmp_path: Path, modern: bool) -> None:
    log = tmp_path / "requests.jsonl"
    made = {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    done = {"content": [{"type": "text", "text": "done\u202e"}]}
    finished: Any = {"taskId": "t1", "status": "completed", "ttl": None, "ttlMs": None, **({"result": done} if modern else {})}
    created: Any = {"result": {**made, "ttlMs": None, "resultType": "task"} if modern else {"task": {**made, "ttl": None}}}
    answers: dict[str, Any] = {"tools/call": [created], "tasks/get": [{"result": finished}], "tasks/result": [{"result": done}]}
    script: dict[str, Any] = {"support": "required", **answers}
    flags = ["--modern"] if modern else []
    args = ["-m", "tests.fakes.task_script", *flags, "--log", str(log), json.dumps(script)]
    rules = {"overrides": {"job": {"fixed": {"tenant": "acme"}}}, "additionalArguments": ["tenant"]}
    server = {"command": sys.executable, "args": args, "cwd": str(ROOT)}
    with gateway_http(tmp_path, {"mcpServers": {"up": server}, "policies": {"up": rules}}) as front:
        result = await call(front, "up__job", {"session": "s", "foo": "f", "tenant": "evil"})
    assert result.content[0].text == "done"
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    (sent_call,) = [request["params"] for request in requests if request["method"] == "tools/call"]
    assert sent_call["arguments"] == {"tenant": "acme"}
    assert ("task" in sent_call) is not modern


@pytest.mark.requirement(15, "MC11")
async def test_trace_context_wins_over_the_hosts_value(front: str) -> None:
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    got = await sent(front, "many__two", {"a": 1}, meta={"traceparent": mine})
    assert got["_meta"]["traceparent"].split("-")[1] == mine.split("-")[1]
    span = SpanContext(0x1AF7651916CD43DD8448EB211C80319C, 0x17AD6B7169203331, is_remote=False, trace_flags=TraceFlags(1))
    token = attach(set_span_in_context(NonRecordingSpan(span)))
    try:
        traced = await sent(front, "many__two", {"a": 1}, meta={"traceparent": mine})
    finally:
        detach(token)
    assert traced["_meta"]["traceparent"].split("-")[1] == f"{span.trace_id:032x}"


@pytest.mark.requirement(25)
async def test_dropped_names_are_counted_and_logged_without_values(tmp_path: Path) -> None:
    config = {"mcpServers": {"up": raw_stdio({"tools": TOOLS})}, "server": {"logLevel": "info"}}
    with gateway_http(tmp_path, config) as front:
        await call(front, "up__two", {"a": "kept-canary", "secret": "canary-value", "other": 1})
        log = (tmp_path / "gateway.log").read_text()
    (line,) = [line for line in log.splitlines() if "up__two" in line]
    assert "arguments dropped tool=up__two arguments=2 " in line
    assert "secret" in line
    assert "other" in line
    assert "canary" not in log


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_repeated_key_sends_the_value_that_was_checked(tmp_path: Path, era: Era) -> None:
    told = {"tools": [tool("read", {"type": "object", "properties": {"path": {"type": "string"}}})]}
    policies = {"up": {"arguments": {"read": {"path": {"pattern": "^docs/"}}}}}
    with gateway_http(tmp_path, {"mcpServers": {"up": raw_stdio(told)}, "policies": policies}) as front:
        bad_last = await raw_call(front, era, 'up__read', '{"path": "docs/a", "path": "/etc/passwd"}')
        good_last = await raw_call(front, era, 'up__read', '{"path": "/etc/passwd", "path": "docs/a"}')
        two_names = await raw_call(front, era, 'up__none", "name": "up__read', '{"path": "/etc/passwd"}', named="up__read")
    assert bad_last["result"]["_meta"]["dev.moongate/rule"] == "arguments.read.path"
    assert good_last["result"]["structuredContent"]["got"]["arguments"] == {"path": "docs/a"}
    assert two_names["result"]["_meta"]["dev.moongate/rule"] == "arguments.read.path"


@pytest.mark.attack(25)
async def test_header_name_that_differs_from_body_is_rejected(front: str) -> None:
    answer = await raw_call(front, "modern", "many__two", "{}", named="many__none")
    assert answer["error"]["code"] == -32020


async def raw_call(front: str, era: Era, name: str, arguments: str, *, named: str | None = None) -> Any:
    """Send `tools/call` with arguments as raw JSON text, which may contain forms that JSON libraries never write."""
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    params = f'"name": "{name}", "arguments": {arguments}'
    async with httpx2.AsyncClient(timeout=20) as client:
        if era == "modern":
            headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": named or name}
            reserved = "io.modelcontextprotocol"
            params += f', "_meta": {{"{reserved}/protocolVersion": "2026-07-28", "{reserved}/clientCapabilities": {{}}}}'
        else:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
            started = await client.post(front, headers=headers, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
            headers |= {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": started.headers["mcp-session-id"]}
            await client.post(front, headers=headers, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {{{params}}}}}'
        answer = await client.post(front, headers=headers, content=body.encode())
    text = answer.text
    return json.loads(next((line[6:] for line in text.splitlines() if line.startswith("data: {")), text))
