"""`MCPTool` used as agent-framework's documents say: host values, functions, tasks, sampling and errors by their public names."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from mcp_types import INVALID_REQUEST, CreateMessageRequestParams, CreateMessageResult, ErrorData, TextContent

from gateway import (
    Agent,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    LifecycleHooks,
    MCPStdioTool,
    MCPStreamableHTTPTool,
    MCPTaskOptions,
    ScriptedChatClient,
    WorkflowBuilder,
    function_middleware,
    lifecycle_middleware,
)
from gateway.errors import UpstreamError
from gateway.exceptions import ToolException, ToolExecutionException
from gateway.lifecycle import FunctionContext
from gateway.middleware import CallNext
from tests.fakes.running import free_port, upstream_http
from tests.upstream.test_task_follower import CREATED, DONE, NOT_FOUND, Server, state, text_of


@pytest.fixture(scope="module")
def urls() -> Generator[dict[str, str]]:
    with upstream_http() as modern, upstream_http("--legacy") as legacy:
        yield {"modern": modern, "legacy": legacy}


@pytest.fixture(params=["modern", "legacy"])
def url(request: pytest.FixtureRequest, urls: dict[str, str]) -> str:
    return urls[request.param]


def calling(name: str, arguments: str = "{}") -> ScriptedChatClient:
    return ScriptedChatClient([[Content.from_function_call("c1", name, arguments)], "Done."])


def result_in(client: ScriptedChatClient) -> str:
    """Return the result of the first call as the model received it."""
    return "".join(str(c.result) for m in client.requests[1][0] for c in m.contents if c.type == "function_result")


async def received(url: str, arguments: str, host: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Have an agent call `echo` with these host values, and return the arguments that the server received."""
    seen: list[dict[str, Any]] = []

    def parse(result: Any) -> str:
        seen.append(result.structured_content["got"])
        return "parsed"

    client = calling("echo", arguments)
    async with MCPStreamableHTTPTool("fake", url, parse_tool_results=parse, **options) as tool:
        await Agent(client, tools=tool).run("go", function_invocation_kwargs=host)
    assert result_in(client) == "parsed"
    (arguments_sent,) = seen
    return arguments_sent


# -- host values ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement(1, 5, "MC6")
async def test_agent_sends_configured_host_values_only(url: str) -> None:
    host = {"tenant": "acme", "secret": "s3cret", "handle": object()}
    sent = await received(url, '{"text": "hi"}', host, additional_tool_argument_names=["tenant"])
    assert sent == {"text": "hi", "tenant": "acme"}


@pytest.mark.requirement("MC6")
async def test_model_reads_no_names_of_host_values(urls: dict[str, str]) -> None:
    client = calling("echo", '{"text": 7, "made_up": 1}')
    async with MCPStreamableHTTPTool("fake", urls["modern"]) as tool:
        await Agent(client, tools=tool).run("go", function_invocation_kwargs={"billing_account": "s3cret"})
    assert "made_up" in result_in(client) and "billing_account" not in result_in(client) and "s3cret" not in result_in(client)


@pytest.mark.requirement(16, "MC6")
async def test_host_value_fills_declared_argument_and_model_value_wins(url: str) -> None:
    assert await received(url, "{}", {"text": "host"}) == {"text": "host"}
    assert await received(url, '{"text": "model"}', {"text": "host"}) == {"text": "model"}


@pytest.mark.requirement(17, 10)
async def test_model_cannot_widen_allowlist_through_agent(url: str) -> None:
    arguments = '{"text": "a", "additional_tool_argument_names": ["x"], "x": 1}'
    assert await received(url, arguments, {}) == {"text": "a"}


@pytest.mark.requirement(12, 14, "MC11")
async def test_host_metadata_reaches_request_and_model_metadata_does_not(url: str) -> None:
    client = calling("who", '{"_meta": {"com.example/model": 1}}')
    async with MCPStreamableHTTPTool("fake", url) as tool:
        await Agent(client, tools=tool).run("go", function_invocation_kwargs={"_meta": {"com.example/host": 7}})
        assert "'com.example/host': 7" in result_in(client)
        assert "com.example/model" not in result_in(client)
        alone = calling("who", '{"_meta": {"com.example/model": 1}}')
        await Agent(alone, tools=tool).run("go")
        assert "com.example/model" not in result_in(alone)


