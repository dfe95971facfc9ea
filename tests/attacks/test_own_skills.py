"""The tools that an agent's `skills` key adds pass two gates: that of `agent/<name>`, and that of the source `skill`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.clerks import ask_clerk, audited
from tests.interaction.place import Place, place_of

pytestmark = [pytest.mark.attack(38), pytest.mark.timeout(90)]

CLERK = """---
name: clerk
description: Uses skills.
model: openai-chat:scripted
skills: [units]
tools: [agent/inner]
history: none
task: never
---
Use them.
"""
INNER = """---
name: inner
description: Has the tools of skills by its list.
model: openai-chat:inner
tools: [skill/*]
history: none
task: never
---
Use them.
"""
WORK = '''
from pathlib import Path

from gateway import InlineSkill, SkillFrontmatter

units = InlineSkill(frontmatter=SkillFrontmatter(name="units", description="Converts units."), instructions="Run `convert`.")


@units.resource
def table() -> str:
    """A table."""
    return "1 km"


@units.script
def convert() -> str:
    """Convert."""
    (Path(__file__).parent / "ran.txt").open("a").write("convert ")
    return "1 km"
'''
LOAD = ("load_skill", {"skill_name": "units"})
READ = ("read_skill_resource", {"skill_name": "units", "resource_name": "table"})
RUN = ("run_skill_script", {"skill_name": "units", "script_name": "convert"})


@contextmanager
def place(folder: Path, policies: dict[str, Any], *, scripts: str = "never") -> Generator[Place]:
    own = folder / "own"
    own.mkdir(parents=True)
    (own / "clerk.agent.md").write_text(CLERK)
    (own / "inner.agent.md").write_text(INNER)
    (folder / "work.py").write_text(WORK)
    skills = {"objects": ["work:units"], "scripts": {"approval": scripts}}
    with place_of(folder, {"expose": {"agents": ["own"]}, "policies": policies, "skills": skills}) as made:
        yield made


def ran(place: Place) -> int:
    """How many times the script ran."""
    noted = place.path.parent / "ran.txt"
    return len(noted.read_text().split()) if noted.exists() else 0


async def test_skill_tools_of_an_agent_run_and_the_script_is_audited(tmp_path: Path) -> None:
    with place(tmp_path, {}) as made:
        loaded, read, converted = await ask_clerk(made, LOAD, READ, RUN)
        assert ("Run `convert`." in loaded, "1 km" in read, "1 km" in converted, ran(made)) == (True, True, True, 1)
        rows = await audited(made, 2)
        assert ("call.audited", "agent/clerk", "run_skill_script") in rows and ("script.finished", "skill", "units") in rows
        assert [row for row in rows if row[2] == "load_skill"] == []


async def test_policy_of_the_agent_hides_skill_tools(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": {"tools": {"deny": ["run_skill_script"]}}}) as made:
        loaded, refused = await ask_clerk(made, LOAD, RUN)
        assert "Run `convert`." in loaded and refused.startswith("Error: Requested function") and ran(made) == 0
        offered = {item["function"]["name"] for item in (await made.model.requests())[0]["body"]["tools"]}
        assert "load_skill" in offered and "run_skill_script" not in offered


async def test_policy_of_the_agent_judges_arguments_of_skill_tools(tmp_path: Path) -> None:
    rules = {"agent/clerk": {"arguments": {"run_skill_script": {"script_name": {"enum": ["other"]}}}}}
    with place(tmp_path, rules) as made:
        [refused] = await ask_clerk(made, RUN)
        assert refused.startswith("Refused by arguments.run_skill_script.script_name") and ran(made) == 0
        assert ("call.refused", "agent/clerk", "run_skill_script") in await audited(made, 1)


@pytest.mark.parametrize("decision", ["approve", "approve_always", "decline"])
async def test_script_waits_for_the_approval_its_agent_policy_requires(tmp_path: Path, decision: str) -> None:
    with place(tmp_path, {"agent/clerk": {"approval": {"always": ["run_skill_script"]}}}) as made:
        said = await ask_clerk(made, RUN, decision=decision)
        assert (ran(made), "1 km" in said[0]) == (int(decision == "approve"), decision == "approve")


@pytest.mark.parametrize("decision", ["approve", "decline"])
async def test_script_needs_one_approval_by_default(tmp_path: Path, decision: str) -> None:
    with place(tmp_path, {}, scripts="always") as made:
        [said] = await ask_clerk(made, RUN, decision=decision)
        assert (ran(made), "1 km" in said) == (int(decision == "approve"), decision == "approve")


async def test_policy_of_the_skills_still_holds_inside_an_agent(tmp_path: Path) -> None:
    denied = {"skill": {"tools": {"deny": ["run_skill_script"]}}, "agent/clerk": {"tools": {"allow": ["*"]}}}
    with place(tmp_path, denied) as made:
        [refused] = await ask_clerk(made, RUN)
        assert refused.startswith("Error: Requested function") and ran(made) == 0


async def test_tool_list_of_another_agent_does_not_extend_the_clerk(tmp_path: Path) -> None:
    with place(tmp_path, {"agent/clerk": {"tools": {"deny": ["*_skill*"]}}}) as made:
        await made.model.play(
            {"when": {"model": "scripted", "last_role": "user"}, "tool_calls": [{"name": "agent__inner", "arguments": {"task": "Go."}}]},
            {"when": {"model": "inner", "last_role": "user"}, "tool_calls": [{"name": "agent/clerk/load_skill", "arguments": LOAD[1]}]},
            {"text": "done", "repeat": True},
        )
        from tests.interaction.wire import over_http

        async with over_http(made.url, "modern", tasks=False) as wire:
            result = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "Go."}))["result"]
        assert result["content"][0]["text"] == "done"
        inner = next(r["body"] for r in await made.model.requests() if r["body"]["model"] == "inner")
        names = {item["function"]["name"] for item in inner["tools"]}
        assert "load_skill" in names and not any("clerk" in name for name in names)
