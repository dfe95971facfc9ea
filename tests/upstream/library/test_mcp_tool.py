"""`MCPTool` for programs, against real servers of both eras over stdio and HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from gateway import Agent, CallContext, Content, MCPStdioTool, MCPStreamableHTTPTool, ScriptedChatClient
from gateway.errors import ToolFailed, UpstreamError
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallPorts
from gateway.tools.ports import ClientProfile, NoCaller
from tests.architecture.documents import blocks
from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, free_port, raw_http, upstream_stdio
from tests.faults.far import far_server
from tests.upstream.library.made_tools import Make, texts

BARE_SERVER = """
import json, pathlib, sys
asked = pathlib.Path(__file__).with_name("asked.txt")
for line in sys.stdin:
    message = json.loads(line)
    with asked.open("a") as file:
        file.write(message["method"] + "\\n")
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "bare", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif "id" in message:
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""
"""A server that declares no capabilities and records the requests that it receives."""


@pytest.mark.requirement("MC2", "MC3")
async def test_tools_and_prompts_become_functions(make: Make) -> None:
    async with make({"tool_name_prefix": "up"}) as tool:
        names = {function.name: function for function in tool.functions}
    assert names["up_echo"].definition.input_schema["required"] == ["text"]
    assert names["up_greet"].definition.input_schema == {
        "type": "object",
        "properties": {"who": {"type": "string"}},
        "required": ["who"],
    }
    assert names["up_add"].remote_name == "add"


@pytest.mark.requirement("MC10")
async def test_results_are_parsed_into_contents(make: Make) -> None:
    async with make() as tool:
        assert texts(await tool.call_tool("echo", text="hi")) == ["hi", '{"got": {"text": "hi"}}']
        [picture] = await tool.call_tool("picture")
        [inner, link, audio] = await tool.call_tool("rich")
        greeting = await tool.get_prompt("greet", who="Ann")
    assert isinstance(picture, Content) and picture.media_type == "image/png"
    assert isinstance(inner, Content) and inner.text == "inside"
    assert isinstance(link, Content) and (link.type, link.uri) == ("uri", "data://report")
    assert isinstance(audio, Content) and audio.media_type == "audio/wav"
    assert greeting == "Greet Ann."


@pytest.mark.requirement("MC10", 59)
async def test_failing_tool_raises_its_text(make: Make) -> None:
    async with make() as tool:
        with pytest.raises(ToolFailed, match="it did not work"):
            await tool.call_tool("fail")
        with pytest.raises(ToolFailed, match="the database said no"):
            await tool.call_tool("raise_error")


@pytest.mark.requirement(1, 16)
async def test_only_declared_arguments_are_sent(make: Make) -> None:
    async with make() as tool:
        assert texts(await tool.call_tool("echo", text="a", thread="t", foo=1))[1] == '{"got": {"text": "a"}}'


@pytest.mark.requirement(5, 6, 7, 8, 12, 17)
async def test_configured_extras_are_sent_and_metadata_is_not(make: Make) -> None:
    async with make({"additional_tool_argument_names": {"echo": "foo", "*": ["bar"], "up_echo": ["no"]}, "tool_name_prefix": "up"}) as tool:
        sent = texts(await tool.call_tool("echo", text="a", foo=1, bar=2, no=3, additional_tool_argument_names=["x"], x=4))
        who = texts(await tool.call_tool("who", _meta={"com.example/trace": 1}))
    assert sent[1] == '{"got": {"text": "a", "foo": 1, "bar": 2}}'
    assert "com.example/trace" in str(who[0])


@pytest.mark.requirement(13)
@pytest.mark.parametrize("meta", ["nonsense", {1: "a"}, {"not a key": 1}, ["a"]], ids=["text", "number key", "bad key", "list"])
async def test_malformed_metadata_is_refused_before_anything_is_sent(urls: dict[str, str], meta: Any) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"]) as tool:
        before = texts(await tool.call_tool("stats"))[0]
        with pytest.raises(ToolFailed, match="_meta"):
            await tool.call_tool("echo", text="a", _meta=meta)
        after = texts(await tool.call_tool("stats"))[0]
    assert str(after).count("echo") == str(before).count("echo")


