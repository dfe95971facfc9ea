"""Everything that can be called or read is reached through the gate, whatever calls it.

Two tests run a gateway that serves a source of each kind, and watch every implementation of a tool and of a source. One calls and reads
whatever the registries of the gateway list, and has an agent's model call every tool that it is offered; an implementation that it does not
reach must be listed in `ELSEWHERE`. The other sends requests of clients on the fast path and the SDK path, over HTTP and as lines of stdio.
An implementation that runs outside the gate's step `run` fails them.

Code that these tests do not run is compared with lists: `IMPORTERS` has the modules that import the objects of files; `PROVIDERS_OF_FILES`
what the context providers of agent files read and write. A new module or provider fails a test until somebody lists it. `test_places` lists
the places in the source code that may run or read something.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest

from gateway.app import Gateway
from gateway.catalog.skill_catalog import SkillCatalog
from gateway.errors import GatewayError
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonObject, JsonValue
from gateway.server.dispatch import LineDispatch
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile, LogLevel
from tests.architecture.sources import name_of, parsed, python_files
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.recorded_events import RecordedEvents
from tests.gate.watch import Watch, implementations, with_methods
from tests.interaction.wire import modern_params, over_http
from tests.skills.on_disk import write_skill

ELSEWHERE = {
    "_QuarantinedTool.call": "the gate refuses each call of a quarantined tool",
    "_Placeholder.call": "stands for a tool while a workflow is drawn, and is never called",
    "HandoffTool.call": "only ends the turn of an agent in a handoff",
    "AgentSource.get_prompt": "agents have no prompts, so the catalog never asks for one",
    "GatewaySource.get_prompt": "the gateway itself has no prompts",
}

IMPORTERS = {
    "gateway/agents/source.py": "judged by `FunctionRules.admit`",
    "gateway/workflows/gated_functions.py": "judged by `FunctionRules.admit`",
    "gateway/skills/code.py": "the configuration names the objects, not a file",
    "gateway/tools/functions_source.py": "the configuration names the modules, not a file",
}
"""Modules that import the Python objects of files or the configuration, each with the reason why no file avoids the rules."""

PROVIDERS_OF_FILES = {
    "FileAccessProvider": "`files`: adds tools, which pass the gate; reads and writes nothing itself",
    "InMemoryHistoryProvider": "without `history`, or outside a session: keeps the messages of the run in the run's own session",
    "SecureAgentConfig": "`security`: adds middleware; reads and writes nothing",
    "SemanticMemoryProvider": "`memory`: searches the stored messages before a run, and stores the caller's (with `answers` the agent's) "
    "after it; both pass the gate as calls of `memory_recall` and `memory_store`",
    "TodoProvider": "`context-providers`, admitted by `FunctionRules`: reads the todo list of the session, a part of the run; changes it "
    "with tools, which pass the gate",
    "TurnHistory": "`history`: adds the session's earlier messages, and keeps the new ones, a part of the run; the session is its owner's",
}
"""Context providers in the run of an agent file, each with its key, and what it reads and writes without the gate, with the reason.