@pytest.mark.requirement(13, "MC11")
async def test_malformed_host_metadata_fails_call_before_sending(urls: dict[str, str]) -> None:
    client = calling("echo", '{"text": "a"}')
    async with MCPStreamableHTTPTool("fake", urls["modern"]) as tool:
        before = text_of(await tool.call_tool("stats"))
        await Agent(client, tools=tool).run("go", function_invocation_kwargs={"_meta": "nonsense"})
        assert text_of(await tool.call_tool("stats")).count("echo") == before.count("echo")
    assert "_meta" in result_in(client)


@pytest.mark.requirement(13, "MC6", "MC11")
@pytest.mark.parametrize("host", [{"_meta": {"com.example/x": object()}}, {"text": object()}], ids=["metadata", "argument"])
async def test_host_value_that_is_not_json_is_named(urls: dict[str, str], host: dict[str, Any]) -> None:
    client = calling("echo")
    async with MCPStreamableHTTPTool("fake", urls["modern"]) as tool:
        await Agent(client, tools=tool).run("go", function_invocation_kwargs=host)
    assert result_in(client).startswith(f"Error: The program's value for {next(iter(host))!r} cannot be sent, because it is not JSON")


@pytest.mark.requirement("TL14")
@pytest.mark.parametrize("stream", [False, True])
async def test_host_values_that_are_not_a_dict_are_refused(stream: bool) -> None:
    client, values = ScriptedChatClient([]), cast("Any", ["tenant"])
    for run in (Agent(client).run, client.get_response):
        with pytest.raises(TypeError, match="must be a dict of values for tools by name, not list"):
            await cast("Any", run)("go", stream=stream, function_invocation_kwargs=values)


@pytest.mark.requirement("MC6")
async def test_host_values_pass_through_workflows_and_agents_as_tools(urls: dict[str, str]) -> None:
    seen: list[Any] = []

    def parse(result: Any) -> str:
        seen.append(result.structured_content["got"].get("tenant"))
        return "parsed"

    def inner() -> Agent:
        return Agent(calling("echo", '{"text": "a"}'), name="inner", tools=tool)

    options: dict[str, Any] = {"additional_tool_argument_names": "tenant", "parse_tool_results": parse}
    async with MCPStreamableHTTPTool("fake", urls["modern"], **options) as tool:
        await WorkflowBuilder(start_executor=inner()).build().run("go", function_invocation_kwargs={"tenant": "flow"})
        outer = Agent(calling("inner", '{"task": "go"}'), tools=inner().as_tool())
        await outer.run("go", function_invocation_kwargs={"tenant": "outer"})
    assert seen == ["flow", "outer"]


async def test_header_provider_receives_host_values(urls: dict[str, str]) -> None:
    seen: list[dict[str, Any]] = []

    def headers(values: Any) -> dict[str, str]:
        seen.append(dict(values))
        return {"x-tenant": str(values.get("tenant"))}

    async with MCPStreamableHTTPTool("fake", urls["modern"], header_provider=headers) as tool:
        seen.clear()
        await Agent(calling("echo", '{"text": "a"}'), tools=tool).run("go", function_invocation_kwargs={"tenant": "acme"})
        assert [values.get("tenant") for values in seen] == ["acme"]


# -- functions -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("MC2", "MC3")
async def test_remote_functions_are_function_tools(url: str) -> None:
    async with MCPStreamableHTTPTool("fake", url, tool_name_prefix="up", use_progressive_disclosure=False) as tool:
        functions = {function.name: function for function in tool.functions}
        add, greet = functions["up_add"], functions["up_greet"]
        assert all(isinstance(function, FunctionTool) and not function.declaration_only for function in functions.values())
        assert add.approval_mode == "never_require"
        assert add.parameters()["required"] == ["a", "b"]
        assert add.to_json_schema_spec()["function"]["name"] == "up_add"
        assert [content.text for content in await add.invoke(arguments={"a": 2, "b": 3})] == ["5"]
        assert text_of(await add(a=2, b=3)) == "5"
        assert text_of(await greet.invoke(who="Ann")) == "Greet Ann."
        with pytest.raises(ToolExecutionException, match="it did not work"):
            await functions["up_fail"].invoke()
        assert add.invocation_count == 2