@pytest.mark.requirement(20)
async def test_unlisted_name_gets_only_the_extras_of_every_tool() -> None:
    extras = {"*": ["text"], "echo": ["other"]}
    with raw_http({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}) as url:
        async with MCPStreamableHTTPTool("raw", url, additional_tool_argument_names=extras) as tool:
            contents: Any = await tool.call_tool("nowhere", text="a", other="b")
    assert json.loads(str(texts(contents)[0]))["arguments"] == {"text": "a"}


@pytest.mark.requirement("MC4")
@pytest.mark.parametrize(
    ("allowed", "expected"), [(None, True), ([], False), (["echo"], True), (["up_echo"], True), (["add"], False)]
)
async def test_only_allowed_tools_become_functions(urls: dict[str, str], allowed: list[str] | None, expected: bool) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"], allowed_tools=allowed, tool_name_prefix="up") as tool:
        assert any(function.name == "up_echo" for function in tool.functions) is expected


@pytest.mark.requirement(87)
async def test_tools_that_are_not_loaded_cannot_be_called(urls: dict[str, str]) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"], load_tools=False, load_prompts=False) as tool:
        assert tool.functions == []
        with pytest.raises(ToolFailed, match="load_tools"):
            await tool.call_tool("echo", text="a")
        with pytest.raises(ToolFailed, match="load_prompts"):
            await tool.get_prompt("greet", who="a")


@pytest.mark.requirement(19)
async def test_changed_list_is_reloaded_in_the_background(make: Make) -> None:
    async with make() as tool:
        changed = anyio.Event()
        tool.subscribe(lambda kind: changed.set())
        if make.era == "modern":
            return  # only handshake-era servers push list changes to a client that does not listen
        await tool.call_tool("grow")
        with anyio.fail_after(20):
            await changed.wait()
        assert any(function.name.startswith("grown_") for function in tool.functions)


@pytest.mark.requirement("MC9")
async def test_lost_connection_is_reopened_for_the_next_call(urls: dict[str, str]) -> None:
    entry = upstream_stdio()
    async with MCPStdioTool("fake", entry["command"], args=entry["args"], cwd=str(ROOT)) as tool:
        with pytest.raises((UpstreamError, ToolFailed)):
            await tool.call_tool("die")
        assert texts(await tool.call_tool("echo", text="again"))[0] == "again"


@pytest.mark.requirement("MC9")
async def test_call_of_a_forgotten_session_is_sent_again_and_runs_once() -> None:
    with far_server(modern=False) as far:
        async with MCPStreamableHTTPTool("far", far.url) as tool:
            await tool.call_tool("do", id="before")
            far.restart()
            assert texts(await tool.call_tool("do", id="after")) == ["done"]
    assert far.runs == ["before", "after"]
    assert far.count("initialize") == 2


@pytest.mark.parametrize("modern", [False, True])
async def test_call_that_an_overloaded_server_refused_is_not_sent_again(modern: bool) -> None:
    with far_server(modern=modern) as far:
        async with MCPStreamableHTTPTool("far", far.url, load_prompts=False) as tool:
            far.refuse, far.seen = (503, {"Retry-After": "1"}), []
            with pytest.raises(ToolFailed, match="503"):
                await tool.call_tool("do", id="one")
            assert [method for method, _ in far.seen] == ["tools/call"]
            far.refuse = None
            assert texts(await tool.call_tool("do", id="one")) == ["done"]


