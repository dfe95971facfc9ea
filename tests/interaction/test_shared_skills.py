"""Skills of servers and of Python objects in the one index: the same on every surface, with the same bytes and rules."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp import Client

from gateway import MCPSkillsSource
from tests.fakes.inside import command, gateway_inside
from tests.fakes.running import write_config
from tests.interaction.test_skills import every_entry, request
from tests.skills.on_disk import write_skill

CODE = '''
from gateway import ClassSkill, InlineSkill, InlineSkillResource, SkillFrontmatter

units = InlineSkill(
    frontmatter=SkillFrontmatter(name="units", description="Convert units. Use for miles.", metadata={"tags": "length"}),
    instructions="# Units\\n\\nRead `factors.csv`, then run `convert`.",
    resources=[InlineSkillResource(name="factors.csv", content="mile,1.609\\n")],
)
calls = []


@units.resource(name="now.json")
def now():
    calls.append(1)
    return {"calls": len(calls)}


@units.script(description="Miles as kilometres.")
def convert(miles: float) -> str:
    return f"{miles * 1.609:.3f} km"


class Greeter(ClassSkill):
    def __init__(self):
        super().__init__(frontmatter=SkillFrontmatter(name="greeter", description="Greets people."))

    @property
    def instructions(self):
        return "Say hello."

    @ClassSkill.script
    def greet(self, name: str) -> str:
        return f"Hello {name}"


class Broken(ClassSkill):
    def __init__(self):
        super().__init__(frontmatter=SkillFrontmatter(name="broken", description="Fails."))

    @property
    def instructions(self):
        raise RuntimeError("secret detail")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skills of two gateways."""
    folder = tmp_path_factory.mktemp("shared")
    hidden = "# PDF\n\nMerge\u200b files.\n"  # a host compares bytes: nothing may be taken out
    files = {"references/a b.md": "text", "scripts/run.py": "print()", "logo.png": b"\x89PNG\xff"}
    write_skill(folder / "inner" / "pdf", description="Merge PDF documents.", body=hidden, files=files)
    write_skill(folder / "inner" / "secret", description="Merge secrets.", files={"references/notes.md": "confidential"})
    write_skill(folder / "inner" / "same", description="The inner one.")
    write_skill(folder / "inner" / "quiet", description="Merge quietly.", extra="disable-model-invocation: true\n")
    write_skill(folder / "outer" / "same", description="The outer one.")
    (folder / "shared_skills_code.py").write_text(CODE)
    return folder


def inner_config(folder: Path) -> dict[str, Any]:
    return {"expose": {"skills": [str(folder / "inner")]}, "skills": {"refreshSeconds": 0.2}}


@pytest.fixture(scope="module")
def chain(folder: Path) -> Generator[str]:
    """A gateway with skills of folders and of code, before one with others, of which one is denied."""
    with ExitStack() as stack:
        inner = stack.enter_context(gateway_inside(folder, inner_config(folder), "behind")).url
        config = {
            "expose": {"skills": [str(folder / "outer")]},
            "skills": {"objects": ["shared_skills_code"], "scripts": {"approval": "never"}},
            "mcpServers": {"team": {"type": "http", "url": inner}},
            "policies": {"team": {"skills": {"deny": ["sec*"]}}},
        }
        (folder / "inner.url").write_text(inner)
        yield stack.enter_context(gateway_inside(folder, config, "front")).url


async def call(url: str, name: str, **arguments: Any) -> Any:
    return await request(url, "tools/call", name=name, arguments=arguments)


ALL = {"same", "team/pdf", "team/same", "team/quiet", "units", "greeter"}
FOR_MODELS = ALL - {"team/quiet"}


