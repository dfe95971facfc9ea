"""Tools that an agent or a workflow brings along itself pass the gate: rules, approvals, limits and the audit log, under its own source."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.architecture.documents import example_of
from tests.attacks.clerks import ask_clerk, audited
from tests.cli.processes import moongate
from tests.interaction.place import Place, place_of
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.attack(38), pytest.mark.timeout(90)]

CLERK = """---
name: clerk
description: Keeps files.
model: openai-chat:scripted
files: {root: ../data, access: delete}
context-providers: [work:provider]
history: none
task: never
---
Keep them.
"""

WORK = '''
import functools
from pathlib import Path

from gateway import ContextProvider, FunctionTool, tool

RAN = Path(__file__).parent / "ran.txt"


def note(name):
    with RAN.open("a") as file:
        file.write(name + "\\n")
    return name


def danger(text: str = "") -> str:
    """Dangerous."""
    return note("danger")


harmless = danger
partly = functools.partial(danger)


@functools.wraps(danger)
def wrapper(text: str = "") -> str:
    return danger(text)


def hidden(text: str = "") -> str:
    """Served as `risky`."""
    return note("hidden")


risky = tool(name="risky")(hidden)


@tool(approval_mode="always_require")
def sensitive(text: str = "") -> str:
    """Its author wants an approval."""
    return note("sensitive")


def calm(text: str = "") -> str:
    """Harmless."""
    return note("calm")


def fails(text: str = "") -> str:
    """Raises."""
    raise RuntimeError("the reason")


def added(text: str = "") -> str:
    """A tool that another tool adds to the run."""
    return note("added")


def unseen(text: str = "") -> str:
    """A tool that the model is not told of."""
    return note("unseen")


def adder(context: "FunctionInvocationContext") -> str:
    """Add a tool to the run."""
    context.add_tools(FunctionTool(added))
    return "added"


from gateway import FunctionInvocationContext  # noqa: E402
from gateway.chat.loop_options import loop_options  # noqa: E402


class Provider(ContextProvider):
    async def before_run(self, *, agent, session, context, state):
        context.extend_tools("work", [FunctionTool(calm), sensitive, FunctionTool(adder), FunctionTool(fails)])
        limits = loop_options(agent.function_invocation_configuration)
        agent.function_invocation_configuration = limits.with_overrides({"additional_tools": [unseen]})


def provider():
    return Provider("work")
'''

FLOW = """name: flow
description: Runs a function.
input: {}
executors:
  one: {python: "work:%s", arguments: {text: t}}
start: one
output: one
task: never
"""


@contextmanager
def place(folder: Path, policies: dict[str, Any], *, function: str = "calm", files: dict[str, str] | None = None) -> Generator[Place]:
    own = folder / "own"
    own.mkdir(parents=True)
    (own / "clerk.agent.md").write_text(CLERK)
    (own / "flow.workflow.yaml").write_text(FLOW % function)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    (folder / "work.py").write_text(WORK)
    (folder / "data").mkdir()
    (folder / "data" / "kept.txt").write_text("kept")
    with place_of(folder, {"expose": {"agents": ["own"]}, "policies": policies}) as made:
        yield made


def ran(place: Place) -> list[str]:
    """The names of the functions that ran."""
    noted = place.path.parent / "ran.txt"
    return noted.read_text().split() if noted.exists() else []


def data(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in (place.path.parent / "data").iterdir()}


async def run_flow(place: Place) -> dict[str, Any]:
    async with over_http(place.url, "modern", tasks=False, capabilities={}) as wire:
        return (await wire.send("tools/call", name="workflow__flow", arguments={}))["result"]


SAVE = ("file_access_save_file", {"file_name": "new.txt", "content": "new"})
DELETE = ("file_access_delete_file", {"file_name": "kept.txt"})
READ = ("file_access_read_file", {"file_name": "kept.txt"})


async def test_own_tools_without_rules_run_and_side_effects_are_audited(tmp_path: Path) -> None:
    with place(tmp_path, {}) as made:
        said = await ask_clerk(made, SAVE, READ, DELETE, ("calm", {}))
        assert said == ["File 'new.txt' saved.", "kept", "File 'kept.txt' deleted.", "calm"]
        assert (data(made), ran(made)) == ({"new.txt": "new"}, ["calm"])
        flow = await run_flow(made)
        assert (flow["content"][0]["text"], ran(made)) == ("calm", ["calm", "calm"])
        assert await audited(made, 5) == [
            ("call.audited", "agent/clerk", "provider"),
            ("call.audited", "agent/clerk", "file_access_save_file"),
            ("call.audited", "agent/clerk", "file_access_delete_file"),
            ("call.audited", "agent/clerk", "calm"),
            ("call.audited", "workflow/flow", "calm"),
        ]


async def test_denied_own_tool_is_not_offered_and_does_not_run(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": {"tools": {"deny": ["file_access_save_file", "calm"]}}}) as made:
        said = await ask_clerk(made, SAVE, ("calm", {}), READ)
        assert said[0].startswith("Error: Requested function") and said[1].startswith("Error: Requested function") and said[2] == "kept"
        offered = {item["function"]["name"] for item in (await made.model.requests())[0]["body"]["tools"]}
        assert "file_access_read_file" in offered and not offered & {"file_access_save_file", "calm"}
        assert (data(made), ran(made)) == ({"kept.txt": "kept"}, [])


SWAP = """
from gateway import FunctionTool, function_middleware
from work import unseen