async def test_error_of_a_server_does_not_end_the_session_of_the_program(tmp_path: Path) -> None:
    done = {"result": {"content": [{"type": "text", "text": "done"}]}}
    script = {"tools/call": [{"error": {"code": -32000, "message": "busy today"}}, done, "die"]}
    args = ["-m", "tests.fakes.task_script", "--log", str(tmp_path / "log"), json.dumps(script)]
    server = StdioServerParameters(command=sys.executable, args=args, cwd=str(ROOT))
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        async with MCPStdioTool("own", "not-started", session=session) as tool:
            with pytest.raises(ToolFailed, match="busy today"):
                await tool.call_tool("job")
            assert texts(await tool.call_tool("job")) == ["done"]
            for reason in ("may have run", "the program must open it again"):
                with pytest.raises(ToolFailed, match=reason):
                    await tool.call_tool("job")


@pytest.mark.requirement("MC14")
async def test_mcp_tool_may_be_opened_and_closed_in_different_tasks(make: Make) -> None:
    tool = make()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tool.connect)
    assert tool.is_connected
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tool.close)
    assert not tool.is_connected
    assert texts(await tool.call_tool("echo", text="back"))[0] == "back"
    await tool.close()


async def test_unreachable_server_is_named_in_the_error() -> None:
    with pytest.raises(ToolFailed, match="no-such-program"):
        await MCPStdioTool("gone", "no-such-program").connect()
    with pytest.raises(ToolFailed, match=r"'dead' did not connect: the process exited with code 1; .*No module named nowhere"):
        await MCPStdioTool("dead", sys.executable, args=["-m", "nowhere"]).connect()
    with pytest.raises(ToolFailed):
        await MCPStreamableHTTPTool("gone", f"http://127.0.0.1:{free_port()}/mcp").connect()


async def test_giving_up_on_connecting_leaves_nothing_behind() -> None:
    tool = MCPStdioTool("silent", "sleep", args=["60"])
    with anyio.move_on_after(0.3) as scope:
        await tool.connect()
    assert scope.cancelled_caught
    assert not tool.is_connected


# -- agents ------------------------------------------------------------------------------------------------------


async def test_agent_uses_an_mcp_tool_like_any_other(make: Make) -> None:
    client = ScriptedChatClient([[Content.from_function_call("c1", "add", '{"a": 2, "b": 3}')], "It is 5."])
    async with make() as tool:
        answer = await Agent(client, "Calculate.", tools=tool).run("2+3?")
    assert answer.text == "It is 5."
    results = [c.result for m in client.requests[1][0] for c in m.contents if c.type == "function_result"]
    assert results == ["5"]


@pytest.mark.requirement("MC13")
async def test_model_loads_only_the_functions_it_requests(urls: dict[str, str]) -> None:
    call = Content.from_function_call
    client = ScriptedChatClient(
        [
            [call("1", "list_mcp_tools", "{}")],
            [call("2", "load_tool", '{"tool": ["add", "nothing"]}'), call("5", "load_tool", "{}")],
            [call("3", "add", '{"a": 2, "b": 3}'), call("4", "unload_tool", '{"tool": "add"}')],
            "5",
        ]
    )
    options: dict[str, Any] = {"use_progressive_disclosure": True, "always_load": ["who"]}
    async with MCPStreamableHTTPTool("fake", urls["modern"], **options) as tool:
        await Agent(client, tools=[tool]).run("2+3?")
    offered = [[t.definition.name for t in options.get("tools", ())] for _, options in client.requests]
    helpers = ["list_mcp_tools", "load_tool", "unload_tool", "who"]
    assert offered == [helpers, helpers, [*helpers, "add"], helpers]
    said = [str(c.result) for m in client.requests[-1][0] for c in m.contents if c.type == "function_result"]
    assert "add: Fake add" in said[0]
    assert "Unknown function 'nothing'" in said[1]
    assert "`tool` must be the name of a function or a list of names" in said[2]
    assert said[3] == "5"