The key `skills` has no provider: its texts in the instructions are names and descriptions, and its tools pass the gate."""

PROVIDERS_OF_PROGRAMS = frozenset(
    {
        "AgentModeProvider",
        "BackgroundAgentsProvider",
        "CompactionProvider",
        "ContextProvider",  # the base class, which does nothing
        "FileHistoryProvider",
        "HandoffProvider",
        "HistoryProvider",  # base class of `TurnHistory`
        "MemoryContextProvider",
        "RecallingProvider",
        "RedisHistoryProvider",
        "SkillsProvider",
        "SqlHistoryProvider",
    }
)
"""Other classes with methods around a run. Only programs compose agents with them, and a file that names one in `context-providers`: the
program, or the file, which `FunctionRules` admits, gives them their rights. `HandoffProvider` adds tools to teams."""

WORK = '''
from gateway import InlineSkill, SkillFrontmatter, TodoProvider, agent_middleware, tool

units = InlineSkill(frontmatter=SkillFrontmatter(name="units", description="Converts units."), instructions="Run `convert`.")


@units.script
def convert() -> str:
    """Convert."""
    return "1 km"


@tool
def now() -> str:
    """The time."""
    return "noon"


def make():
    from gateway import WorkflowBuilder, WorkflowContext, executor

    @executor(id="one")
    async def one(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(text)

    return WorkflowBuilder(start_executor=one, output_from=[one]).build()


@agent_middleware
async def around(context, call_next):
    await call_next()


def step() -> str:
    """A step of a workflow."""
    return "done"


def echo(text: str) -> str:
    """Another step, with arguments."""
    return text


def join(answers):
    return "joined"


def todo():
    return TodoProvider()
'''
CLERK = """---
name: clerk
description: Keeps files.
model: openai-chat:scripted
files: {root: ../data, access: delete}
context-providers: [work:todo]
middleware: [work:around]
tools: [docs/*]
skills: [pdf]
memory: {}
security: {}
max-turns: 60
---
Keep them.
"""
FLOW = """name: flow
description: Runs a function.
input: {}
executors:
  one: {python: "work:step"}
  two: {python: "work:echo", arguments: {text: "{{one}}"}}
start: one
edges: [{from: one, to: two}]
output: two
"""
TEAM = """name: team
description: Joins answers.
input: {}
prompt: "Go."
concurrent: {participants: [clerk], aggregator: "work:join"}
"""
MADE = """name: made
description: Builds a graph in Python.
python: "work:make"
input: {text: {type: string}}
"""
DOCS: dict[str, Any] = {
    "tools": [{"name": "fetch", "inputSchema": {"type": "object"}}],
    "resources": [{"uri": "docs://a", "name": "a"}],
    "templates": [{"uriTemplate": "docs://{page}", "name": "page"}],
    "prompts": [{"name": "greet"}],
    "reads": {"docs://a": {"contents": [{"uri": "docs://a", "text": "a"}]}},
    "rendered": {"greet": {"messages": []}},
    "skills": [],
}


@contextmanager
def served(folder: Path, patch: pytest.MonkeyPatch) -> Generator[tuple[Any, ScriptedServer]]:
    """A gateway with a source of each kind."""
    own = folder / "own"
    own.mkdir()
    (own / "clerk.agent.md").write_text(CLERK)
    (own / "flow.workflow.yaml").write_text(FLOW)
    (own / "team.workflow.yaml").write_text(TEAM)
    (own / "made.workflow.yaml").write_text(MADE)
    (folder / "work.py").write_text(WORK)
    patch.delitem(sys.modules, "work", raising=False)  # of another folder
    (folder / "data").mkdir()
    write_skill(folder / "skills" / "pdf", files={"notes.txt": "notes"})
    with openai_server() as model, raw_inside(DOCS) as docs, raw_inside({"tools": DOCS["tools"]}) as more:
        patch.setenv("OPENAI_BASE_URL", model.base_url)
        patch.setenv("OPENAI_API_KEY", "none")
        config = {
            "mcpServers": {"docs": {"type": "http", "url": docs}, "more": {"type": "http", "url": more}},
            "expose": {"agents": ["own"], "skills": ["skills"], "functions": ["work"]},
            "policies": {
                "docs": {"promptsAsTools": True},
                "more": {"disclosure": "on-demand"},
                "agent/clerk": {"approval": {"always": ["file_access_read_file"]}},
            },
            "server": {"askTimeoutSeconds": 0.1, "http": {"agui": True}},
            "skills": {"objects": ["work:units"]},
        }
        with gateway_inside(folder, config) as inside:
            yield inside, model


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that pass the schema of a tool: every required one."""
    known = {"task": "Go.", "names": ["more__fetch"]}
    plain: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}, "string": "x"}
    properties = schema.get("properties", {})

    def value(name: str) -> Any:
        rule = properties.get(name, {})
        return known.get(name) or (rule["enum"][0] if "enum" in rule else plain.get(rule.get("type", "string"), "x"))

    return {name: value(name) for name in schema.get("required", [])}


class Approver:
    """A caller whose person approves everything."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None: ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        return {"action": "accept", "content": {"decision": "approve"}}


def approving() -> CallContext:
    return CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})), CallPorts(caller=Approver()))


async def quietly(work: Any) -> None:
    """Await what may fail: the test only asks where it ran."""
    try:
        with anyio.fail_after(20):
            await work
    except (GatewayError, TimeoutError):
        return


async def use_everything(gateway: Gateway) -> None:
    """Call every listed tool, read every listed resource, prompt and skill, complete and watch."""
    catalog, ctx = gateway.catalog, approving()
    for tool in await catalog.tools():
        await quietly(tool.call(arguments_for(tool.definition.input_schema), ctx))
        await quietly(tool.task("tasks/get", {"taskId": "1"}, ctx))
    for wire in catalog.wire("resources"):
        await quietly(catalog.read(wire["uri"], ctx))
        await quietly(catalog.complete({"type": "ref/resource", "uri": wire["uri"]}, {"name": "page", "value": ""}, None, ctx))
        await quietly(catalog.watch(wire["uri"], ctx))
    for wire in catalog.wire("prompts"):
        await quietly(catalog.get_prompt(wire["name"], {}, ctx))
        await quietly(catalog.complete({"type": "ref/prompt", "name": wire["name"]}, {"name": "x", "value": ""}, None, ctx))
    face = SkillCatalog(catalog)
    page = await face.list_page(None, ctx)
    for entry in cast("list[Any]", page["skills"]):
        await quietly(face.get(entry["uri"], ctx))
        await quietly(face.directory(entry["uri"].removesuffix("/SKILL.md"), None, ctx))


async def use_agent(gateway: Gateway, model: ScriptedServer, url: str) -> None:
    """Have the agent's model call every tool that it is offered; then run the agent over AG-UI."""
    [clerk] = await gateway.catalog.tools(["agent/clerk"])
    await model.play({"text": "done"})
    await clerk.call({"task": "Go."}, approving())
    offered = next(each["body"]["tools"] for each in await model.requests() if "tools" in each["body"])
    calls = [{"name": each["function"]["name"], "arguments": arguments_for(each["function"]["parameters"])} for each in offered]
    await model.play({"when": {"last_role": "user"}, "tool_calls": calls}, {"text": "done"})
    await quietly(clerk.call({"task": "Go."}, approving()))
    await model.play({"text": "done"})
    await clerk.call({"task": "Go.", "session_id": "new"}, approving())
    body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    async with httpx2.AsyncClient(timeout=20) as client:
        await client.post(url.replace("/mcp", "/agui/clerk"), json=body)
    await model.play({"text": "done"}, {"text": "done"}, {"text": "done"})


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Watch]:
    """The implementations that were reached after everything was called and read."""
    watch = Watch(monkeypatch)
    with served(tmp_path, monkeypatch) as (inside, model):
        portal, gateway = inside._portal, inside._gateway
        await anyio.to_thread.run_sync(portal.call, use_agent, gateway, model, inside.url)
        await anyio.to_thread.run_sync(portal.call, use_everything, gateway)
    yield watch


async def test_everything_that_runs_or_reads_passes_the_gate(watched: Watch) -> None:
    assert watched.outside == set()
    assert watched.providers == PROVIDERS_OF_FILES.keys()
    ways = {f"{owner.__name__}.{name}" for owner, name in implementations()}
    missed, elsewhere = ways - set(watched.reached), set(ELSEWHERE)
    assert (missed - elsewhere, elsewhere - missed) == (set(), set())


async def by_lines(gateway: Any, lines: Sequence[JsonObject], answers: int) -> list[JsonObject]:
    """Send a gateway lines as over stdio; return its first responses to requests."""
    said: list[JsonObject] = []
    wake = anyio.Event()

    async def write(data: bytes) -> None:
        nonlocal wake
        said.extend(message for message in map(json.loads, data.splitlines()) if "id" in message)
        wake.set()
        wake = anyio.Event()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            talk = LineDispatch(gateway._server, write, tasks)
            for line in lines:
                await talk.take(json.dumps({"jsonrpc": "2.0", **line}).encode())
                while len(said) < min(answers, len([each for each in lines[: lines.index(line) + 1] if "id" in each])):
                    await wake.wait()
            await talk.end()
            tasks.cancel_scope.cancel()
    return said


HELLO: JsonObject = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}
OPENING: list[JsonObject] = [{"id": 1, "method": "initialize", "params": HELLO}, {"method": "notifications/initialized"}]
FETCH: JsonObject = {"name": "docs__fetch", "arguments": {}}
WATCHED_CALL: JsonObject = {**FETCH, "_meta": {"progressToken": 1}}
"""A call that the fast path leaves to the SDK path."""

REQUESTS: dict[tuple[str, str], tuple[JsonObject, set[str], str]] = {
    ("tools/call", "modern"): (FETCH, {"run_plain"}, "RemoteTool.call"),
    ("tools/call", "legacy"): (FETCH, {"run_legacy"}, "RemoteTool.call"),
    ("tools/call on the SDK path", "modern"): (WATCHED_CALL, {"__call__", "run"}, "RemoteTool.call"),
    ("tools/call on the SDK path", "legacy"): (WATCHED_CALL, {"__call__", "run_legacy"}, "RemoteTool.call"),
    ("resources/read", "modern"): ({"uri": "docs+docs://a"}, {"read"}, "UpstreamSource.read"),
    ("resources/read", "legacy"): ({"uri": "docs+docs://a"}, {"read"}, "UpstreamSource.read"),
    ("prompts/get", "modern"): ({"name": "docs__greet"}, {"get_prompt"}, "UpstreamSource.get_prompt"),
    ("prompts/get", "legacy"): ({"name": "docs__greet"}, {"get_prompt"}, "UpstreamSource.get_prompt"),
}
"""Requests by title and protocol era: parameters, the methods of the server that handle it, and the implementation that it reaches."""


@pytest.mark.parametrize("carrier", ["http", "lines"])
async def test_requests_of_clients_pass_the_gate_on_each_path(carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    with served(tmp_path, monkeypatch) as (inside, _):
        for (title, era), (params, handlers, reached) in REQUESTS.items():
            method = title.partition(" ")[0]
            watch.reached, watch.gated, watch.handlers = [], [], set()
            if carrier == "http":
                async with over_http(inside.url, "modern" if era == "modern" else "legacy", tasks=False, capabilities={}) as wire:
                    answer = await wire.send(method, **params)
            else:
                sent = modern_params({**params}, tasks=False, capabilities={}) if era == "modern" else params
                opening = [] if era == "modern" else OPENING
                lines = [*opening, {"id": 2, "method": method, "params": sent}]
                said = await anyio.to_thread.run_sync(inside._portal.call, by_lines, inside._gateway, lines, 1 + bool(opening))
                answer = said[-1]
            assert "result" in answer, (title, era, answer)
            gated = ["ToolCall" if method == "tools/call" else "ReadCall"]
            ways = [way for way in watch.reached if way != "UriTool.call"]
            assert (watch.handlers, ways, watch.gated, watch.outside) == (handlers, [reached], gated, set()), (title, era)


def test_every_module_that_imports_named_objects_is_known() -> None:
    found = {name_of(path) for path in python_files("gateway") if {"import_object", "import_from"} & called_names(parsed(path))}
    assert found == IMPORTERS.keys()


def test_every_context_provider_is_known() -> None:
    """Each class that works before or after a run is known, and each in the run of an agent file says what it does without the gate."""
    found = {name for path in python_files("gateway") for name in with_methods(parsed(path), {"before_run", "after_run", "get_messages"})}
    assert found - {"SessionContext"} == PROVIDERS_OF_FILES.keys() | PROVIDERS_OF_PROGRAMS


def called_names(tree: ast.AST) -> set[str]:
    """The names of all functions and methods that the code calls."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "") for function in functions}


async def test_code_that_files_load_is_judged_and_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every object that a file of an agent or workflow names is judged; what runs while the file is loaded is audited."""
    imported, judged = set[str](), set[str]()
    for name in [path.removesuffix(".py").replace("/", ".") for path, reason in IMPORTERS.items() if "admit" in reason]:
        patch_import(monkeypatch, name, imported)
    admit = FunctionRules.admit

    def noted(rules: FunctionRules, source: str, reference: str, found: object = None, *, by_allow: bool = True) -> Any:
        if found is None:
            assert reference not in imported
        else:
            judged.add(reference)
        return admit(rules, source, reference, found, by_allow=by_allow)

    monkeypatch.setattr(FunctionRules, "admit", noted)
    with served(tmp_path, monkeypatch) as (inside, _):
        recorded = cast("RecordedEvents", inside._gateway.events).recent()
        events = [(event.source, event.name) for event in recorded if event.kind == "call.audited"]
    assert imported == judged == {"work:todo", "work:around", "work:step", "work:echo", "work:join", "work:make"}
    assert set(events) == {("agent/clerk", "todo"), ("agent/clerk", "around"), ("workflow/made", "make")}


def patch_import(patch: pytest.MonkeyPatch, module: str, imported: set[str]) -> None:
    """Note what a module imports."""
    real = importlib.import_module(module).import_object

    async def noting(reference: str, **options: Any) -> object:
        imported.add(reference)
        return await real(reference, **options)

    patch.setattr(f"{module}.import_object", noting)
