"""Skills in code: `InlineSkill`, `ClassSkill`, and their resources and scripts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gateway import ClassSkill, FileSkillScript, InlineSkill, InlineSkillResource, InlineSkillScript, SkillFrontmatter
from gateway.skills.code import CodeSkills
from gateway.skills.model import MAX_SKILL_BYTES
from gateway.skills.objects.skill import SkillResource, SkillScript
from gateway.skills.source import SkillSource
from tests.skills.on_disk import call

FRONT = SkillFrontmatter(name="units", description="Convert <units> & more.")


async def read(skill: Any, name: str, **kwargs: object) -> object:
    resource = await skill.get_resource(name)
    assert isinstance(resource, SkillResource)
    return await resource.read(**kwargs)


async def run(skill: Any, name: str, args: Any = None, **kwargs: object) -> object:
    script = await skill.get_script(name)
    assert isinstance(script, SkillScript)
    return await script.run(skill, args, **kwargs)


@pytest.mark.requirement(111, 112, "SK3")
async def test_inline_skill_loads_as_xml() -> None:
    skill = InlineSkill(frontmatter=FRONT, instructions="Use <b>tables</b>.")
    assert await skill.get_content() == (
        "<name>units</name>\n<description>Convert &lt;units&gt; &amp; more.</description>\n\n"
        "<instructions>\nUse <b>tables</b>.\n</instructions>\n\n<available_resources />\n\n<available_scripts />"
    )

    @skill.resource(description="All of 'em")
    def table() -> str:
        return "t"

    @skill.script
    def convert(value: float, *, to: str = "km", **kwargs: object) -> str:
        return f"{value}{to}"

    content = await skill.get_content()
    assert '  <resource name="table" description="All of &#x27;em"/>' in content
    assert '<script name="convert">\n    <parameters_schema>{' in content
    assert '"value"' in content and '"to"' in content and "kwargs" not in content


@pytest.mark.requirement(114, "SK4", "SK5")
def test_invalid_member_is_an_error() -> None:
    resources: list[dict[str, Any]] = [{"name": "r"}, {"name": "r", "content": "c", "function": str}, {"name": " ", "content": "c"}]
    for wrong in resources:
        with pytest.raises(ValueError, match=r"Resource|name"):
            InlineSkillResource(**wrong)
    for script in (lambda: InlineSkillScript(name="", function=str), lambda: FileSkillScript(name=" ", full_path="/x.py")):
        with pytest.raises(ValueError, match="name"):
            script()
    for path in ("", "relative.py"):
        with pytest.raises(ValueError, match="absolute"):
            FileSkillScript(name="s", full_path=path)


@pytest.mark.requirement(115, "SK4")
async def test_resource_function_may_be_sync_or_async() -> None:
    skill = InlineSkill(frontmatter=FRONT, instructions="", resources=[InlineSkillResource(name="static", content="")])
    threads: list[int] = []

    @skill.resource
    def rows() -> list[int]:
        threads.append(threading.get_ident())
        return [1, 2]

    @skill.resource(name="mine")
    async def whose(**kwargs: object) -> dict[str, object]:
        return kwargs

    assert await read(skill, "STATIC") == ""
    assert await read(skill, "rows", tenant="acme") == [1, 2]
    assert threads != [threading.get_ident()]
    assert await read(skill, "mine", tenant="acme") == {"tenant": "acme"}
    assert await skill.get_resource("absent") is None


@pytest.mark.requirement(116, 117, "SK5")
async def test_script_in_code_binds_arguments_by_name() -> None:
    skill = InlineSkill(frontmatter=FRONT, instructions="")

    @skill.script
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @skill.script
    def nothing() -> str:
        return "done"

    assert (await run(skill, "add", {"a": 2}), await run(skill, "ADD", {"a": 2, "b": 3}), await run(skill, "nothing")) == (3, 5, "done")
    for args in (["1", "2"], "1 2", {"c": 1}, None):
        with pytest.raises(TypeError, match="add"):
            await run(skill, "add", args)


@pytest.mark.requirement(117)
async def test_argument_parser_converts_other_arguments() -> None:
    skill = InlineSkill(frontmatter=FRONT, instructions="", argument_parser=lambda args: {"text": " ".join(args or ())})

    @skill.script
    def shout(text: str) -> str:
        return text.upper()

    assert await run(skill, "shout", ["a", "b"]) == "A B"


@pytest.mark.requirement(120)
async def test_model_cannot_set_host_values() -> None:
    skill = InlineSkill(frontmatter=FRONT, instructions="")

    @skill.script
    def who(text: str, **kwargs: object) -> object:
        return text, kwargs

    @skill.script
    def closed(text: str) -> str:
        return text

    assert await run(skill, "who", {"text": "t"}, user="host") == ("t", {"user": "host"})
    assert await run(skill, "closed", {"text": "t"}, user="host") == "t"
    with pytest.raises(TypeError, match="user"):
        await run(skill, "who", {"text": "t", "user": "model"}, user="host")


class Units(ClassSkill):
    ran = 0

    def __init__(self) -> None:
        super().__init__(frontmatter=FRONT)

    @property
    def instructions(self) -> str:
        return "Use the table."

    @property
    @ClassSkill.resource
    def conversion_table(self) -> str:
        Units.ran += 1
        return "1 mi = 1.609 km"

    @ClassSkill.resource(name="notes", description="More")
    async def get_notes(self, **kwargs: object) -> object:
        return kwargs

    @ClassSkill.script
    def to_km(self, miles: float) -> float:
        return miles * 2


class MoreUnits(Units):
    @ClassSkill.script(name="to-miles")
    def back(self, km: float) -> float:
        return km / 2


@pytest.mark.requirement(122, "SK6")
async def test_class_skill_has_own_and_inherited_members() -> None:
    skill = MoreUnits()
    assert [r.name for r in skill.resources] == ["conversion-table", "notes"]
    assert sorted(s.name for s in skill.scripts) == ["to-km", "to-miles"]
    content = await skill.get_content()
    assert "<instructions>\nUse the table.\n</instructions>" in content and '"miles"' in content and '"self"' not in content
    assert Units.ran == 0
    assert await read(skill, "conversion-table") == "1 mi = 1.609 km"
    assert (await read(skill, "notes", a=1), await run(skill, "to-km", {"miles": 2}), Units.ran) == ({"a": 1}, 4, 1)


@pytest.mark.requirement(122, "SK6")
async def test_members_with_the_same_name_are_an_error() -> None:
    class Again(Units):
        @ClassSkill.script
        def to_km(self, miles: float) -> float:
            return miles * 3

    class Twice(Units):
        @ClassSkill.script(name="to-km")
        def other(self) -> None: ...

    assert await run(Again(), "to-km", {"miles": 2}) == 6
    with pytest.raises(ValueError, match="to-km"):
        _ = Twice().scripts


@pytest.mark.requirement(122, "SK6")
@pytest.mark.parametrize("name", ["", "Upper", "a_b", "-a"])
def test_illegal_member_name_is_an_error_at_definition(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        ClassSkill.resource(name=name)


@pytest.mark.requirement(122, "SK6")
@pytest.mark.parametrize("wrapper", [property, classmethod, staticmethod])
def test_mark_above_property_is_an_error(wrapper: Any) -> None:
    for mark in (ClassSkill.resource, ClassSkill.script):
        with pytest.raises(TypeError, match=wrapper.__name__):
            mark(wrapper(len))


async def test_member_of_equal_case_is_preferred() -> None:
    resources = [InlineSkillResource(name=name, content=name) for name in ("Readme", "readme")]
    skill = InlineSkill(frontmatter=FRONT, instructions="", resources=resources)
    assert [await read(skill, name) for name in ("readme", "Readme", "README")] == ["readme", "Readme", "Readme"]


SERVED = f'''\
from gateway import InlineSkill, InlineSkillResource, SkillFrontmatter


class Broken(InlineSkill):
    async def get_script(self, name):
        raise LookupError("no database")


front = SkillFrontmatter(name="units", description="Convert units.")
units = Broken(frontmatter=front, instructions="Convert.", resources=[InlineSkillResource(name="A/b.md", content="text")])


@units.resource
def large():
    return "x" * ({MAX_SKILL_BYTES} + 1)


@units.script
def convert():
    return "done"
'''


async def test_gateway_answers_every_failure_of_a_skill_in_code_as_a_tool(tmp_path: Path) -> None:
    (tmp_path / "served_units.py").write_text(SERVED)
    code = CodeSkills(["served_units:units"], base_dir=tmp_path)
    async with SkillSource([], refresh_seconds=0, code=code) as source:
        assert (await call(source, "read_skill_resource", skill_name="units", resource_name="a/B.md")).structured["text"] == "text"
        failed = await call(source, "run_skill_script", skill_name="units", script_name="convert")
        assert failed.is_error and "could not run 'convert': LookupError: no database" in failed.as_text()
        refused = await call(source, "read_skill_resource", skill_name="units", resource_name="large")
        assert refused.is_error and f"16777217 bytes; {MAX_SKILL_BYTES} are allowed" in refused.as_text()