async def test_helper_functions_of_disclosure_are_function_tools(urls: dict[str, str]) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"], use_progressive_disclosure=True) as tool:
        assert [function.name for function in tool.functions if isinstance(function, FunctionTool)] == [
            "list_mcp_tools", "load_tool", "unload_tool"
        ]  # fmt: skip


async def test_limits_of_a_remote_function_hold(urls: dict[str, str]) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"]) as tool:
        add = next(function for function in tool.functions if function.name == "add")
        add.max_invocations = 1
        client = ScriptedChatClient(
            [[Content.from_function_call(str(number), "add", '{"a": 1, "b": 1}')] for number in range(2)] + ["2"]
        )
        await Agent(client, tools=tool).run("1+1?")
    results = [str(c.result) for m in client.requests[2][0] for c in m.contents if c.type == "function_result"]
    assert results[0] == "2"
    assert "1 times" in results[1]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("MC10", "EX1")
async def test_tool_execution_exception_catches_server_failures(url: str) -> None:
    async with MCPStreamableHTTPTool("fake", url) as tool:
        with pytest.raises(ToolExecutionException, match="the database said no") as caught:
            await tool.call_tool("raise_error")
        assert isinstance(caught.value.__cause__, UpstreamError)
        with pytest.raises(ToolExecutionException, match="Unknown prompt"):
            await tool.get_prompt("nowhere")


@pytest.mark.filterwarnings("ignore::gateway.staging.ExperimentalWarning")
@pytest.mark.requirement("TY3", "EX1", "HK9", "HK13")
@pytest.mark.parametrize("parse", [False, True])
async def test_tool_failure_is_an_exception_inside_a_run(url: str, parse: bool) -> None:
    caught: list[str] = []
    told: list[tuple[str | None, str]] = []

    @function_middleware
    async def watch(context: FunctionInvocationContext, call_next: CallNext) -> None:
        try:
            await call_next()
        except ToolExecutionException as error:
            caught.append(str(error))
            raise

    class Hooks(LifecycleHooks):
        async def after_function(self, context: FunctionContext) -> None:
            told.append((context.toolkit, str(context.error)))

    def read(result: Any) -> str:
        return str(result.content[0].text)

    options: dict[str, Any] = {"parse_tool_results": read} if parse else {}
    async with MCPStreamableHTTPTool("fake", url, **options) as tool:
        middleware = [watch, *lifecycle_middleware(Hooks())]
        response = await Agent(calling("fail"), tools=tool, middleware=middleware).run("go")
        [function] = [function for function in tool.functions if function.name == "fail"]
        assert function.invocation_exception_count == 1
    [result] = [content for message in response.messages for content in message.contents if content.type == "function_result"]
    assert caught == [result.exception] and told == [("fake", result.exception)]
    assert result.result == f"Error: {result.exception}"


@pytest.mark.requirement("EX1")
async def test_tool_exception_catches_unreachable_server() -> None:
    gone = MCPStreamableHTTPTool("gone", f"http://127.0.0.1:{free_port()}/mcp")
    with pytest.raises(ToolException, match="gone"):
        await gone.connect()
    with pytest.raises(ToolExecutionException, match="gone"):
        await gone.call_tool("echo", text="a")
    with pytest.raises(ToolException, match="no-such-program"):
        await Agent(ScriptedChatClient([]), tools=MCPStdioTool("gone", "no-such-program")).run("go")


@pytest.mark.requirement(62, 79)
async def test_tool_execution_exception_catches_task_failures(tmp_path: Path) -> None:
    failed = state("failed", statusMessage="out of paper")
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[failed])
    async with server.tool() as tool:
        with pytest.raises(ToolExecutionException, match="out of paper"):
            await tool.call_tool("job")


# -- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("MC8", 57)
async def test_call_tool_as_task_augments_call_of_any_tool(tmp_path: Path) -> None:
    server = Server(tmp_path, support=None, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=[DONE])
    options = MCPTaskOptions(default_ttl=timedelta(seconds=2), max_task_wait=timedelta(seconds=20))
    async with server.tool(options) as tool:
        assert text_of(await tool.call_tool_as_task("job", a=1)) == "the result"
    (call,) = [request for request in server.requests() if request["method"] == "tools/call"]
    assert call["params"]["task"] == {"ttl": 2000}