async def test_every_surface_shows_the_same_skills(chain: str) -> None:
    found = (await call(chain, "search_skills", limit=50))["structuredContent"]["skills"]
    assert {skill["uri"] for skill in found} == {f"skill://{name}/SKILL.md" for name in FOR_MODELS}
    assert {skill["origin"] for skill in found} == {"outer/same", "team", "shared_skills_code"}
    assert {entry["uri"] for entry in await every_entry(chain)} == {f"skill://{name}/SKILL.md" for name in ALL}
    resources = {r["uri"] for r in (await request(chain, "resources/list"))["resources"] if r["uri"].endswith("/SKILL.md")}
    assert resources == {f"skill://{name}/SKILL.md" for name in ALL}
    prompts = {prompt["name"] for prompt in (await request(chain, "prompts/list"))["prompts"]}
    assert prompts == {name.replace("/", "__") for name in ALL} | {"team__secret"}  # a prompt of the server, not of a skill
    (content,) = (await request(chain, "resources/read", uri="skill://index.json"))["contents"]
    assert {skill["url"] for skill in json.loads(content["text"])["skills"]} == {f"skill://{name}/SKILL.md" for name in FOR_MODELS}
    instructions = (await request(chain, "server/discover"))["instructions"]
    assert f"{len(FOR_MODELS)} skills" in instructions


async def test_server_skill_is_found_by_search_and_loaded_with_its_digest(chain: str) -> None:
    (first, *_) = (await call(chain, "search_skills", query="merge pdf documents"))["structuredContent"]["skills"]
    assert first["skill"] == "pdf"
    loaded = (await call(chain, "load_skill", skill_name="pdf"))["structuredContent"]
    entry = next(e for e in await every_entry(chain) if e["uri"] == "skill://team/pdf/SKILL.md")
    digests = {file["uri"]: file["digest"] for file in entry["resources"]}
    assert (loaded["origin"], loaded["uri"], loaded["digest"]) == ("team", entry["uri"], digests[entry["uri"]])
    assert {f"skill://team/pdf/{f['path'].replace(' ', '%20')}": f["digest"] for f in loaded["files"]} | {
        entry["uri"]: loaded["digest"]
    } == digests
    assert loaded["body"].startswith("# PDF")


async def test_server_skill_file_is_the_same_by_tool_and_by_resource(chain: str) -> None:
    for path, name in (("references/a b.md", "references/a%20b.md"), ("logo.png", "logo.png"), ("SKILL.md", "SKILL.md")):
        by_tool = (await call(chain, "read_skill_resource", skill_name="pdf", resource_name=path))["structuredContent"]
        (content,) = (await request(chain, "resources/read", uri=f"skill://team/pdf/{name}"))["contents"]
        data = base64.b64decode(content["blob"]) if "blob" in content else content["text"].encode()
        told = base64.b64decode(by_tool["blob"]) if by_tool["kind"] == "blob" else by_tool["text"].encode()
        assert (told, by_tool["digest"]) == (data, f"sha256:{hashlib.sha256(data).hexdigest()}")
        assert ("\u200b".encode() in data) == (path == "SKILL.md")


@pytest.mark.requirement(130)
async def test_prompts_of_shared_skills_equal_load_skill(chain: str) -> None:
    for name, prompt in (("pdf", "team__pdf"), ("skill://team/same", "team__same"), ("units", "units"), ("greeter", "greeter")):
        loaded = await call(chain, "load_skill", skill_name=name)
        (message,) = (await request(chain, "prompts/get", name=prompt))["messages"]
        assert message["content"]["text"] == loaded["content"][0]["text"]


async def test_denied_skill_is_on_no_surface(chain: str) -> None:
    for error in (
        await request(chain, "skills/get", uri="skill://team/secret/SKILL.md"),
        await request(chain, "resources/read", uri="skill://team/secret/SKILL.md"),
        await request(chain, "resources/directory/read", uri="skill://team/secret"),
    ):
        assert error["code"] == -32602
    for name in ("secret", "team/secret", "skill://team/secret/SKILL.md"):
        assert (await call(chain, "load_skill", skill_name=name))["isError"]
        assert (await call(chain, "read_skill_resource", skill_name=name, resource_name="SKILL.md"))["isError"]


