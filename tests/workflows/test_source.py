"""`WorkflowSource` over real folders."""

from __future__ import annotations

from pathlib import Path

from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from gateway.workflows.source import WorkflowSource
from tests.workflows.scripted import ScriptedToolBox


def say(text: str) -> str:
    return text


BOX = ScriptedToolBox(s__say=say)

GOOD = "name: NAME\ndescription: d\nexecutors: {only: {tool: s/say, arguments: {text: NAME}}}\nstart: only\n"
CALLS = "name: NAME\ndescription: d\nexecutors: {only: {tool: workflow/OTHER}}\nstart: only\n"


async def load(folder: Path, *paths: str) -> tuple[list[str], list[str]]:
    async with WorkflowSource(paths or ["agents"], toolbox=BOX, base_dir=folder) as source:
        assert source.id == "workflow"
        tools = await source.tools()
        for tool in tools:
            if tool.definition.name.startswith("run"):
                outcome = await tool.call({}, CallContext())
                assert isinstance(outcome, Complete)
                assert outcome.as_text() == tool.definition.name
        return [tool.definition.name for tool in tools], [str(problem).replace(f"{folder}/", "") for problem in source.problems]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / "agents" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


async def test_workflow_files_load_in_name_order_and_others_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, "b.workflow.yaml", GOOD.replace("NAME", "run-b"))
    write(tmp_path, "a.workflow.yml", GOOD.replace("NAME", "run-a"))
    write(tmp_path, "x.agent.md", "---\nname: x\n---\n")
    write(tmp_path, "notes.yaml", "{")
    (tmp_path / "agents" / "deeper.workflow.yaml").mkdir()
    assert await load(tmp_path) == (["run-a", "run-b"], [])


async def test_broken_file_is_reported_with_its_line_and_others_load(tmp_path: Path) -> None:
    write(tmp_path, "bad.workflow.yaml", GOOD.replace("NAME", "bad").replace("start", "strat"))
    write(tmp_path, "code.workflow.yaml", "name: code\ndescription: d\npython: ws_missing:flow\n")
    write(tmp_path, "good.workflow.yaml", GOOD.replace("NAME", "run"))
    names, problems = await load(tmp_path)
    assert names == ["run"]
    assert problems[0] == "agents/bad.workflow.yaml:4: strat: unknown key 'strat'. Did you mean 'start'?"
    assert problems[1].startswith("agents/code.workflow.yaml: python: No module 'ws_missing'")


async def test_team_with_a_missing_function_is_reported(tmp_path: Path) -> None:
    team = "name: team\ndescription: d\ninput: {}\nprompt: Go.\nconcurrent: {participants: [clerk], aggregator: 'ws_missing:join'}\n"
    write(tmp_path, "good.workflow.yaml", GOOD.replace("NAME", "run"))
    write(tmp_path, "team.workflow.yaml", team)
    names, [problem] = await load(tmp_path)
    assert (names, "No module 'ws_missing'" in problem) == (["run"], True)


async def test_single_file_may_be_named_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "a.workflow.yaml", GOOD.replace("NAME", "run"))
    names, problems = await load(tmp_path, "agents/a.workflow.yaml", "agents", "agents/no.workflow.yaml", "nowhere")
    assert names == ["run"]
    assert problems == ["agents/no.workflow.yaml: cannot be read: No such file or directory."]


async def test_duplicate_workflow_name_is_reported_with_both_files(tmp_path: Path) -> None:
    write(tmp_path, "a.workflow.yaml", GOOD.replace("NAME", "run"))
    write(tmp_path, "b.workflow.yaml", GOOD.replace("NAME", "run"))
    names, problems = await load(tmp_path)
    assert names == ["run"]
    assert problems == ["agents/b.workflow.yaml: workflow 'run' is already defined in agents/a.workflow.yaml; rename one."]


async def test_workflows_that_call_each_other_in_a_circle_are_left_out(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one"), ("self", "self"), ("outer", "run")):
        write(tmp_path, f"{name}.workflow.yaml", CALLS.replace("NAME", name).replace("OTHER", other))
    write(tmp_path, "z.workflow.yaml", GOOD.replace("NAME", "run"))
    names, problems = await load(tmp_path)
    assert names == ["outer", "run"]
    assert len(problems) == 3
    assert "calls itself through" in problems[0]
