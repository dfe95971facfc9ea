"""The tool that an agent file defines: rich answers, streamed text, limits, middleware, parameters, and the agent card."""

from __future__ import annotations

import json
import textwrap
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import AgentResponse, Annotation, CallContext, Content, FunctionTool, Message, tool
from gateway.agents.run_progress import RunProgress
from gateway.agents.run_results import to_complete
from gateway.agents.source import AgentSource
from gateway.chat.model_resolver import ModelResolver
from gateway.config.policies import SourcePolicy
from gateway.errors import NotFound
from gateway.gate.approvals import Approvals
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.metadata import AGENT_META_KEY
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallPorts
from gateway.tools.ports import ClientProfile
from gateway.tools.progress_text import MAX_CHARS
from gateway.types.responses import AgentResponseUpdate
from tests.agents.test_tool import Listener, Tools, agent_file, endpoint
from tests.fakes.openai_server import ScriptedServer, openai_server


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


@asynccontextmanager
async def source_of(folder: Path, server: ScriptedServer, tools: Tools | None = None) -> AsyncGenerator[AgentSource]:
    models = ModelResolver(endpoint(server), None)
    async with AgentSource([folder], toolbox=tools or Tools(), models=models, environ={}, base_dir=folder) as source:
        yield source
    await models.aclose()


async def call(source: AgentSource, ctx: CallContext | None = None, **arguments: Any) -> Complete:
    with anyio.fail_after(20):
        [agent] = await source.tools()
        outcome = await agent.call({"task": "go", **arguments}, ctx or CallContext())
    assert isinstance(outcome, Complete)
    return outcome


def double(n: int) -> int:
    """Twice n."""
    return 2 * n