@pytest.mark.parametrize("path", ["SKILL.md", "references/notes.md", "references/../references/notes.md", "references"])
async def test_files_of_a_denied_skill_are_not_read_by_their_uri(chain: str, folder: Path, path: str) -> None:
    """The server behind the policy serves each of them, so only the policy's refusal can be the reason for the error."""
    served = await request((folder / "inner.url").read_text(), "resources/read", uri="skill://secret/references/notes.md")
    assert served["contents"][0]["text"] == "confidential"
    for method in ("resources/read", "resources/directory/read"):
        refused = await request(chain, method, uri=f"skill://team/secret/{path}")
        assert refused.get("code") == -32602, refused


async def test_shared_name_requires_the_qualified_name(chain: str) -> None:
    refused = await call(chain, "load_skill", skill_name="same")
    assert refused["isError"] and "skill://team/same (from team)" in refused["content"][0]["text"]
    assert "The inner one." in (await call(chain, "load_skill", skill_name="skill://team/same"))["structuredContent"]["description"]


@pytest.mark.requirement(116, 117)
async def test_skill_in_code_is_served_with_its_functions(chain: str) -> None:
    result = await call(chain, "load_skill", skill_name="units")
    loaded, text = result["structuredContent"], result["content"][0]["text"]
    assert "\n<name>units</name>\n<description>" in text and "\n\n<instructions>\n# Units" in text and "---\nname:" not in text
    assert '<script name="convert"' in text and text.endswith("</available_scripts>")
    assert loaded["body"].startswith("# Units") and loaded["origin"] == "shared_skills_code"
    assert [script["name"] for script in loaded["scripts"]] == ["convert"]
    assert loaded["scripts"][0]["parameters"]["required"] == ["miles"]
    done = await call(chain, "run_skill_script", skill_name="units", script_name="convert", args={"miles": 2})
    assert done["structuredContent"] == {"skill": "units", "script": "convert", "result": "3.218 km"}
    assert (await call(chain, "run_skill_script", skill_name="greeter", script_name="greet", args={"name": "Ada"}))["content"][0][
        "text"
    ] == "Hello Ada"
    for args in (["2"], {"kilometres": 1}):
        refused = await call(chain, "run_skill_script", skill_name="units", script_name="convert", args=args)
        assert refused["isError"] and "convert" in refused["content"][0]["text"]
    remote = await call(chain, "run_skill_script", skill_name="pdf", script_name="scripts/run.py")
    assert remote["isError"] and "a server publishes the skill" in remote["content"][0]["text"]


async def test_resources_in_code_are_files_computed_at_each_read(chain: str) -> None:
    entry = next(e for e in await every_entry(chain) if e["uri"] == "skill://units/SKILL.md")
    assert entry["resources"] == "dynamic" and entry["frontmatter"]["metadata"] == {"tags": "length"}
    entry = next(e for e in await every_entry(chain) if e["uri"] == "skill://greeter/SKILL.md")
    (content,) = (await request(chain, "resources/read", uri="skill://greeter/SKILL.md"))["contents"]
    assert entry["resources"][0]["digest"] == f"sha256:{hashlib.sha256(content['text'].encode()).hexdigest()}"
    csv = (await call(chain, "read_skill_resource", skill_name="units", resource_name="factors.csv"))["structuredContent"]
    assert (csv["text"], csv["mimeType"]) == ("mile,1.609\n", "text/csv")
    seen = [json.loads((await request(chain, "resources/read", uri="skill://units/now.json"))["contents"][0]["text"]) for _ in range(2)]
    by_tool = (await call(chain, "read_skill_resource", skill_name="units", resource_name="now.json"))["structuredContent"]
    assert seen[1]["calls"] == seen[0]["calls"] + 1 and json.loads(by_tool["text"])["calls"] == seen[1]["calls"] + 1


