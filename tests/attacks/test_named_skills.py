"""Attack 19, skills that a caller names: the tools of `skill` give a key the skills that it may read, wherever they are published."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.inside import gateway_inside, raw_inside
from tests.interaction.test_skill_servers import entry, manifest, reads
from tests.interaction.wire import Era, over_http
from tests.skills.on_disk import write_skill

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
FAR = {"SKILL.md": manifest("far"), "a.md": "far away"}
TWIN = {"SKILL.md": manifest("open", "A twin.")}
CODE = """\
from gateway import InlineSkill, SkillFrontmatter
coded = InlineSkill(frontmatter=SkillFrontmatter(name="coded", description="In code."), instructions="Run it.")

@coded.script
def count() -> str:
    "Counts its runs."
    with open({ran!r}, "a") as file:
        file.write("x")
    return "counted"
"""
FLOW = """\
name: {name}
description: Loads a skill.
input: {{name: {{type: string, default: ""}}}}
executors:
  one: {{tool: skill/load_skill, arguments: {{skill_name: "{skill}"}}}}
start: one
output: one
"""
KEYS: dict[str, tuple[str, ...]] = {
    "tools": ("tools:skill", "workflow"),
    "open": ("tools:skill", "resources:skill/skill://open/*"),
    "manifest": ("tools:skill", "resources:skill/skill://open/SKILL.md"),
    "own": ("skill",),
    "far": ("tools:skill", "resources:docs/skill://far/*"),
    "all": ("*",),
}
READS = {
    "tools": set[str](),
    "open": {"open"},
    "manifest": {"open"},
    "own": {"open", "shut", "coded"},
    "far": {"far"},
    "all": {"open", "shut", "coded", "far"},
}


@dataclass(frozen=True)
class Deployment:
    url: str
    keys: dict[str, str]
    ran: Path

    async def call(self, key: str, tool: str, era: Era = "modern", **arguments: Any) -> dict[str, Any]:
        async with over_http(self.url, era, token=self.keys[key], tasks=False) as wire:
            return (await wire.send("tools/call", name=tool, arguments=arguments))["result"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("named-skills")
    for name in ("open", "shut"):
        write_skill(folder / "skills" / name, files={"a.md": f"inside {name}", "scripts/go.py": "print(1)"})
    (folder / "named_skills_code.py").write_text(CODE.format(ran=str(folder / "ran")))
    for name, skill in (("given", "{{name}}"), ("fixed", "shut")):
        (folder / f"{name}.workflow.yaml").write_text(FLOW.format(name=name, skill=skill))
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in KEYS.items()}
    published = {f"skill://{name}/{path}": text for name, files in (("far", FAR), ("open", TWIN)) for path, text in files.items()}
    twin = entry("open", TWIN, description="A twin.")
    far = {"skills": [entry("far", FAR), twin], "reads": reads(published)}
    with ExitStack() as stack:
        config: dict[str, Any] = {
            "mcpServers": {"docs": {"type": "http", "url": stack.enter_context(raw_inside(far))}},
            "expose": {"agents": ["."], "skills": ["skills"]},
            "skills": {"objects": ["named_skills_code"], "scripts": {"approval": "never"}},
        }
        inside = stack.enter_context(gateway_inside(folder, config))
        inside.look()
        yield Deployment(inside.url, keys, folder / "ran")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("key", KEYS)
async def test_load_skill_gives_what_the_key_may_read(deployment: Deployment, key: str, era: Era) -> None:
    for skill in READS["all"]:
        given = "docs/far" if skill == "far" else skill
        result = await deployment.call(key, "load_skill", era, skill_name=f"skill://{given}")
        assert bool(result.get("isError")) == (skill not in READS[key]), (skill, result)
        if skill not in READS[key]:
            assert result["_meta"]["dev.moongate/rule"] == "scopes", result
            assert "structuredContent" not in result


@pytest.mark.parametrize("key", KEYS)
async def test_files_of_a_skill_are_read_by_scope(deployment: Deployment, key: str) -> None:
    for skill, text in (("open", "inside open"), ("shut", "inside shut"), ("docs/far", "far away")):
        result = await deployment.call(key, "read_skill_resource", skill_name=f"skill://{skill}", resource_name="a.md")
        may = skill.removeprefix("docs/") in READS[key] and key != "manifest"
        assert bool(result.get("isError")) != may, (skill, result)
        assert (text in str(result)) == may
        folder = await deployment.call(key, "read_skill_resource", skill_name=f"skill://{skill}", resource_name=".")
        assert ("a.md" in str(folder.get("structuredContent"))) == (skill.removeprefix("docs/") in READS[key])


@pytest.mark.parametrize("key", KEYS)
async def test_search_and_list_show_skills_by_scope(deployment: Deployment, key: str) -> None:
    found = (await deployment.call(key, "search_skills"))["structuredContent"]
    assert {skill["name"] for skill in found["skills"]} == READS[key] and found["total"] == len(READS[key]) + (key == "all")
    queried = (await deployment.call(key, "search_skills", query="thing"))["content"][0]["text"]
    mistyped = (await deployment.call(key, "load_skill", skill_name="shutt"))["content"][0]["text"]
    async with over_http(deployment.url, "modern", token=deployment.keys[key]) as wire:
        tools = {tool["name"]: tool for tool in (await wire.send("tools/list"))["result"]["tools"]}
    for text in (queried, mistyped.removeprefix("Unknown skill 'shutt'."), tools["load_skill"]["description"]):
        assert not [skill for skill in {*READS["all"] - READS[key], *([] if key == "all" else ["twin"])} if skill in text], text
    assert all(f"{skill}:" in tools["load_skill"]["description"] for skill in READS[key])


async def test_operators_description_is_listed_to_every_key(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "shut")
    token = KeyStore(tmp_path / "gateway-state" / "keys.json").add("tools", scopes=KEYS["tools"]).token
    overrides = {"skill": {"overrides": {"load_skill": {"description": "Ours."}}}}
    with gateway_inside(tmp_path, {"mcpServers": {}, "expose": {"skills": ["skills"]}, "policies": overrides}) as inside:
        async with over_http(inside.url, "modern", token=token) as wire:
            tools = {tool["name"]: tool for tool in (await wire.send("tools/list"))["result"]["tools"]}
    assert tools["load_skill"]["description"] == "Ours."


async def test_summary_of_an_unlisted_tool_names_skills_by_scope(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "shut")
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    tokens = {name: store.add(name, scopes=KEYS[name]).token for name in ("tools", "own")}
    config = {"mcpServers": {}, "expose": {"skills": ["skills"]}, "policies": {"skill": {"disclosure": "on-demand"}}}
    with gateway_inside(tmp_path, config) as inside:
        for name, token in tokens.items():
            async with over_http(inside.url, "modern", token=token, tasks=False) as wire:
                found = (await wire.send("tools/call", name="list_tools", arguments={}))["result"]["structuredContent"]["tools"]
            [summary] = [tool["description"] for tool in found if tool["name"] == "load_skill"]
            assert ("shut" in summary) == (name == "own"), summary


async def test_shared_name_means_the_skill_that_the_key_may_read(deployment: Deployment) -> None:
    assert "pass one of these" in (await deployment.call("all", "load_skill", skill_name="open"))["content"][0]["text"]
    loaded = await deployment.call("open", "load_skill", skill_name="open")
    assert "Step by step" in str(loaded["content"]), loaded


@pytest.mark.parametrize("key", KEYS)
async def test_scripts_run_by_scope(deployment: Deployment, key: str) -> None:
    deployment.ran.unlink(missing_ok=True)
    result = await deployment.call(key, "run_skill_script", skill_name="coded", script_name="count")
    assert bool(result.get("isError")) == ("coded" not in READS[key]), result
    assert deployment.ran.exists() == ("coded" in READS[key])
    in_file = (await deployment.call(key, "run_skill_script", skill_name="skill://open", script_name="scripts/go.py"))["_meta"]
    assert (in_file.get("dev.moongate/rule") == "scopes") == (key not in ("open", "own", "all")), in_file


async def test_workflow_loads_the_skill_that_its_file_names(deployment: Deployment) -> None:
    fixed = await deployment.call("tools", "workflow__fixed")
    assert not fixed.get("isError") and "Step by step" in str(fixed["content"])
    given = await deployment.call("tools", "workflow__given", name="shut")
    assert given["isError"] and "no scope for resource" in given["content"][0]["text"], given
