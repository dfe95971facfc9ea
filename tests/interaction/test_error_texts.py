"""Error texts of the operator's code and progress of a running agent reach the client through a real gateway."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any, get_args

import pytest

from tests.fakes.openai_server import openai_server
from tests.fakes.running import gateway_http
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(60)
ERAS = [Way("http", era, "errors") for era in get_args(Era)]
SECRET = "tok-1234567890"
OWN_KEY = "sk-own-key-of-the-gateway"

MODULE = f'''
import os

from gateway import (
    Executor, InlineSkill, SkillFrontmatter, WorkflowBuilder, WorkflowContext, agent_middleware, function_middleware, handler, step,
    tool, workflow,
)

from gateway.tools.base import Complete

SAID = "no rows for 2024 with key {SECRET}"


def leave(how):
    raise {{"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}}[how](SAID)


@tool
def rows(year: int = 2024) -> int:
    """Count rows."""
    raise ValueError(SAID)


@tool
def refuse() -> int:
    """Say that it failed."""
    return Complete.text(SAID, is_error=True, structured={{"why": SAID}})


class Reader(Executor):
    def __init__(self):
        super().__init__("reader")

    @handler
    async def read(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        raise ValueError(SAID)


def graph():
    return WorkflowBuilder(start_executor=Reader()).build()


@step
async def fetch() -> str:
    raise ValueError(SAID)


@workflow
async def functional(text: str) -> str:
    return await fetch()


class Splitter(Executor):
    @handler
    async def split(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


class Leaver(Executor):
    @handler
    async def leave(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        leave(text)


def leaving():
    split = Splitter("split")
    return WorkflowBuilder(start_executor=split).add_fan_out_edges(split, [Leaver("left"), Leaver("right")]).build()


@workflow
async def leaving_function(text: str) -> str:
    leave(text)


@tool
def leave_thread(text: str) -> str:
    """Leave in a thread."""
    leave(text)


@tool
async def leave_loop(text: str) -> str:
    """Leave in the event loop."""
    leave(text)


@function_middleware
async def around_function(context, call_next):
    leave("KeyboardInterrupt")


@agent_middleware
async def around_agent(context, call_next):
    await call_next()
    if context.session.state.setdefault("turns", 0):
        leave("KeyboardInterrupt")
    context.session.state["turns"] = 1


@tool
def key() -> str:
    """Say the key of the model."""
    raise ValueError(os.environ["OPENAI_API_KEY"])


@tool
def connect() -> str:
    """Say the address of a database."""
    raise ConnectionError("no route to postgres://reports:p4ss@db.example/sales")


def load() -> str:
    raise ValueError(SAID)


skill = InlineSkill(frontmatter=SkillFrontmatter(name="counting", description="Counts."), instructions="Count.")


@skill.script
def count() -> str:
    raise ValueError(SAID)


@skill.script
def interrupt() -> str:
    raise KeyboardInterrupt(SAID)
'''
FILE = "name: file\ndescription: d\nexecutors:\n  load: {python: failing_code:load}\nstart: load\n"
AGENT = "---\nname: {name}\ndescription: d\ntools: [function/rows]\n{more}---\nCount.\n"
CALL: dict[str, Any] = {"tool_calls": [{"name": "function__rows", "arguments": {}}]}
SENTENCES = ["I look at the table of all years first. ", "That takes a moment, because it is long."]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("errors")
    (folder / "failing_code.py").write_text(MODULE)
    (folder / "agents").mkdir()
    (folder / "agents" / "file.workflow.yaml").write_text(FILE)
    for name in ("graph", "functional", "leaving", "leaving_function"):
        (folder / "agents" / f"{name}.workflow.yaml").write_text(f"name: {name}\ndescription: d\npython: failing_code:{name}\n")
    (folder / "agents" / "quiet.agent.md").write_text(AGENT.format(name="quiet", more=""))
    (folder / "agents" / "open.agent.md").write_text(AGENT.format(name="open", more="loop: {include-detailed-errors: true}\n"))
    leaving = AGENT.format(name="leaving", more="middleware: [failing_code:around_function]\n")
    (folder / "agents" / "leaving.agent.md").write_text(leaving)
    leaving = AGENT.format(name="leaving_session", more="middleware: [failing_code:around_agent]\n").replace("[function/rows]", "[]")
    (folder / "agents" / "leaving_session.agent.md").write_text(leaving)
    config = {
        "mcpServers": {"away": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Api-Key": SECRET}}},
        "expose": {"agents": ["agents"], "functions": ["failing_code"]},
        "skills": {"objects": ["failing_code"], "scripts": {"approval": "never"}},
    }
    turns: list[dict[str, Any]] = [
        {"when": {"last_role": "tool"}, "text": "It said: {last_tool}", "repeat": True},
        {"when": {"contains": "twice"}, "tool_calls": CALL["tool_calls"] * 2, "repeat": True},
        {"when": {"contains": "Begin."}, "text": "Begun.", "repeat": True},
        {"when": {"contains": "Go on."}, "text": "Gone on.", "repeat": True},
        {"when": {"contains": "aloud"}, "text": "".join(SENTENCES), **CALL, "repeat": True},
        {**CALL, "repeat": True},
    ]
    with openai_server(*turns) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": OWN_KEY}
        with gateway_http(folder, config, env=env) as url:
            yield url


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_texts_of_failing_code_reach_the_caller_without_secrets(served: str, way: Way) -> None:
    script = {"skill_name": "counting", "script_name": "count"}
    calls: dict[str, tuple[dict[str, Any], str]] = {
        "workflow__graph": ({"input": "x"}, "Executor 'reader' failed: "),
        "workflow__functional": ({"input": "x"}, "Executor 'fetch' failed: "),
        "workflow__file": ({}, "Executor 'load' failed: Function 'load' failed: "),
        "function__rows": ({}, "Function 'rows' failed: "),
        "run_skill_script": (script, "Skill 'counting' could not run 'count': "),
    }
    said: dict[str, str] = {}
    async with connected(way, served) as (client, _):
        refused = await client.call_tool("function__refuse", {})
        for name, (arguments, _) in calls.items():
            result = await client.call_tool(name, arguments)
            assert result.is_error, name
            said[name] = getattr(result.content[0], "text", "")
    assert (getattr(refused.content[0], "text", ""), refused.structured_content) == (
        "no rows for 2024 with key [secret]", {"why": "no rows for 2024 with key [secret]"},
    )  # fmt: skip
    assert said == {name: f"{before}ValueError: no rows for 2024 with key [secret]" for name, (_, before) in calls.items()}


@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt"])
async def test_code_that_exits_fails_its_call_only(served: str, how: str) -> None:
    said: dict[str, str] = {}
    async with connected(ERAS[0], served) as (client, _):
        for name in ("workflow__leaving", "workflow__leaving_function", "function__leave_thread", "function__leave_loop"):
            argument = "input" if name.startswith("workflow") else "text"
            result = await client.call_tool(name, {argument: how})
            assert result.is_error
            said[name] = getattr(result.content[0], "text", "")
    text = f"{how}: no rows for 2024 with key [secret]"
    assert said.pop("workflow__leaving") in {f"Executor {name!r} failed: {text}" for name in ("left", "right")}
    assert said == {
        "workflow__leaving_function": f"The workflow failed: {text}",
        "function__leave_thread": f"Function 'leave_thread' failed: {text}",
        "function__leave_loop": f"Function 'leave_loop' failed: {text}",
    }


async def test_agents_and_skills_code_that_exits_fails_its_call_only(served: str) -> None:
    said: list[str] = []
    async with connected(ERAS[0], served) as (client, _):

        async def call(name: str, **arguments: Any) -> Any:
            result = await client.call_tool(name, arguments)
            said.append(getattr(result.content[0], "text", ""))
            return result.meta

        await call("run_skill_script", skill_name="counting", script_name="interrupt")
        await call("agent__leaving", task="twice")
        begun = await call("agent__leaving_session", task="Begin.", session_id="new")
        await call("agent__leaving_session", task="Go on.", session_id=begun["dev.moongate/sessionId"])
        await call("function__key")
        await call("function__connect")
    text = "KeyboardInterrupt: no rows for 2024 with key [secret]"
    assert said[0] == f"Skill 'counting' could not run 'interrupt': {text}"
    assert said[1] == "It said: Error: Function failed."
    assert said[3] == f"Tool 'agent__leaving_session' failed: {text}"
    assert said[4] == "Function 'key' failed: ValueError: [secret]", "the gateway's own key is masked"
    assert said[5] == "Function 'connect' failed: ConnectionError: no route to postgres://reports:[secret]@db.example/sales"


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_agent_model_reads_error_text_only_if_its_file_allows(served: str, way: Way) -> None:
    async with connected(way, served) as (client, _):
        texts = [getattr((await client.call_tool(f"agent__{name}", {"task": "go"})).content[0], "text", "") for name in ("quiet", "open")]
    assert texts == [
        "It said: Error: Function 'rows' failed.",
        "It said: Error: Function 'rows' failed: ValueError: no rows for 2024 with key [secret]",
    ]


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_agent_progress_is_whole_sentences_without_repeats(served: str, way: Way) -> None:
    heard: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        if message:
            heard.append(message)

    async with connected(way, served) as (client, _):
        await client.call_tool("agent__quiet", {"task": "aloud"}, progress_callback=note)
    assert heard[:2] == ["thinking", SENTENCES[0].strip()]
    assert heard[2:4] == [SENTENCES[1], "using function__rows"]
    assert all(one != two for one, two in itertools.pairwise(heard))