@pytest.mark.requirement("MC8", 60)
async def test_call_tool_as_task_falls_back_to_one_plain_call(tmp_path: Path) -> None:
    server = Server(tmp_path, support=None, tools_call=[NOT_FOUND, DONE])
    async with server.tool() as tool:
        assert text_of(await tool.call_tool_as_task("job")) == "the result"
    assert ["task" in request["params"] for request in server.requests() if request["method"] == "tools/call"] == [True, False]


@pytest.mark.requirement("MC8", 88)
async def test_call_tool_as_task_leaves_modern_server_to_decide(tmp_path: Path) -> None:
    server = Server(tmp_path, modern=True, support=None, tools_call=[DONE])
    async with server.tool() as tool:
        assert text_of(await tool.call_tool_as_task("job")) == "the result"
    assert ["task" in request["params"] for request in server.requests() if request["method"] == "tools/call"] == [False]


@pytest.mark.requirement(87)
async def test_call_tool_as_task_needs_loaded_tools() -> None:
    with pytest.raises(ToolExecutionException, match="load_tools"):
        await MCPStreamableHTTPTool("fake", "http://127.0.0.1:9/mcp", load_tools=False).call_tool_as_task("echo")


# -- sampling ------------------------------------------------------------------------------------------------------


class OwnSampling(MCPStreamableHTTPTool):
    """Answers sampling requests itself."""

    async def sampling_callback(self, context: object, params: CreateMessageRequestParams) -> CreateMessageResult | ErrorData:
        assert params.max_tokens == 100_000
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Lyon"), model="mine")


class NoSampling(MCPStreamableHTTPTool):
    """Refuses sampling requests itself."""

    async def sampling_callback(self, context: object, params: CreateMessageRequestParams) -> CreateMessageResult | ErrorData:
        return ErrorData(code=INVALID_REQUEST, message="not today")


@pytest.mark.requirement("MC8")
async def test_overridden_sampling_callback_answers_requests(url: str) -> None:
    async with OwnSampling("fake", url, client=ScriptedChatClient([])) as tool:
        assert text_of(await tool.call_tool("ask_model")) == "Lyon"
    async with NoSampling("fake", url, client=ScriptedChatClient([])) as tool:
        with pytest.raises(ToolExecutionException, match="not today"):
            await tool.call_tool("ask_model")


@pytest.mark.requirement("MC8", 29, 30, 34, 39)
async def test_sampling_callback_applies_guardrails_when_called_directly() -> None:
    params = CreateMessageRequestParams.model_validate(
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Capital of France?"}}], "maxTokens": 9000}
    )
    model = ScriptedChatClient(["Paris"])
    bare = await MCPStreamableHTTPTool("fake", "http://127.0.0.1:9/mcp").sampling_callback(None, params)
    assert isinstance(bare, ErrorData) and bare.code == -32603
    closed = await MCPStreamableHTTPTool("fake", "http://127.0.0.1:9/mcp", client=model).sampling_callback(None, params)
    assert isinstance(closed, ErrorData) and closed.code == -32600
    tool = MCPStreamableHTTPTool(
        "fake", "http://127.0.0.1:9/mcp", client=model, sampling_approval_callback=lambda _: True, sampling_max_requests=1
    )
    answer = await tool.sampling_callback(None, params)
    assert isinstance(answer, CreateMessageResult) and isinstance(answer.content, TextContent) and answer.content.text == "Paris"
    assert model.requests[0][1].get("max_tokens") == 4096
    spent = await tool.sampling_callback(None, params)
    assert isinstance(spent, ErrorData) and spent.code == -32600
    assert spent.message == "Refused by sampling.maxRequests: this connection's budget of 1 sampling requests is spent."


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"approval_mode": "always_required"}, "approval_mode: 'always_required' is unknown. Known: always_require, never_require"),
        ({"approval_mode": {"always_require_aproval": ["add"]}}, "Did you mean 'always_require_approval'"),
        ({"aproval_mode": "always_require"}, "Unknown setting 'aproval_mode'. Did you mean 'approval_mode'"),
        ({"task_options": "x"}, "task_options must be MCPTaskOptions, not str"),
    ],
)
def test_setting_that_would_be_ignored_is_refused(setting: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(problem)):
        MCPStreamableHTTPTool("fake", "http://127.0.0.1:9/mcp", **setting)
