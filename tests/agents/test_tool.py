"""Agent files as tools, as the gateway calls them: loaded from a folder, run behind the gate, model on a real wire."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway import CallContext, FunctionTool
from gateway.agents.agent_runs import MAX_DEPTH
from gateway.agents.source import AgentSource
from gateway.chat.model_resolver import ModelResolver
from gateway.errors import AgentError, ModelError
from gateway.policy.metadata import AGENT_META_KEY
from gateway.tools.base import Complete, Tool
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallPorts
from gateway.tools.ports import ClientProfile, NoCaller
from tests.fakes.openai_server import ScriptedServer, openai_server


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


class Tools:
    """A tool box over a list; `patterns` records the requested patterns."""

    def __init__(self, *tools: Tool) -> None:
        self.by_pattern = {f"function/{tool.definition.name}": tool for tool in tools}
        self.patterns: list[str] = []

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        self.patterns += patterns
        return [tool for pattern, tool in self.by_pattern.items() if pattern in patterns]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return ()


class Listener(NoCaller):
    """A client that records the progress that it receives."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, str]] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, message or ""))


class Sampler(NoCaller):
    """A client with a model of its own."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def ask(self, request: dict[str, Any], key: str = "") -> dict[str, Any]:
        self.asked.append(request["params"])
        return self.answers.pop(0)


def agent_file(folder: Path, name: str = "helper", body: str = "Help.", **keys: Any) -> None:
    lines = [f"{key.replace('_', '-')}: {value}" for key, value in {"description": "Helps.", **keys}.items()]
    (folder / f"{name}.agent.md").write_text("---\n" + "\n".join(lines) + f"\n---\n{body}\n", encoding="utf-8")


@asynccontextmanager
async def source_of(folder: Path, environ: dict[str, str], tools: Tools | None = None) -> AsyncGenerator[AgentSource]:
    models = ModelResolver(environ, None)
    async with AgentSource([folder], toolbox=tools or Tools(), models=models, environ=environ) as source:
        yield source
    await models.aclose()


def endpoint(server: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": server.base_url, "OPENAI_MODEL": "local-model"}


async def call(source: AgentSource, task: str = "go", ctx: CallContext | None = None) -> Complete:
    with anyio.fail_after(20):
        [tool] = await source.tools()
        outcome = await tool.call({"task": task}, ctx or CallContext())
    assert isinstance(outcome, Complete)
    return outcome


async def test_the_published_tool_takes_one_task_and_nothing_else(tmp_path: Path) -> None:
    agent_file(tmp_path)
    async with source_of(tmp_path, {}) as source:
        [tool] = await source.tools()
    definition = tool.definition
    assert (definition.name, definition.description, definition.may_request_input) == ("helper", "Helps.", True)
    assert definition.input_schema["required"] == ["task"]
    assert definition.input_schema["additionalProperties"] is False


@pytest.mark.requirement("AG5")
async def test_result_has_text_model_and_summed_usage(tmp_path: Path, server: ScriptedServer) -> None:
    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    agent_file(tmp_path, tools="[function/double]")
    await server.play({"text": "One moment.", "tool_calls": [{"name": "double", "arguments": {"n": 21}}]}, {"text": "It is {last_tool}."})
    tools = Tools(FunctionTool(double))
    async with source_of(tmp_path, endpoint(server), tools) as source:
        result = await call(source, "twice 21?")
    assert result.as_text() == "It is 42."
    assert not result.is_error
    note = result.result["_meta"][AGENT_META_KEY]
    assert note["model"] == "local-model"
    assert note["usage"]["total_token_count"] == 36
    assert tools.patterns == ["function/double"]
    assert [request["path"] for request in await server.requests()] == ["/v1/chat/completions"] * 2
    assert (await server.requests())[0]["authorization"] == "Bearer not-needed"


async def test_agent_without_a_tools_key_gets_no_tools(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path)
    await server.play({"text": "alone"})
    async with source_of(tmp_path, endpoint(server)) as source:
        await call(source)
    [request] = await server.requests()
    assert "tools" not in request["body"]


async def test_progress_grows_strictly_despite_progress_of_tools(tmp_path: Path, server: ScriptedServer) -> None:
    async def slow(ctx: CallContext) -> str:
        """Reports its own progress."""
        for step in (1, 2, 1):
            await ctx.progress(step, 3, f"step {step}")
        return "done"

    agent_file(tmp_path, tools="[function/slow]")
    await server.play({"tool_calls": [{"name": "slow"}, {"name": "slow"}]}, {"text": "finished"})
    client = Listener()
    async with source_of(tmp_path, endpoint(server), Tools(FunctionTool(slow))) as source:
        await call(source, ctx=CallContext(ports=CallPorts(caller=client)))
    numbers = [number for number, _ in client.heard]
    assert numbers == sorted(set(numbers))
    said = " | ".join(message for _, message in client.heard)
    assert said.startswith("thinking | using slow, slow")
    lines = [message for _, message in client.heard if message]
    assert all(one != two for one, two in itertools.pairwise(lines))


@pytest.mark.requirement("SO1")
@pytest.mark.parametrize(("answer", "ok"), [('{"n": 3}', True), ('{"n": "three"}', False), ("three", False)])
async def test_output_schema_gives_structured_content_or_an_error_result(
    tmp_path: Path, server: ScriptedServer, answer: str, ok: bool
) -> None:
    agent_file(tmp_path, output="{type: object, properties: {n: {type: integer}}, required: [n]}")
    await server.play({"text": answer})
    async with source_of(tmp_path, endpoint(server)) as source:
        [tool] = await source.tools()
        assert tool.definition.output_schema is not None
        result = await call(source)
    assert result.is_error is not ok
    assert result.structured == ({"n": 3} if ok else None)
    assert answer in result.as_text()


async def test_error_without_endpoint_and_sampling_names_the_settings(tmp_path: Path) -> None:
    agent_file(tmp_path)
    async with source_of(tmp_path, {}) as source:
        with pytest.raises(ModelError) as caught:
            await call(source)
    for word in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "sampling"):
        assert word in str(caught.value)


async def test_sampling_client_is_the_model_without_an_endpoint(tmp_path: Path) -> None:
    agent_file(tmp_path, body="Be kind.")
    client = Sampler({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "claude", "stopReason": "endTurn"})
    ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"sampling": {}})), CallPorts(caller=client))
    async with source_of(tmp_path, {}) as source:
        assert (await call(source, "say hello", ctx)).as_text() == "hello"
    [params] = client.asked
    assert "Be kind." in params["systemPrompt"]
    assert params["messages"] == [{"role": "user", "content": {"type": "text", "text": "say hello"}}]


def inside(agents: int) -> CallContext:
    """The context of a call inside this many agents."""
    ctx = CallContext()
    for _ in range(agents):
        ctx = ctx.inside_agent()
    return ctx


async def test_agents_call_each_other_only_so_deep(tmp_path: Path) -> None:
    agent_file(tmp_path)
    async with source_of(tmp_path, {}) as source:
        with pytest.raises(AgentError, match="already call each other"):
            await call(source, ctx=inside(MAX_DEPTH))


async def test_tools_of_a_run_learn_how_deep_they_are(tmp_path: Path, server: ScriptedServer) -> None:
    depths: list[Any] = []

    async def look(ctx: CallContext) -> str:
        """Looks at its context."""
        depths.append(ctx.facts.provenance.agent_depth)
        return "seen"

    agent_file(tmp_path, tools="[function/look]")
    await server.play({"tool_calls": [{"name": "look"}]}, {"text": "ok"})
    async with source_of(tmp_path, endpoint(server), Tools(FunctionTool(look))) as source:
        await call(source, ctx=inside(2))
    assert depths == [3]


async def test_cancelling_the_call_stops_the_model_request(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path)
    await server.play({"text": "never", "fault": "hang"})
    client = Listener()
    async with source_of(tmp_path, endpoint(server)) as source:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, source, "go", CallContext().with_caller(client))
                while not await server.requests():
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
    assert [message for _, message in client.heard] == ["thinking"]


async def test_broken_file_is_a_problem_and_the_others_load(tmp_path: Path) -> None:
    agent_file(tmp_path, "good")
    agent_file(tmp_path, "typo", descriptoin="x")
    agent_file(tmp_path, "empty", body="")
    (tmp_path / "README.md").write_text("# not an agent")
    async with source_of(tmp_path, {}) as source:
        assert [tool.definition.name for tool in await source.tools()] == ["good"]
    found = {Path(problem.where).name: problem.message for problem in source.problems}
    assert set(found) == {"typo.agent.md", "empty.agent.md"}
    assert "descriptoin" in found["typo.agent.md"] and "description" in found["typo.agent.md"]
    assert "instructions" in found["empty.agent.md"]


async def test_file_of_another_host_loads_with_notes_on_ignored_keys(tmp_path: Path) -> None:
    (tmp_path / "reviewer.md").write_text("---\ndescription: Reviews.\ncolor: blue\ntools: function/a, function/b\n---\nReview.\n")
    async with source_of(tmp_path, {}) as source:
        [definition] = source.definitions
    assert (definition.file.name, definition.file.tools) == ("reviewer", ["function/a", "function/b"])
    assert "color" in definition.notes[0]