@function_middleware
async def swap(context, call_next):
    context.function = FunctionTool(unseen)
    await call_next()
"""


async def test_hidden_tool_that_middleware_calls_is_refused_and_audited(tmp_path: Path) -> None:
    files = {"own/clerk.agent.md": CLERK.replace("history: none", "middleware: [swapping:swap]\nhistory: none"), "swapping.py": SWAP}
    with place(tmp_path, {"agent/clerk": {"tools": {"deny": ["unseen"]}}}, files=files) as made:
        assert ("does not allow 'unseen'" in (await ask_clerk(made, ("calm", {})))[0], ran(made)) == (True, [])
        assert ("call.refused", "agent/clerk", "unseen") in await audited(made, 3)


async def test_argument_rule_holds_for_own_tools(tmp_path: Path) -> None:
    rules = {"file_access_save_file": {"file_name": {"pattern": "^notes-[a-z]+\\.txt$"}}}
    with place(tmp_path, {"agent/clerk": {"arguments": rules}}) as made:
        allowed = ("file_access_save_file", {"file_name": "notes-a.txt", "content": "a"})
        refused, saved = await ask_clerk(made, SAVE, allowed)
        assert refused.startswith("Refused by arguments.file_access_save_file.file_name") and "saved" in saved
        assert set(data(made)) == {"kept.txt", "notes-a.txt"}
        assert ("call.refused", "agent/clerk", "file_access_save_file") in await audited(made)


async def test_example_of_the_documentation_confines_every_file_tool(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": example_of("configuration.md", "agent/clerk")}) as made:
        (tmp_path / "data" / "secret-name.txt").write_text("SECRET-CONTENT")
        (tmp_path / "data" / "secret-name").mkdir()
        (tmp_path / "data" / "notes" / "inner").mkdir(parents=True)
        (tmp_path / "data" / "notes" / "mine.txt").write_text("my own")
        files, folders, reads = "file_access_list_files", "file_access_list_subdirectories", "file_access_read_file"
        said = await ask_clerk(
            made,
            (files, {}),
            (files, {"directory": None}),
            ("file_access_search_files", {"regex_pattern": "SECRET"}),
            (folders, {}),  # three failed calls in a row would end the run
            (folders, {"directory": None}),
            (folders, {"directory": "."}),
            (reads, {"file_name": "notes/mine.txt"}),
            (reads, {"file_name": "secret-name.txt"}),
        )
        assert ("mine.txt" in said[0], "inner" in said[3], said[6]) == (True, True, "my own")
        assert [text.startswith("Refused by arguments.*") for text in (said[1], said[4], said[5], said[7])] == [True] * 4
        assert "secret-name" not in str(said) and "SECRET-CONTENT" not in str(said)


@pytest.mark.parametrize("decision", ["approve", "decline"])
async def test_own_tool_waits_for_the_approval_that_a_rule_demands(tmp_path: Path, decision: str) -> None:
    with place(tmp_path, {"agent/clerk": {"approval": {"always": ["file_access_delete_file"]}}}) as made:
        [said] = await ask_clerk(made, DELETE, decision=decision)
        assert (data(made) == {}) == (decision == "approve")
        assert ("deleted" in said) == (decision == "approve")


async def test_approval_required_by_a_tools_author_is_enforced_by_the_gate(tmp_path: Path) -> None:
    with place(tmp_path, {}) as made:
        said = await ask_clerk(made, ("sensitive", {}), decision="decline")
        assert "did not approve" in said[0] and ran(made) == []
        assert await ask_clerk(made, ("sensitive", {}), decision="approve") == ["sensitive"]
        assert ran(made) == ["sensitive"]


async def test_tool_that_is_added_while_the_agent_runs_passes_the_gate(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": {"tools": {"deny": ["added", "unseen"]}}}) as made:
        said = await ask_clerk(made, ("adder", {}), ("added", {}), ("unseen", {}))
        assert said[0] == "added" and ran(made) == []
        assert all(text.startswith("Error: Requested function") for text in said[1:])
    with place(tmp_path / "open", {}) as made:
        assert await ask_clerk(made, ("adder", {}), ("added", {}), ("unseen", {})) == ["added", "added", "unseen"]
        assert ran(made) == ["added", "unseen"] and ("call.audited", "agent/clerk", "unseen") in await audited(made, 3)
        offered = {item["function"]["name"] for item in (await made.model.requests())[-1]["body"]["tools"]}
        assert "added" in offered and "unseen" not in offered


async def test_own_tool_keeps_its_errors_and_lax_arguments(tmp_path: Path) -> None:
    with place(tmp_path, {}) as made:
        lax = ("file_access_save_file", {"file_name": "kept.txt", "content": "new", "overwrite": "true"})
        failed, saved = await ask_clerk(made, ("fails", {}), lax)
        assert failed == "Error: Function failed." and saved == "File 'kept.txt' saved."


async def test_limits_hold_for_own_tools_where_they_are_written(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": {"maxResultBytes": 1024}}) as made:
        (made.path.parent / "data" / "kept.txt").write_text("x" * 50_000)
        [said] = await ask_clerk(made, READ)
        assert len(said) < 5_000 and "read_result" in said


@pytest.mark.parametrize("function", ["danger", "harmless", "partly", "wrapper"])
async def test_function_that_is_denied_runs_under_no_name(tmp_path: Path, function: str) -> None:
    with place(tmp_path, {"function": {"tools": {"deny": ["danger"]}}}, function=function) as made:
        assert (await call(made, "workflow__flow"))["error"]["code"] == -32602
        doctor = moongate("doctor", "--json", "--config", str(made.path), cwd=made.path.parent)
        assert "executors.one.python" in doctor.out and "tools.deny" in doctor.out and "danger" in doctor.out
    assert ran(made) == []


async def test_renamed_function_is_denied_by_its_served_name(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "flow.workflow.yaml").write_text(FLOW % "hidden")
    (tmp_path / "work.py").write_text(WORK)
    config = {"expose": {"agents": ["own"], "functions": ["work"]}, "policies": {"function": {"tools": {"deny": ["risky"]}}}}
    with place_of(tmp_path, config) as made:
        assert (await call(made, "workflow__flow"))["error"]["code"] == -32602
    assert ran(made) == []


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ({"workflow/flow": {"tools": {"deny": ["calm"]}}}, "tools.deny"),
        ({"function": {"tools": {"allow": ["other"]}}}, "tools.allow"),
        ({"workflow/flow": {"tools": {"allow": ["other"]}}}, "tools.allow"),
        ({"function": {"overrides": {"calm": {"enabled": False}}}}, "overrides.calm.enabled"),
    ],
)
async def test_workflow_is_not_served_if_a_function_of_it_may_not_run(tmp_path: Path, policies: dict[str, Any], text: str) -> None:
    with place(tmp_path, policies) as made:
        assert (await call(made, "workflow__flow"))["error"]["code"] == -32602
        doctor = moongate("doctor", "--json", "--config", str(made.path), cwd=made.path.parent)
        assert f"may not run: `policies[{next(iter(policies))!r}].{text}`" in doctor.out.replace('\\"', '"')
    assert ran(made) == []


AGENT_CODE = """
from gateway import agent_middleware
from work import note

