"""Everything that can be called or read is reached through the gate, whatever calls it.

The test finds every implementation of a tool and of a source in the package, watches them all in a gateway that serves one of each kind,
and calls and reads whatever the gateway's registries list. An implementation that runs outside the gate's step `run` fails the test, and
so does one that nothing here reaches: add it to the gateway below, or say in `ELSEWHERE` why it cannot run in one.

Code that nothing here runs cannot hide either: `CALLERS` lists every expression outside `gateway/gate/` that calls such a method, with the
reason why the gate sees the call, and `CONTEXT_METHODS` the other methods of sources that take a `CallContext`.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest

from gateway.app import Gateway
from gateway.catalog.skills import SkillFace
from gateway.errors import GatewayError
from gateway.gate.function_rules import FunctionRules
from gateway.gate.own_tools import is_guarded
from gateway.gate.reads import ReadCall
from gateway.gate.tools import TaskCall, ToolCall
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile, LogLevel
from tests.architecture.sources import name_of, parsed, python_files
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.recorded_events import RecordedEvents
from tests.skills.on_disk import write_skill

METHODS = {
    "call": ["arguments", "ctx"],
    "task": ["method", "params", "ctx"],
    "read": ["uri", "ctx"],
    "get_prompt": ["name", "arguments", "ctx"],
    "complete": ["ref", "argument", "context", "ctx"],
    "skills": ["method", "params", "ctx"],
    "watch": ["uri"],
}
"""Methods of tools and sources that run or read something, with their parameters."""

GATE = frozenset({"GuardedTool", "Catalog"})
"""Classes with such methods that take each call through the gate themselves."""

ELSEWHERE = {
    "_Placeholder.call": "stands for a tool while a workflow is drawn, and is never called",
    "HandoffTool.call": "only ends the turn of an agent in a handoff",
    "AgentSource.get_prompt": "agents have no prompts, so the catalog never asks for one",
    "GatewaySource.get_prompt": "the gateway itself has no prompts",
}

CALLERS = {
    "gateway/agents/mcp_server.py tool.call": "a program serves its own agent, without a gateway",
    "gateway/agents/tool.py (await self._running()).call": "the tool of an agent is behind the gate itself",
    "gateway/app/gateway.py self.catalog.read": "the catalog takes reads through the gate",
    "gateway/catalog/catalog.py source.read": "the work of a `Read`",
    "gateway/catalog/catalog.py source.get_prompt": "the work of a `Read`",
    "gateway/catalog/catalog.py source.complete": "the work of a `Read`",
    "gateway/catalog/catalog.py source.watch": "the work of a `Read`",
    "gateway/catalog/prompt_tools.py self._source.get_prompt": "a tool that renders a prompt, behind the gate",
    "gateway/catalog/skills.py source.skills": "the work of a `Read`",
    "gateway/catalog/uris.py self._inner.call": "a tool around a remote tool, behind the gate",
    "gateway/catalog/uris.py self._inner.task": "a tool around a remote tool, behind the gate",
    "gateway/server/calls.py (await self._catalog.seek(name)).call": "a tool of the catalog is behind the gate",
    "gateway/server/calls.py tool.call": "a `GuardedTool`",
    "gateway/server/sdk_path/read_methods.py self._catalog.read": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/read_methods.py self._catalog.get_prompt": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/read_methods.py self._catalog.complete": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/task_methods.py tool.task": "a `GuardedTool`",
    "gateway/server/task_calls.py tool.task": "a `GuardedTool`",
    "gateway/tools/drive.py tool.call": "repeats a call whose tool the caller got behind the gate",
    "gateway/tools/wrappers.py self.inner.call": "a tool under another name, called by the gate or around a guarded tool",
}
"""Expressions that call one of `METHODS`, each with the reason why the gate sees the call."""

CONTEXT_METHODS = {
    "UpstreamSource.send": "sends the requests of the methods above",
    "UpstreamSource.answer": "answers a request of the server for input",
    "UpstreamSource.answer_ask": "answers a request of the server for input",
    "UpstreamSource.judge_ask": "judges a request of the server for input",
    "UpstreamSource.notified": "passes on a notification of the server",
}
"""Other public methods of sources with a `CallContext`, each with the reason why it is not a further way to run or read something."""

IMPORTERS = {
    "gateway/agents/source.py": "judged by `FunctionRules.admit`",
    "gateway/workflows/plan.py": "judged by `FunctionRules.admit`",
    "gateway/workflows/file_graph.py": "judged by `FunctionRules.admit`",
    "gateway/workflows/team.py": "judged by `FunctionRules.admit`",
    "gateway/skills/code.py": "the configuration names the objects, not a file",
    "gateway/tools/functions_source.py": "the configuration names the modules, not a file",
}
"""Modules that import the Python objects of files or the configuration, each with the reason why no file avoids the rules."""

UNJUDGED_CONTEXT = {
    "gateway/agents/providers/memory_provider.py": "notes of the agent's own memory, which it needs in each run; `read_memory_topic` and "
    "the other tools pass the gate. Judging the notes as a read needs a gate for reads of `agent/<name>`, which does not exist",
}
"""Modules of the key `memory` that add stored text to a prompt without the gate, each with the reason."""

Found = tuple[type, str]


def implementations() -> list[Found]:
    """Every class of the package that defines one of the methods, except protocols and the gate."""
    found: list[Found] = []
    for path in python_files("gateway"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name not in GATE and "Protocol" not in {ast.unparse(base) for base in node.bases}:
                names = [item.name for item in node.body if isinstance(item, ast.AsyncFunctionDef) and _is_way(item)]
                if names:
                    module = importlib.import_module(".".join(path.with_suffix("").parts[path.parts.index("gateway") :]))
                    found += [(getattr(module, node.name), name) for name in names]
    return found


def _is_way(node: ast.AsyncFunctionDef) -> bool:
    return [argument.arg for argument in node.args.args[1:]] == METHODS.get(node.name)


class Watch:
    """Notes which implementations are reached, and which of them outside the gate."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached: set[str] = set()
        self.outside: set[str] = set()
        self._holder: ContextVar[object] = ContextVar("holder", default=None)
        for owner, name in implementations():
            patch.setattr(owner, name, self._watched(owner, name))
        patch.setattr(ToolCall, "run", self._within(ToolCall.run, lambda call: call._tool.tool))
        patch.setattr(ReadCall, "run", self._within(ReadCall.run, lambda call: call.gate.source))
        patch.setattr(TaskCall, "run", self._within(TaskCall.run, lambda call: call._tool.tool))

    def _within(self, run: Any, holder_of: Callable[[Any], object]) -> Any:
        """The gate's step, which admits one tool, or one source by its id."""

        @wraps(run)
        async def within(gated: Any, *given: Any) -> Any:
            token = self._holder.set(holder_of(gated))
            try:
                return await run(gated, *given)
            finally:
                self._holder.reset(token)

        return within

    def _watched(self, owner: type, name: str) -> Any:
        method = getattr(owner, name)

        @wraps(method)
        async def watched(this: Any, *given: Any) -> Any:
            self.reached.add(f"{owner.__name__}.{name}")
            if not self._is_admitted(this):
                self.outside.add(f"{owner.__name__}.{name}")
            token = self._holder.set(this) if not is_guarded(this) else None
            try:
                return await method(this, *given)
            finally:
                if token is not None:
                    self._holder.reset(token)

        return watched

    def _is_admitted(self, this: Any) -> bool:
        """Whether the gate admitted this object, its source, or an object that holds this one and passes its call on.

        An object around a guarded tool needs no admission: its call comes to the gate next.
        """
        holder = self._holder.get()
        return holder is this or holder == getattr(this, "id", this) or any(this is part for part in _parts(holder)) or is_guarded(this)