async def test_program_reads_skills_by_the_extension_with_digests(chain: str) -> None:
    async with Client(chain) as client:
        skills = {skill.frontmatter.name: skill for skill in await MCPSkillsSource(client).get_skills()}
        assert set(skills) == {name.rpartition("/")[2] for name in ALL}
        assert "Merge" in await skills["pdf"].get_content()
        found = await skills["pdf"].get_resource("references/a b.md")
        assert found is not None and await found.read() == "text"
        for name in ("none.md", "../same/SKILL.md", "SKILL.md/../logo.png"):
            assert await skills["pdf"].get_resource(name) is None


def test_the_command_lists_them_too(chain: str, folder: Path) -> None:
    ended = command("skills", "list", "--tokens", "--json", "--config", str(folder / "front.json"))
    rows = {row["name"]: row for row in ended.data["skills"]}
    assert set(rows) == ALL and rows["team/pdf"]["origin"] == "team" and rows["team/pdf"]["files"] == 4
    assert rows["team/pdf"]["tokens"]["loaded"] > 0
    ended = command("skills", "list", "--folders", "--json", "--config", str(folder / "front.json"))
    assert [row["name"] for row in ended.data["skills"]] == ["same"]


async def test_gateway_without_own_skills_serves_and_follows_server_skills(chain: str, folder: Path) -> None:
    inner = (folder / "inner.url").read_text()
    team = {"type": "http", "url": inner}
    config = {"mcpServers": {"team": team}, "policies": {"team": {"skills": {"allow": ["pdf", "added"]}}}}
    with gateway_inside(folder, config, "bare") as bare:
        url = bare.url
        listed = {tool["name"] for tool in (await request(url, "tools/list"))["tools"]}
        assert {"search_skills", "load_skill", "read_skill_resource"} <= listed and "run_skill_script" not in listed
        assert [e["uri"] for e in await every_entry(url)] == ["skill://team/pdf/SKILL.md"]
        assert not (await call(url, "load_skill", skill_name="pdf")).get("isError")
        (folder / "inner" / "pdf" / "SKILL.md").write_text("---\nname: pdf\ndescription: Merge PDF documents.\n---\nOther words.\n")
        while True:  # the inner gateway looks at its folder now and then
            loaded = (await call(url, "load_skill", skill_name="pdf"))["structuredContent"]
            if loaded["body"] == "Other words.\n":
                break
    entry = (await request(chain, "skills/get", uri="skill://team/pdf/SKILL.md"))["skill"]
    assert loaded["digest"] in {file["digest"] for file in entry["resources"]}


@pytest.mark.requirement("SK5")
async def test_runs_and_refusals_are_in_the_audit_log(chain: str, folder: Path) -> None:
    await call(chain, "run_skill_script", skill_name="units", script_name="convert", args={"miles": 3})
    await call(chain, "run_skill_script", skill_name="units", script_name="convert", args={"furlongs": 3})
    expected = {("script.finished", "units", "convert", "complete"), ("script.refused", "units", "convert", "script-arguments")}
    seen = set[tuple[str, str, str | None, str | None]]()
    with anyio.move_on_after(20):  # the gateway writes its audit log in batches
        while not expected <= seen:
            done = await anyio.to_thread.run_sync(command, "audit", "--json", "--config", str(folder / "front.json"))
            seen = {(e["kind"], e["name"], e.get("script"), e.get("outcome") or e.get("reason")) for e in done.data["entries"]}
    assert expected <= seen


def test_code_that_fails_is_named_and_hides_nothing(folder: Path) -> None:
    config = write_config(folder, {"skills": {"objects": ["shared_skills_code:units", "shared_skills_code:Broken", "none_such"]}}, "odd")
    ended = command("skills", "list", "--json", "--config", str(config))
    assert [row["name"] for row in ended.data["skills"]] == ["units"]
    doctor = command("doctor", "--json", "--config", str(config))
    assert {"skill shared_skills_code:Broken", "skill none_such"} <= {check["subject"] for check in doctor.data["checks"]}