note("imported")


@agent_middleware
async def around(context, call_next):
    await call_next()


def extra():
    note("made")
    from work import provider
    return provider()
"""
WITH_CODE = CLERK.replace("[work:provider]", "[code_of_clerk:extra]\nmiddleware: [code_of_clerk:around]")


@contextmanager
def clerk_with_code(folder: Path, policies: dict[str, Any]) -> Generator[Place]:
    files = {"code_of_clerk.py": AGENT_CODE, "own/clerk.agent.md": WITH_CODE}
    with place(folder, policies, files=files) as made:
        yield made


async def test_code_of_an_agent_file_is_audited_when_it_loads(tmp_path: Path) -> None:
    with clerk_with_code(tmp_path, {}) as made:
        entries = await audited(made, 2)
        assert ("call.audited", "agent/clerk", "around") in entries and ("call.audited", "agent/clerk", "extra") in entries
        assert ran(made) == ["imported", "made"]


@pytest.mark.parametrize("source", ["function", "agent/clerk"])
async def test_denied_code_of_an_agent_file_is_neither_imported_nor_run(tmp_path: Path, source: str) -> None:
    with clerk_with_code(tmp_path, {source: {"tools": {"deny": ["around", "extra"]}}}) as made:
        entries = await audited(made, 2)
        assert ("call.refused", "agent/clerk", "around") in entries and ("call.refused", "agent/clerk", "extra") in entries
        assert ran(made) == []
        doctor = moongate("doctor", "--json", "--config", str(made.path), cwd=made.path.parent).out.replace('\\"', '"')
        for key, name in (("middleware", "around"), ("context-providers", "extra")):
            refusal = f"may not run: `policies[{source!r}].tools.deny` denies the function {name!r}."
            assert f"{key}: 'code_of_clerk:{name}' {refusal} Change the rule, or remove the reference." in doctor


CODE = """
from gateway import WorkflowBuilder, WorkflowContext, executor
from gateway.workflows.functional import workflow
from work import note