def _parts(holder: object) -> list[object]:
    """What an object holds, with the objects of the methods among it."""
    slots = [getattr(holder, name, None) for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
    held = [*getattr(holder, "__dict__", {}).values(), *slots]
    return [*held, *(getattr(part, "__self__", None) for part in held)]


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
max-turns: 60
---
Keep them.
"""
FLOW = """name: flow
description: Runs a function.
input: {}
executors:
  one: {python: "work:step"}
start: one
output: one
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
    face = SkillFace(catalog)
    page = await face.list_page(None, ctx)
    for entry in cast("list[Any]", page["skills"]):
        await quietly(face.get(entry["uri"], ctx))
        await quietly(face.directory(entry["uri"].removesuffix("/SKILL.md"), None, ctx))


async def use_agent(gateway: Gateway, model: ScriptedServer, url: str) -> None:
    """Have the agent's model call every tool that it is offered; then run the agent over AG-UI."""
    [clerk] = await gateway.catalog.tools(["agent/clerk"])
    await model.play({"text": "done"})
    await clerk.call({"task": "Go."}, approving())
    offered = (await model.requests())[0]["body"]["tools"]
    calls = [{"name": each["function"]["name"], "arguments": arguments_for(each["function"]["parameters"])} for each in offered]
    await model.play({"when": {"last_role": "user"}, "tool_calls": calls}, {"text": "done"})
    await quietly(clerk.call({"task": "Go."}, approving()))
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
    ways = {f"{owner.__name__}.{name}" for owner, name in implementations()}
    missed, elsewhere = ways - watched.reached, set(ELSEWHERE)
    assert (missed - elsewhere, elsewhere - missed) == (set(), set())


def test_every_expression_that_calls_a_tool_or_a_source_is_known() -> None:
    found: set[str] = set()
    for path in python_files("gateway"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _calls_a_way(node, node.func):
                found.add(f"{name_of(path)} {ast.unparse(node.func)}")
    assert {site for site in found if not site.startswith("gateway/gate/")} == CALLERS.keys()


def _calls_a_way(call: ast.Call, function: ast.Attribute) -> bool:
    """Whether a call has the name and the number of arguments of one of `METHODS`; `read` and `watch` are also names of other methods."""
    method = METHODS.get(function.attr)
    if method is None or len(call.args) + len(call.keywords) != len(method):
        return False
    return function.attr not in ("read", "watch") or "source" in ast.unparse(function) or "catalog" in ast.unparse(function)


SOURCE_MODULES = ("source.py", "base.py", "gateway_source.py")


def test_every_method_of_a_source_with_a_context_is_known() -> None:
    found: set[str] = set()
    for path in python_files("gateway"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Source") and path.name in SOURCE_MODULES:
                methods = [item for item in node.body if isinstance(item, ast.AsyncFunctionDef)]
                found |= {f"{node.name}.{method.name}" for method in methods if _takes_context(method)}
    assert {name for name in found if name.partition(".")[2] not in METHODS} == CONTEXT_METHODS.keys()


def _takes_context(node: ast.AsyncFunctionDef) -> bool:
    annotations = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs) if argument.annotation is not None]
    return not node.name.startswith("_") and any("CallContext" in ast.unparse(annotation) for annotation in annotations)


def test_every_module_that_imports_named_objects_is_known() -> None:
    found = {name_of(path) for path in python_files("gateway") if {"import_object", "import_from"} & called_names(parsed(path))}
    assert found == IMPORTERS.keys()


def test_stored_text_of_a_memory_is_added_to_prompts_in_known_places() -> None:
    memories = [path for path in python_files("gateway") if path.name.startswith("memory_")]
    assert {name_of(path) for path in memories if "extend_messages" in called_names(parsed(path))} == UNJUDGED_CONTEXT.keys()


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

    def noted(rules: FunctionRules, source: str, reference: str, found: object = None) -> Any:
        judged.add(reference)
        return admit(rules, source, reference, found)

    monkeypatch.setattr(FunctionRules, "admit", noted)
    with served(tmp_path, monkeypatch) as (inside, _):
        recorded = cast("RecordedEvents", inside._gateway.events).recent()
        events = [(event.source, event.name) for event in recorded if event.kind == "call.audited"]
    assert imported == judged == {"work:todo", "work:around", "work:step", "work:join", "work:make"}
    assert set(events) == {("agent/clerk", "todo"), ("agent/clerk", "around"), ("workflow/made", "make")}


def patch_import(patch: pytest.MonkeyPatch, module: str, imported: set[str]) -> None:
    """Note what a module imports."""
    real = importlib.import_module(module).import_object

    async def noting(reference: str, **options: Any) -> object:
        imported.add(reference)
        return await real(reference, **options)

    patch.setattr(f"{module}.import_object", noting)
