"""The bundled workflow files, run: with the bundled skills, and with scripted agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from gateway.skills.source import SkillSource
from gateway.tools.base import Complete, Tool
from gateway.tools.context import CallContext
from gateway.workflows.source import WorkflowSource
from tests.workflows.scripted import ScriptedToolBox, guard

ROOT = Path(__file__).parents[2]


class SkillBox:
    """The tools of the bundled skills behind their gates."""

    def __init__(self, source: SkillSource) -> None:
        self._source = source

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return [guard(tool, source="skill") for tool in await self._source.tools() if f"skill/{tool.definition.name}" in patterns]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return ()


async def find(source: WorkflowSource, name: str) -> Tool:
    return guard({tool.definition.name: tool for tool in await source.tools()}[name])


async def test_every_bundled_workflow_loads() -> None:
    async with WorkflowSource([ROOT / "agents"], toolbox=ScriptedToolBox(), base_dir=ROOT / "config") as source:
        assert source.problems == []
        assert [tool.definition.name for tool in await source.tools()] == ["brief", "skill-for-task"]


async def test_skill_for_task_loads_a_bundled_skill_without_a_model() -> None:
    with anyio.fail_after(20):
        async with (
            SkillSource([ROOT / "skills"]) as skills,
            WorkflowSource([ROOT / "agents"], toolbox=SkillBox(skills), base_dir=ROOT / "config") as source,
        ):
            tool = await find(source, "skill-for-task")
            found = await tool.call({"task": "review a SQL migration"}, CallContext())
            missing = await tool.call({"task": "zzxqj"}, CallContext())
    assert isinstance(found, Complete)
    assert not found.is_error
    assert found.structured["name"] == "sql-review"
    assert "# SQL review" in found.structured["body"]
    assert isinstance(missing, Complete)
    assert missing.as_text() == "Executor 'load' failed: {{search.skills.0.skill}} has no value: 'search.skills' is an empty list."


async def test_brief_researches_drafts_and_revises_until_approved() -> None:
    asked: list[str] = []
    verdicts = ['{"approved": false, "notes": "Too long."}', '{"approved": true, "notes": ""}']

    def researcher(task: str) -> str:
        asked.append(task)
        return "Fact: green tea is Camellia sinensis."

    def editor(task: str) -> str:
        asked.append(task)
        return verdicts.pop(0) if task.startswith("Check this brief") else f"Brief {len(asked)}."

    box = ScriptedToolBox(agent__researcher=researcher, agent__editor=editor)
    async with WorkflowSource([ROOT / "agents"], toolbox=box, base_dir=ROOT / "config") as source:
        outcome = await (await find(source, "brief")).call({"topic": "green tea"}, CallContext())
    assert isinstance(outcome, Complete)
    assert outcome.as_text() == "Brief 4."
    assert len(asked) == 5
    assert asked[0].startswith("Collect what matters about this topic: green tea")
    assert "a colleague who is new to it" in asked[1]
    assert asked[1].endswith("Earlier draft:\n\n\nCriticism:\n")
    assert asked[3].endswith("Earlier draft:\nBrief 2.\n\nCriticism:\nToo long.")