@pytest.mark.requirement("MC12")
async def test_unannounced_capability_is_not_requested(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(BARE_SERVER)
    async with MCPStdioTool("bare", sys.executable, args=[str(script)]) as tool:
        assert tool.functions == []
    assert "list" not in (tmp_path / "asked.txt").read_text()


@pytest.mark.requirement("MC5")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, ["never_require", "never_require"]),
        ("always_require", ["always_require", "always_require"]),
        ("never_require", ["never_require", "never_require"]),
        ({"always_require_approval": ["add"], "never_require_approval": ["add", "up_echo"]}, ["always_require", "never_require"]),
    ],
)
async def test_approval_mode_is_set_per_tool(urls: dict[str, str], mode: Any, expected: list[str]) -> None:
    async with MCPStreamableHTTPTool("fake", urls["modern"], approval_mode=mode, tool_name_prefix="up") as tool:
        by_name = {function.remote_name: function.approval_mode for function in tool.functions}
    assert [by_name["add"], by_name["echo"]] == expected


class Person(NoCaller):
    """A caller who gives the same answer to every question."""

    def __init__(self, action: str) -> None:
        self.answer: dict[str, Any] = {"action": action, "content": {"decision": "approve"}}
        self.asked: list[dict[str, Any]] = []

    async def ask(self, request: dict[str, Any], key: str = "") -> dict[str, Any]:
        self.asked.append(request)
        fields = request["params"]["requestedSchema"]["properties"]
        return {**self.answer, "content": {name: _yes(field) for name, field in fields.items()}}


def _yes(field: dict[str, Any]) -> Any:
    return True if field.get("type") == "boolean" else (field.get("enum") or ["approve"])[0]


@pytest.mark.requirement("MC5")
@pytest.mark.parametrize(("action", "expected"), [("accept", "5"), ("decline", "Refused by approval")])
async def test_function_approval_is_required_for_agents_only(
    urls: dict[str, str], action: str, expected: str
) -> None:
    person = Person(action)
    ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {}})), CallPorts(caller=person))
    async with MCPStreamableHTTPTool("fake", urls["modern"], approval_mode="always_require") as tool:
        function = next(function for function in tool.functions if function.name == "add")
        outcome = await function.call({"a": 2, "b": 3}, ctx)
        alone = await function.call({"a": 2, "b": 3}, CallContext())
        assert texts(await tool.call_tool("add", a=2, b=3)) == ["5"]
    assert isinstance(outcome, Complete) and outcome.as_text().startswith(expected)
    assert isinstance(alone, Complete) and alone.is_error
    assert "add" in str(person.asked)


async def test_two_remote_names_that_become_one_function_are_an_error() -> None:
    tool = MCPStreamableHTTPTool("fake", "http://127.0.0.1:9/mcp")
    with pytest.raises(ToolFailed, match="both would be called 'a-b'"):
        tool._check_names(["a b", "a/b"])  # pyright: ignore[reportPrivateUsage]  # no server lists such names here


FILES_SERVER = """\
from pathlib import Path
from mcp.server import MCPServer
server = MCPServer("files")
@server.tool()
def list_directory(path: str) -> str:
    return " ".join(sorted(file.name for file in Path(path).iterdir()))
server.run()
"""
"""A stand-in for the published server of the example; `make accept` runs the example with the published server."""


def test_documented_example_behaves_as_documented(tmp_path: Path) -> None:
    (code,) = blocks(ROOT / "docs/library.md", "python")
    (tmp_path / "example.py").write_text(code)
    (tmp_path / "files.py").write_text(FILES_SERVER)
    npx = tmp_path / "npx"
    npx.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "files.py"}"\n')
    npx.chmod(0o700)
    with openai_server({"text": "High water is at noon."}) as model:
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "m", "OPENAI_API_KEY": "k"}
        argv = [sys.executable, str(tmp_path / "example.py")]
        done = subprocess.run(argv, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['list_directory']\n") and "example.py files.py npx" in done.stdout
    assert done.stdout.endswith("High water is at noon.\n")