note("imported")


@executor(id="one")
async def one(text: str, ctx: WorkflowContext[None, str]) -> None:
    note("one")
    await ctx.yield_output(text)


graph = WorkflowBuilder(start_executor=one, output_from=[one]).build()


@workflow
async def steps(text: str) -> str:
    note("steps")
    return text


def make():
    note("make")
    return graph
"""
CODED = "name: coded\ndescription: Runs code.\npython: code_of_flow:%s\ninput: {text: {type: string}}\ntask: never\n"


@contextmanager
def coded(folder: Path, name: str, policies: dict[str, Any]) -> Generator[Place]:
    with place(folder, policies, files={"code_of_flow.py": CODE, "own/coded.workflow.yaml": CODED % name}) as made:
        yield made


async def test_factory_of_a_workflow_is_audited_when_it_runs_at_load(tmp_path: Path) -> None:
    with coded(tmp_path, "make", {}) as made:
        assert ("call.audited", "workflow/coded", "make") in await audited(made)
        assert ran(made) == ["imported", "make"]


@pytest.mark.parametrize("source", ["function", "workflow/coded"])
async def test_denied_factory_of_a_workflow_is_neither_imported_nor_run(tmp_path: Path, source: str) -> None:
    with coded(tmp_path, "make", {source: {"tools": {"deny": ["make"]}}}) as made:
        assert ("call.refused", "workflow/coded", "make") in await audited(made)
        assert ran(made) == []
        doctor = moongate("doctor", "--json", "--config", str(made.path), cwd=made.path.parent).out.replace('\\"', '"')
        refusal = f"python: code_of_flow:make may not run: `policies[{source!r}].tools.deny` denies the function 'make'."
        assert "coded.workflow.yaml" in doctor and refusal in doctor


async def test_module_of_a_denied_function_is_not_imported(tmp_path: Path) -> None:
    flow = FLOW.replace("name: flow", "name: other") % "first"
    files = {"noisy.py": "from work import note\nnote('imported')\n", "own/other.workflow.yaml": flow.replace("work:", "noisy:")}
    with place(tmp_path, {"function": {"tools": {"deny": ["first"]}}}, files=files) as made:
        assert ("call.refused", "workflow/other", "first") in await audited(made)
        assert ran(made) == []


@pytest.mark.parametrize("name", ["graph", "steps", "make"])
async def test_workflow_in_code_passes_the_gate_at_each_call(tmp_path: Path, name: str) -> None:
    with coded(tmp_path, name, {}) as made:
        before = (await audited(made)).count(("call.audited", "workflow/coded", name))
        async with over_http(made.url, "modern", tasks=False, capabilities={}) as wire:
            result = (await wire.send("tools/call", name="workflow__coded", arguments={"text": "t"}))["result"]
        assert not result.get("isError"), result
        with anyio.fail_after(20):
            while (await audited(made)).count(("call.audited", "workflow/coded", name)) == before:
                await anyio.sleep(0.05)


@pytest.mark.parametrize("name", ["graph", "steps"])
async def test_named_workflow_waits_for_approval_of_each_call(tmp_path: Path, name: str) -> None:
    with coded(tmp_path, name, {"workflow/coded": {"approval": {"always": [name]}}}) as made:
        request: dict[str, Any] = {"name": "workflow__coded", "arguments": {"text": "t"}}
        async with over_http(made.url, "modern", tasks=False) as wire:
            asked = (await wire.send("tools/call", **request))["result"]
            assert asked["resultType"] == "input_required", asked
        assert ran(made) == ["imported"]


@pytest.mark.parametrize("source", ["function", "workflow/flow"])
async def test_argument_rules_hold_for_functions_of_workflows(tmp_path: Path, source: str) -> None:
    with place(tmp_path, {source: {"arguments": {"calm": {"text": {"enum": ["other"]}}}}}) as made:
        result = await run_flow(made)
        assert result["isError"] and "Refused by arguments.calm.text" in result["content"][0]["text"]
        assert ran(made) == [] and ("call.refused", source, "calm") in await audited(made)


@pytest.mark.parametrize("source", ["function", "workflow/flow"])
@pytest.mark.parametrize("decision", ["approve", "decline"])
async def test_functions_of_workflows_wait_for_approvals(tmp_path: Path, source: str, decision: str) -> None:
    with place(tmp_path, {source: {"approval": {"always": ["calm"]}}}) as made:
        request: dict[str, Any] = {"name": "workflow__flow", "arguments": {}}
        async with over_http(made.url, "modern", tasks=False) as wire:
            asked = (await wire.send("tools/call", **request))["result"]
            [(key, form)] = asked["inputRequests"].items()
            assert f"'calm' of '{source}'" in form["params"]["message"] and "text: t" in form["params"]["message"]
            assert ran(made) == []
            answers = {key: {"action": "accept", "content": {"decision": decision}}}
            result = (await wire.send("tools/call", **request, requestState=asked["requestState"], inputResponses=answers))["result"]
        assert ran(made) == (["calm"] if decision == "approve" else [])
        assert bool(result.get("isError")) == (decision == "decline")


async def test_function_author_approval_is_required_in_workflows_too(tmp_path: Path) -> None:
    with place(tmp_path, {}, function="sensitive") as made:
        async with over_http(made.url, "modern", tasks=False) as wire:
            asked = (await wire.send("tools/call", name="workflow__flow", arguments={}))["result"]
        assert asked["resultType"] == "input_required" and len(asked["inputRequests"]) == 1 and ran(made) == []


async def call(place: Place, tool: str, token: str = "") -> dict[str, Any]:
    async with over_http(place.url, "modern", tasks=False, token=token) as wire:
        return await wire.send("tools/call", name=tool, arguments={})


@pytest.mark.parametrize(
    ("policies", "key"),
    [
        ({"agent/clerk": {"prefix": "x"}}, "prefix"),
        ({"workflow/flow": {"sampling": {"mode": "ask"}}}, "sampling"),
        ({"agent/clerk": {"overrides": {"calm": {"name": "loud"}}}}, "overrides.calm.name"),
        ({"agents/clerk": {}}, "agents/clerk"),
        ({"agent/": {}}, "agent/"),
    ],
)
def test_rules_without_effect_on_own_tools_are_rejected_by_key(tmp_path: Path, policies: dict[str, Any], key: str) -> None:
    (tmp_path / "gateway.json").write_text(json.dumps({"policies": policies}))
    ended = moongate("list", "--config", str(tmp_path / "gateway.json"), cwd=tmp_path)
    assert ended.code != 0 and key in ended.err
