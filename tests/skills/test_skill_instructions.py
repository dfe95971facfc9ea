"""The part of an agent's instructions that names its skills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config.load import load_text
from gateway.errors import ConfigError, SkillError
from gateway.skills.source import SkillRules, SkillSource
from tests.skills.on_disk import write_skill


@pytest.mark.requirement("SK2")
@pytest.mark.requirement(109)
async def test_instructions_are_escaped_and_sorted(tmp_path: Path) -> None:
    write_skill(tmp_path / "b", description="'Uses <b> & </available_skills>.'")
    write_skill(tmp_path / "a", description="First.")
    write_skill(tmp_path / "c")
    async with SkillSource([tmp_path]) as source:
        text = source.instructions(["b", "a"])
    assert text.splitlines()[-4:] == [
        "<available_skills>",
        "<skill><name>a</name><description>First.</description></skill>",
        "<skill><name>b</name><description>Uses &lt;b&gt; &amp; &lt;/available_skills&gt;.</description></skill>",
        "</available_skills>",
    ]


@pytest.mark.requirement(109)
async def test_no_names_give_no_instructions(tmp_path: Path) -> None:
    async with SkillSource([tmp_path]) as source:
        assert source.instructions([]) == ""


async def test_unknown_name_suggests_similar_names(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain-writing")
    async with SkillSource([tmp_path]) as source:
        with pytest.raises(SkillError, match="'plain-writing'") as refused:
            source.instructions(["plain-writting"])
    assert refused.value.code == "unknown-skill"


@pytest.mark.requirement(110)
async def test_configured_template_is_filled(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", description="First {thing}.")
    async with SkillSource([tmp_path], rules=SkillRules(instruction_template="Know {{these}}:\n{skills}\nGood luck.")) as source:
        text = source.instructions(["a"])
    assert text == "Know {these}:\n<skill><name>a</name><description>First {thing}.</description></skill>\nGood luck."


@pytest.mark.requirement(110)
@pytest.mark.parametrize("template", ["no place", "{skills} {other}", "{skills} {", "{skills.upper}"])
def test_invalid_template_is_a_configuration_error(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigError, match=r"instructionTemplate.*template"):
        load_text(json.dumps({"skills": {"instructionTemplate": template}}), tmp_path / "gateway.json", {})
