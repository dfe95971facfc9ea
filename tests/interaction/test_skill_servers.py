"""Skills of servers that send false entries, do not support the extension, or come and go: all surfaces agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from tests.fakes.inside import Inside, gateway_inside, raw_inside
from tests.interaction.test_skills import EXTENSION, every_entry, request
from tests.skills.on_disk import write_skill


def manifest(name: str, description: str = "Does a thing.", extra: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{extra}---\nBody of {name}.\n"


def entry(folder: str, files: dict[str, str], **frontmatter: Any) -> dict[str, Any]:
    resources = [
        {"uri": f"skill://{folder}/{path}", "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", "size": len(text.encode())}
        for path, text in files.items()
    ]
    return {
        "uri": f"skill://{folder}/SKILL.md",
        "frontmatter": {"name": folder, "description": "Does a thing.", **frontmatter},
        "resources": resources,
    }


def reads(files: dict[str, str]) -> dict[str, Any]:
    return {uri: {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]} for uri, text in files.items()}


def remote(url: str) -> dict[str, Any]:
    return {"type": "http", "url": url}


async def call(url: str, name: str, **arguments: Any) -> Any:
    return await request(url, "tools/call", name=name, arguments=arguments)


async def surfaces(url: str, labels: tuple[str, ...]) -> dict[str, set[str]]:
    """What each surface shows of the skills under these first segments."""
    tools = {tool["name"] for tool in (await request(url, "tools/list"))["tools"]}
    found: list[Any] = (await call(url, "search_skills", limit=50))["structuredContent"]["skills"] if "search_skills" in tools else []
    index = await request(url, "resources/read", uri="skill://index.json")
    legacy: list[Any] = json.loads(index["contents"][0]["text"])["skills"] if "contents" in index else []
    listed = await request(url, "skills/list")
    prompts = {prompt["name"].replace("__", "/") for prompt in (await request(url, "prompts/list"))["prompts"]}
    shown: dict[str, set[str]] = {
        "extension": {e["uri"] for e in await every_entry(url)} if "skills" in listed else set(),
        "search": {skill["uri"] for skill in found},
        "index": {skill["url"] for skill in legacy},
        "prompts": {f"skill://{name}/SKILL.md" for name in prompts},
    }
    starts = tuple(f"skill://{label}/" for label in labels)
    return {
        surface: {uri.removeprefix("skill://").removesuffix("/SKILL.md") for uri in uris if uri.startswith(starts)}
        for surface, uris in shown.items()
    }


def same(*names: str) -> dict[str, set[str]]:
    return {surface: set(names) for surface in ("extension", "search", "index", "prompts")}


GOOD = manifest("good")
FILES = {
    "skill://good/SKILL.md": GOOD,
    "skill://good/a.md": "a",
    "skill://body/SKILL.md": manifest("body") + "and more",
    "skill://front/SKILL.md": manifest("front", extra="license: MIT\n"),
    "skill://file/SKILL.md": manifest("file"),
    "skill://file/a.md": "not what was listed",
    "skill://file/unlisted.md": "secret",
    "skill://veiled/SKILL.md": manifest("veiled", "Does\u200b a thing."),
    "skill://misnamed/SKILL.md": manifest("other"),
}
LISTED: list[dict[str, Any]] = [
    entry("good", {"SKILL.md": GOOD, "a.md": "a"}),
    entry("body", {"SKILL.md": manifest("body")}),
    entry("front", {"SKILL.md": FILES["skill://front/SKILL.md"]}),
    entry("file", {"SKILL.md": FILES["skill://file/SKILL.md"], "a.md": "listed"}),
    entry("veiled", {"SKILL.md": FILES["skill://veiled/SKILL.md"]}, description="Does\u200b a thing."),
    entry("misnamed", {"SKILL.md": FILES["skill://misnamed/SKILL.md"]}, name="other"),
    {**entry("no-files", {"SKILL.md": "x"}), "resources": None},
    entry("no-manifest", {"a.md": "x"}),
    entry("leads-out", {"SKILL.md": "x", "%2e%2e/x": "x"}),
    entry("too-many", {"SKILL.md": "x", **{f"{n}.md": "x" for n in range(512)}}),
    {**entry("odd-digest", {"SKILL.md": "x"}), "resources": [{"uri": "skill://odd-digest/SKILL.md", "digest": "md5:0", "size": 1}]},
]
SHOWN = {
    "skill://old/SKILL.md": manifest("old", extra="license: MIT\n"),
    "skill://old/refs/a b.md": "a",
    "skill://by-index/SKILL.md": manifest("by-index"),
    "skill://quiet/SKILL.md": manifest("quiet", extra="disable-model-invocation: true\n"),
    "skill://repaired/SKILL.md": manifest("repaired", "Use when: always"),
    "skill://refused/SKILL.md": "no frontmatter",
    "skill://veiled/SKILL.md": manifest("veiled", "Does\u200b a thing."),
}


@dataclass(frozen=True)
class Servers:
    """A gateway with a server that sends false entries and a server without the extension, each under two policies."""

    url: str
    liar: dict[str, Any]
    old: dict[str, Any]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    index = [
        {"name": n, "type": "skill-md", "description": "d", "url": f"skill://{n}/SKILL.md"} for n in ("by-index", "repaired", "refused")
    ]
    native = [uri.replace(" ", "%20") for uri in SHOWN if "index" not in uri and "re" not in uri.split("/")[2]] + ["skill://index.json"]
    liar: dict[str, Any] = {"skills": list(LISTED), "reads": reads(FILES)}
    old: dict[str, Any] = {
        "resources": [{"uri": uri, "name": uri, "description": "d"} for uri in native],
        "reads": reads(
            {uri.replace(" ", "%20"): text for uri, text in SHOWN.items()} | {"skill://index.json": json.dumps({"skills": index})}
        ),
    }
    with ExitStack() as stack:
        false, aged = stack.enter_context(raw_inside(liar)), stack.enter_context(raw_inside(old))
        config = {
            "mcpServers": {"liar": remote(false), "wary": remote(false), "old": remote(aged), "oldwary": remote(aged)},
            "policies": {"wary": {"hiddenText": "refuse"}, "oldwary": {"hiddenText": "refuse"}},
        }
        yield Servers(stack.enter_context(gateway_inside(tmp_path_factory.mktemp("servers"), config)).url, liar, old)


async def test_entry_that_breaks_the_format_is_on_no_surface(servers: Servers) -> None:
    assert await surfaces(servers.url, ("liar",)) == same(*(f"liar/{name}" for name in ("good", "body", "front", "file", "veiled")))
    for name in ("misnamed", "no-files", "no-manifest", "leads-out", "too-many", "odd-digest"):
        assert (await request(servers.url, "skills/get", uri=f"skill://liar/{name}/SKILL.md"))["code"] == -32602
        assert (await call(servers.url, "load_skill", skill_name=f"skill://liar/{name}"))["isError"]


async def test_rejected_hidden_text_keeps_entry_from_every_surface(servers: Servers) -> None:
    assert await surfaces(servers.url, ("wary",)) == same(*(f"wary/{name}" for name in ("good", "body", "front", "file")))
    assert (await request(servers.url, "skills/get", uri="skill://wary/veiled/SKILL.md"))["code"] == -32602
    assert (await request(servers.url, "resources/read", uri="skill://wary/veiled/SKILL.md")).get("code")
    assert (await call(servers.url, "load_skill", skill_name="skill://wary/veiled"))["isError"]


@pytest.mark.parametrize(("skill", "said"), [("body", "than it lists"), ("front", "The frontmatter of skill")])
async def test_skill_that_differs_from_listing_is_not_loaded_or_prompted(servers: Servers, skill: str, said: str) -> None:
    loaded = await call(servers.url, "load_skill", skill_name=f"skill://liar/{skill}")
    assert loaded["isError"] and said in loaded["content"][0]["text"]
    assert "Body of" not in json.dumps(loaded)
    assert "Body of" not in json.dumps(await request(servers.url, "prompts/get", name=f"liar__{skill}"))


async def test_changed_or_unlisted_file_is_not_read(servers: Servers) -> None:
    good = await call(servers.url, "read_skill_resource", skill_name="skill://liar/good", resource_name="a.md")
    assert good["structuredContent"]["text"] == "a"
    for path in ("a.md", "unlisted.md", "../good/a.md"):
        done = await call(servers.url, "read_skill_resource", skill_name="skill://liar/file", resource_name=path)
        assert done["isError"] and not {"not what was listed", "secret"} & {c["text"] for c in done["content"]}


async def test_changed_or_removed_entry_is_noticed_when_used(servers: Servers) -> None:
    body = next(e for e in servers.liar["skills"] if "//good/" in e["uri"])
    changed = manifest("good", extra="license: MIT\n")
    servers.liar["reads"] |= reads({"skill://good/SKILL.md": changed})
    servers.liar["skills"] = [entry("good", {"SKILL.md": changed}, license="MIT"), *[e for e in LISTED if e is not body]]
    loaded = (await call(servers.url, "load_skill", skill_name="skill://liar/good"))["structuredContent"]
    assert loaded["digest"] == f"sha256:{hashlib.sha256(changed.encode()).hexdigest()}"
    assert (await request(servers.url, "skills/get", uri="skill://liar/good/SKILL.md"))["skill"]["frontmatter"]["license"] == "MIT"
    servers.liar["skills"] = [e for e in servers.liar["skills"] if "//file/" not in e["uri"]]
    assert (await call(servers.url, "load_skill", skill_name="skill://liar/file"))["isError"]
    assert "liar/file" not in (await surfaces(servers.url, ("liar",)))["search"]


async def test_skills_without_extension_are_listed_with_file_frontmatter(servers: Servers) -> None:
    seen = await surfaces(servers.url, ("old",))
    assert seen["extension"] == {"old/old", "old/by-index", "old/quiet", "old/veiled"}
    assert seen["search"] == seen["index"] == {"old/old", "old/by-index", "old/repaired", "old/veiled"}
    assert seen["prompts"] == {"old/old", "old/by-index", "old/repaired", "old/veiled", "old/quiet"}
    listed = next(e for e in await every_entry(servers.url) if e["uri"] == "skill://old/old/SKILL.md")
    assert listed == {
        "uri": "skill://old/old/SKILL.md",
        "frontmatter": {"name": "old", "description": "Does a thing.", "license": "MIT"},
        "resources": "dynamic",
        "_meta": {"dev.moongate/origin": "old"},
    }
    assert (await request(servers.url, "skills/get", uri=listed["uri"]))["skill"] == listed
    loaded = (await call(servers.url, "load_skill", skill_name="skill://old/old"))["structuredContent"]
    (content,) = (await request(servers.url, "resources/read", uri=listed["uri"]))["contents"]
    assert content["text"].endswith(loaded["body"]) and loaded["body"] == "Body of old.\n"
    assert (await call(servers.url, "load_skill", skill_name="skill://old/refused"))["isError"]
    assert (await request(servers.url, "skills/get", uri="skill://old/repaired/SKILL.md"))["code"] == -32602


async def test_folders_of_skill_without_manifest_show_the_server_listing(servers: Servers) -> None:
    top = (await request(servers.url, "resources/directory/read", uri="skill://old/old"))["resources"]
    assert top == [
        {"uri": "skill://old/old/SKILL.md", "name": "SKILL.md"},
        {"uri": "skill://old/old/refs", "name": "refs", "mimeType": "inode/directory"},
    ]
    (child,) = (await request(servers.url, "resources/directory/read", uri="skill://old/old/refs"))["resources"]
    assert child == {"uri": "skill://old/old/refs/a%20b.md", "name": "a b.md"}
    assert (await request(servers.url, "resources/directory/read", uri="skill://old/none"))["code"] == -32602


async def test_hidden_text_in_skills_of_a_server_is_refused(servers: Servers) -> None:
    seen = await surfaces(servers.url, ("oldwary",))
    assert not any("oldwary/veiled" in names for names in seen.values())
    assert "oldwary/old" in seen["extension"] & seen["search"] & seen["index"] & seen["prompts"]


async def test_changed_server_file_is_listed_with_its_new_content(servers: Servers) -> None:
    servers.old["reads"] |= reads({"skill://by-index/SKILL.md": manifest("by-index", "Newer.")})
    got = (await request(servers.url, "skills/get", uri="skill://old/by-index/SKILL.md"))["skill"]
    assert got["frontmatter"]["description"] == "Newer."
    assert got in await every_entry(servers.url)
    del servers.old["reads"]["skill://by-index/SKILL.md"]
    assert (await call(servers.url, "load_skill", skill_name="skill://old/by-index"))["isError"]
    assert (await request(servers.url, "skills/get", uri="skill://old/by-index/SKILL.md"))["code"] == -32602
    assert "skill://old/by-index/SKILL.md" not in {e["uri"] for e in await every_entry(servers.url)}


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Inside, Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("reloaded")
    write_skill(folder / "own" / "mine")
    told: dict[str, Any] = {"skills": LISTED[:1], "reads": reads(FILES)}
    with raw_inside(told) as url, gateway_inside(folder, {}) as gateway:
        yield gateway, folder, remote(url)


STEPS: list[tuple[list[str], bool, dict[str, Any], set[str]]] = [
    (["one"], False, {}, {"one/good"}),
    (["one", "two"], False, {}, {"one/good", "two/good"}),
    (["two"], True, {}, {"two/good", "mine"}),
    (["two"], True, {"skill": {"skills": {"deny": ["*"]}}}, {"two/good"}),
    (["two"], True, {"two": {"skills": {"deny": ["good"]}}}, {"mine"}),
    (["two"], False, {}, {"two/good"}),
    ([], False, {}, set()),
]


async def test_every_surface_follows_a_reload_of_skills(reloaded: tuple[Inside, Path, dict[str, Any]]) -> None:
    gateway, folder, server = reloaded
    for names, own, policies, expected in STEPS:
        expose = {"expose": {"skills": [str(folder / "own")]}} if own else {}
        config = {"mcpServers": dict.fromkeys(names, server), "policies": policies, **expose}
        await anyio.to_thread.run_sync(gateway.reload, folder, config)
        wanted = same(*expected)
        with anyio.fail_after(20):
            while await surfaces(gateway.url, ("one", "two", "mine")) != wanted:
                await anyio.sleep(0.02)
        with anyio.fail_after(20):
            while (EXTENSION in (await request(gateway.url, "server/discover"))["capabilities"]["extensions"]) != bool(expected):
                await anyio.sleep(0.02)


async def test_one_of_two_sources_has_a_contested_uri_on_every_surface(tmp_path: Path) -> None:
    write_skill(tmp_path / "own" / "good")
    told: dict[str, Any] = {"skills": LISTED[:1], "reads": reads(FILES)}
    with raw_inside(told) as url:
        config = {"mcpServers": {"bare": remote(url)}, "policies": {"bare": {"prefix": ""}}, "expose": {"skills": [str(tmp_path / "own")]}}
        with gateway_inside(tmp_path, config) as gateway:
            entries = await every_entry(gateway.url)
            found = (await call(gateway.url, "search_skills"))["structuredContent"]["skills"]
    assert [e["uri"] for e in entries] == [s["uri"] for s in found] == ["skill://good/SKILL.md"]
    assert "_meta" not in entries[0] and found[0]["origin"] == "own/good"
