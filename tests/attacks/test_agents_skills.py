"""Attack 19, skills in an agent's run: the model gets those of the agent's file, and of all others those that the caller may read."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.attacks.test_named import result_of
from tests.attacks.test_named_skills import CODE
from tests.fakes.inside import raw_inside
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http
from tests.interaction.test_skill_servers import entry, manifest, reads
from tests.interaction.wire import Era, over_http
from tests.skills.on_disk import write_skill

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
FAR = {"SKILL.md": manifest("far"), "a.md": "inside far"}
AGENT = "---\nname: {name}\ndescription: Follows instructions.\nmodel: openai-chat:{model}\n{more}---\nDo.\n"
AGENTS = {
    "sk": ("scripted", "skills: [open]\n"),
    "free": ("scripted", "tools: [skill/*, gateway/list_tools]\n"),
    "boss": ("boss", "tools: [agent/sk, workflow/given]\nskills: [shut]\n"),
    "idle": ("idle", "tools: [agent/sk, workflow/given]\n"),
}
FLOW = """\
name: {name}
description: Does one step.
input: {{name: {{type: string, default: ""}}}}
executors:
  one: {step}
  two: {{tool: skill/load_skill, arguments: {{skill_name: open}}}}
start: one
edges: [{{from: one, to: two}}]
output: one
"""
FLOWS = {
    "given": '{tool: skill/load_skill, arguments: {skill_name: "{{name}}"}}',
    "bare": '{tool: agent/free, arguments: {task: "{{name}}"}}',
    "led": '{tool: agent/idle, arguments: {task: "{{name}}"}}',
}
TEAM = "name: crew\ndescription: A team.\nsequential: {participants: [agent/idle]}\n"
KEYS: dict[str, tuple[str, ...] | None] = {
    "agents": ("agent", "workflow"),
    "shut": ("agent", "workflow", "resources:skill/skill://shut/*"),
    "far": ("agent", "workflow", "resources:docs/skill://far/*"),
    "all": None,
}


@dataclass(frozen=True)
class Deployment:
    url: str
    keys: dict[str, str]
    model: ScriptedServer
    ran: Path

    async def plays(self, tool: str, arguments: dict[str, Any], *, by: str = "scripted") -> None:
        """Script the models: call `tool` once and return its result. With `by`, the model of that agent calls `agent/sk`."""
        turns: list[dict[str, Any]] = []
        if by != "scripted":
            turns.append({"when": {"model": by, "last_role": "user"}, "tool_calls": [{"name": "agent__sk", "arguments": {"task": "go"}}]})
        turns.append({"when": {"last_role": "user"}, "tool_calls": [{"name": tool, "arguments": arguments}]})
        await self.model.play(*turns, {"text": "{last_tool}", "repeat": True})

    async def run(self, key: str, tool: str, era: Era = "modern", **arguments: str) -> str:
        """Call a tool, and return all requests to the models and the response to the caller, as text."""
        async with over_http(self.url, era, token=self.keys[key], tasks=False) as wire:
            answer = await wire.send("tools/call", name=tool, arguments=dict(arguments))
        assert not answer["result"].get("isError"), answer
        return str(await self.model.requests()) + str(answer)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("agents-skills")
    for name in ("open", "shut"):
        write_skill(folder / "skills" / name, files={"a.md": f"inside {name}"}, body=f"Steps of {name}.")
    (folder / "agents_skills_code.py").write_text(CODE.format(ran=str(folder / "ran")))
    for name, (model, more) in AGENTS.items():
        (folder / f"{name}.agent.md").write_text(AGENT.format(name=name, model=model, more=more))
    for name, step in FLOWS.items():
        (folder / f"{name}.workflow.yaml").write_text(FLOW.format(name=name, step=step))
    (folder / "crew.workflow.yaml").write_text(TEAM)
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in KEYS.items()}
    published = {f"skill://far/{path}": text for path, text in FAR.items()}
    with ExitStack() as stack:
        model = stack.enter_context(openai_server())
        docs = stack.enter_context(raw_inside({"skills": [entry("far", FAR)], "reads": reads(published)}))
        config: dict[str, Any] = {
            "mcpServers": {"docs": {"type": "http", "url": docs}},
            "policies": {"docs": {"disclosure": "on-demand"}, "skill": {"disclosure": "on-demand"}},
            "expose": {"agents": ["."], "skills": ["skills"]},
            "skills": {"objects": ["agents_skills_code"], "scripts": {"approval": "never"}},
        }
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        yield Deployment(stack.enter_context(gateway_http(folder, config, env=env)), keys, model, folder / "ran")


MARKS = {"open": "Steps of open", "shut": "Steps of shut", "far": "Body of far"}


def may(key: str, skill: str) -> bool:
    return skill == "open" or key in (skill, "all")


@pytest.mark.parametrize(("key", "era"), [("agents", "legacy"), ("agents", "modern"), ("shut", "modern"), ("far", "legacy")])
async def test_model_loads_skills_of_its_file_and_of_the_caller(deployment: Deployment, key: str, era: Era) -> None:
    for skill, given in (("open", "skill://open"), ("shut", "skill://Shut"), ("far", "far")):
        await deployment.plays("load_skill", {"skill_name": given})
        seen = await deployment.run(key, "agent__sk", era, task="go")
        assert (MARKS[skill] in seen) == may(key, skill), (given, seen)
        assert may(key, skill) or "no scope for resource" in seen, seen


async def test_model_reads_files_and_runs_scripts_with_callers_scopes(deployment: Deployment) -> None:
    for key in ("agents", "shut"):
        await deployment.plays("read_skill_resource", {"skill_name": "shut", "resource_name": "a.md"})
        assert ("inside shut" in await deployment.run(key, "agent__sk", task="go")) == (key == "shut")
    for key in ("agents", "all"):
        await deployment.plays("run_skill_script", {"skill_name": "coded", "script_name": "count"})
        await deployment.run(key, "agent__free", task="go")
        assert deployment.ran.exists() == (key == "all")


@pytest.mark.parametrize("key", ["agents", "shut", "all"])
async def test_catalog_and_search_show_skills_of_file_and_caller(deployment: Deployment, key: str) -> None:
    """An agent whose file names skills has only these in its catalogue."""
    for agent, named in (("sk", {"open"}), ("free", set[str]())):
        await deployment.plays("search_skills", {})
        await deployment.run(key, f"agent__{agent}", task="go")
        asked = [request["body"] for request in await deployment.model.requests()]
        [load] = [tool["function"]["description"] for tool in asked[0]["tools"] if tool["function"]["name"] == "load_skill"]
        readable = {skill for skill in MARKS if key in (skill, "all")}
        assert {skill for skill in MARKS if f"{skill}:" in load} == (named or readable), load
        [told] = [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]
        assert {skill for skill in MARKS if f"- {skill}:" in told} == named | readable, told


async def test_model_is_listed_tools_of_the_caller(deployment: Deployment) -> None:
    for key in ("agents", "all"):
        await deployment.plays("list_tools", {})
        await deployment.run(key, "agent__free", task="go")
        [told] = [m["content"] for m in (await deployment.model.requests())[-1]["body"]["messages"] if m["role"] == "tool"]
        assert ("load_skill" in told) == (key == "all"), told


@pytest.mark.parametrize(
    ("key", "tool", "loads"), [("agents", "boss", False), ("agents", "idle", False), ("shut", "idle", True), ("agents", "led", False)]
)
async def test_agent_called_by_an_agent_has_the_outer_callers_scopes(deployment: Deployment, key: str, tool: str, loads: bool) -> None:
    """The file of `boss` names `shut`; the file of `sk`, which it calls, does not."""
    await deployment.plays("load_skill", {"skill_name": "shut"}, by="idle" if tool == "led" else tool)
    name, argument = ("workflow__led", "name") if tool == "led" else (f"agent__{tool}", "task")
    seen = await deployment.run(key, name, "modern", **{argument: "go"})
    assert len(await deployment.model.requests()) == 4 and (MARKS["shut"] in seen) == loads


async def test_workflow_called_by_an_agent_loads_the_agents_skills(deployment: Deployment) -> None:
    for tool, skill, loads in (("boss", "shut", True), ("boss", "far", False), ("idle", "shut", False)):
        await deployment.plays("workflow__given", {"name": skill})
        seen = await deployment.run("agents", f"agent__{tool}", task="go")
        assert (MARKS[skill] in seen) == loads, seen


@pytest.mark.parametrize(("key", "era"), [("agents", "legacy"), ("agents", "modern"), ("shut", "modern")])
async def test_task_of_a_team_loads_with_callers_scopes(deployment: Deployment, key: str, era: Era) -> None:
    """The members are run in a background task, in a workflow without constants."""
    await deployment.plays("load_skill", {"skill_name": "shut"}, by="idle")
    async with over_http(deployment.url, era, token=deployment.keys[key]) as wire:
        result = await result_of(wire, "workflow__crew", {"message": "go"}, as_task=True)
    asked = await deployment.model.requests()
    assert len(asked) == 4 and (MARKS["shut"] in str(asked) + str(result)) == (key == "shut"), result


async def test_constant_of_a_workflow_is_not_for_the_models_in_it(deployment: Deployment) -> None:
    """The second step of the workflow loads `open`; the agent of the first step names no skill."""
    await deployment.plays("load_skill", {"skill_name": "open"})
    assert MARKS["open"] not in await deployment.run("agents", "workflow__bare", name="go")


async def test_agui_run_loads_with_callers_scopes(deployment: Deployment) -> None:
    for key in ("agents", "shut"):
        await deployment.plays("load_skill", {"skill_name": "shut"})
        message = {"id": "m", "role": "user", "content": "go"}
        run: dict[str, Any] = {
            "threadId": "t",
            "runId": "r",
            "messages": [message],
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {},
        }
        headers = {"Authorization": f"Bearer {deployment.keys[key]}", "Accept": "text/event-stream"}
        async with httpx2.AsyncClient() as http:
            answer = await http.post(deployment.url.removesuffix("/mcp") + "/agui/sk", headers=headers, content=json.dumps(run))
        assert answer.status_code == 200, answer.text
        asked = await deployment.model.requests()
        assert len(asked) == 2 and (MARKS["shut"] in str(asked) + answer.text) == (key == "shut")