def test_agent_contents_become_blocks_with_citations_and_usage() -> None:
    cited = Annotation(type="citation", title="Doc", url="https://x/doc")
    contents = [
        Content.from_text("Here.", annotations=[cited]),
        Content.from_data(b"png", "image/png"),
        Content.from_data(b"wav", "audio/wav"),
        Content.from_data(b"a,b", "text/csv", additional_properties={"uri": "file:///t.csv"}),
        Content.from_uri("https://x/report.pdf", media_type="application/pdf", additional_properties={"title": "Report"}),
    ]
    response = AgentResponse([Message("assistant", contents)], usage_details={"total_token_count": 5})
    result = to_complete(response, model="m", output=None).result
    assert result["content"] == [
        {"type": "text", "text": "Here."},
        {"type": "image", "data": "cG5n", "mimeType": "image/png"},
        {"type": "audio", "data": "d2F2", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///t.csv", "mimeType": "text/csv", "blob": "YSxi"}},
        {"type": "resource_link", "uri": "https://x/report.pdf", "name": "report.pdf", "mimeType": "application/pdf", "title": "Report"},
    ]
    assert result["_meta"][AGENT_META_KEY] == {"model": "m", "usage": {"total_token_count": 5}, "citations": [cited]}


def test_image_alone_is_an_answer_and_empty_answer_is_an_error() -> None:
    picture = AgentResponse([Message("assistant", [Content.from_data(b"png", "image/png")])])
    assert [block["type"] for block in to_complete(picture, model=None, output=None).content] == ["image"]
    nothing = to_complete(AgentResponse([Message("assistant", [])]), model=None, output=None)
    assert nothing.is_error and "empty answer" in nothing.as_text()


def test_run_that_waits_for_a_person_is_an_error_with_the_reason() -> None:
    consent = Content.from_oauth_consent_request("https://x/consent")
    result = to_complete(AgentResponse([Message("assistant", [consent])]), model=None, output=None)
    assert result.is_error and "https://x/consent" in result.as_text()


async def test_text_without_sentences_is_reported_in_whole_words() -> None:
    client = Listener()
    progress = RunProgress(CallContext(ports=CallPorts(caller=client)))
    words = [f"word{number} " for number in range(1000)]
    for word in words:
        await progress.text_added(AgentResponseUpdate([Content.from_text(word)], "assistant"))
    assert client.heard, "it does not wait for the end of a sentence that never comes"
    await progress.tools_called(["search"])
    said = [message for _, message in client.heard][:-1]
    assert max(map(len, said)) <= MAX_CHARS
    assert " ".join(said).split() == "".join(words).split()


async def test_agent_text_is_reported_in_parts_and_its_end_is_the_result() -> None:
    client = Listener()
    progress = RunProgress(CallContext(ports=CallPorts(caller=client)))
    await progress.model_called(1)
    for word in ("Let ", "me ", "see."):
        await progress.text_added(AgentResponseUpdate([Content.from_text(word)], "assistant"))
    await progress.text_added(AgentResponseUpdate([Content.from_text("result of a tool")], "tool"))
    await progress.tools_called(["search"])
    said = [message for _, message in client.heard]
    assert (said[0], said[-1]) == ("thinking", "using search")
    assert "".join(said[1:-1]) == "Let me see."
    assert [number for number, _ in client.heard] == list(range(1, len(said) + 1))


async def test_progress_reports_text_before_tool_calls(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path, tools="[function/double]")
    await server.play({"text": "One moment.", "tool_calls": [{"name": "double", "arguments": {"n": 1}}]}, {"text": "Two."})
    client = Listener()
    async with source_of(tmp_path, server, Tools(FunctionTool(double))) as source:
        result = await call(source, CallContext(CallFacts(wants_progress=True), CallPorts(caller=client)))
    said = [message for _, message in client.heard]
    assert "One moment." in "".join(said[: said.index("using double")])
    assert result.as_text() == "Two."


async def test_limit_that_ended_a_run_is_in_text_and_meta(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path, tools="[function/double]", loop="{max-function-calls: 1}")
    await server.play({"tool_calls": [{"name": "double", "arguments": {"n": 1}}]}, {"text": "Only this far."})
    async with source_of(tmp_path, server, Tools(FunctionTool(double))) as source:
        result = await call(source)
    assert result.as_text() == "Only this far.\n\n(Stopped: at most 1 tool calls.)"
    assert result.result["_meta"][AGENT_META_KEY]["stopped"] == "at most 1 tool calls"


async def test_file_middleware_options_and_caller_parameters_apply(
    tmp_path: Path, server: ScriptedServer
) -> None:
    (tmp_path / "layers_of_this_test.py").write_text(
        textwrap.dedent("""
            from gateway import AgentContext, ChatContext, ChatMiddleware, Message, agent_middleware

            class Polite(ChatMiddleware):
                async def process(self, context: ChatContext, call_next):
                    context.messages.append(Message("user", ["please"]))
                    await call_next()

            @agent_middleware
            async def shouting(context, call_next):
                await call_next()
                context.result.messages[-1].contents[0].text += "!"
        """)
    )
    agent_file(
        tmp_path,
        middleware="[layers_of_this_test:shouting, layers_of_this_test:Polite]",
        options="{temperature: 0.2, top_p: 0.5}",
        parameters="[temperature, max_tokens]",
    )
    await server.play({"text": "yes"})
    async with source_of(tmp_path, server) as source:
        assert source.problems == []
        [agent] = await source.tools()
        properties = agent.definition.input_schema["properties"]
        result = await call(source, temperature=1.5)
    [request] = await server.requests()
    assert {"temperature", "max_tokens"} <= set(properties) and "top_p" not in properties
    assert (request["body"]["temperature"], request["body"]["top_p"]) == (1.5, 0.5)
    assert request["body"]["messages"][-1]["content"] == "please"
    assert result.as_text() == "yes!"


@pytest.mark.parametrize("reference", ["nowhere_at_all:x", "json:loads", "json", "json:nothing"])
async def test_invalid_middleware_disables_its_agent_and_is_named(tmp_path: Path, server: ScriptedServer, reference: str) -> None:
    agent_file(tmp_path, middleware=f"[{reference}]")
    async with source_of(tmp_path, server) as source:
        assert await source.tools() == []
    [problem] = source.problems
    assert "middleware" in problem.message and reference in problem.message


async def test_agent_card_is_a_resource_without_instructions(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path, "helper", body="SECRET PLAN", tools="[function/double]", loop="{max-function-calls: 9}", output="{type: object}")
    async with source_of(tmp_path, server) as source:
        [listed] = await source.list("resources")
        [contents] = (await source.read(listed["uri"], CallContext())).result["contents"]
        with pytest.raises(NotFound):
            await source.read("agent://nobody", CallContext())
        with pytest.raises(NotFound):
            await source.watch("agent://nobody")
    card = json.loads(contents["text"])
    assert (listed["uri"], listed["mimeType"]) == ("agent://helper", "application/json")
    assert (card["name"], card["description"], card["tools"]) == ("helper", "Helps.", ["function/double"])
    assert card["limits"] == {"max-turns": 12, "max-function-calls": 9}
    assert card["output"] == {"type": "object"}
    assert "SECRET" not in contents["text"]


class Person(Listener):
    """A client that approves every request, and records the time left before the call's deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.left: list[float] = []

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.append(request["params"]["message"])
        self.left.append(anyio.current_effective_deadline() - anyio.current_time())
        return {"action": "accept", "content": {"decision": "approve"}}


@pytest.mark.requirement("AP2")
async def test_approval_inside_an_agent_stops_the_calls_clock(
    tmp_path: Path, server: ScriptedServer
) -> None:
    wiped: list[str] = []

    @tool(approval_mode="always_require")
    def wipe(disk: str) -> str:
        """Wipes a disk."""
        wiped.append(disk)
        return "wiped"

    def guarded(inner: Any, source: str) -> GuardedTool:
        rules = ToolRules.build(inner.definition, SourcePolicy(), is_local=True)
        events = EventStream()
        gate = SourceGate(source, GateServices(events, Approvals(None, events)))
        return GuardedTool(inner, rules, gate, exposed_name=inner.definition.name)

    agent_file(tmp_path, tools="[function/wipe]")
    await server.play({"tool_calls": [{"name": "wipe", "arguments": {"disk": "sda"}}]}, {"text": "Done: {last_tool}."})
    person = Person()
    ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {}})), CallPorts(caller=person))
    async with source_of(tmp_path, server, Tools(guarded(wipe, "function"))) as source:
        [agent] = await source.tools()
        outcome = await guarded(agent, "agent").call({"task": "wipe it"}, ctx)
    assert isinstance(outcome, Complete)
    assert (outcome.as_text(), wiped) == ("Done: wiped.", ["sda"])
    assert ["sda" in asked for asked in person.asked] == [True]
    assert [round(seconds) for seconds in person.left] == [ctx.facts.ask_timeout_seconds]
