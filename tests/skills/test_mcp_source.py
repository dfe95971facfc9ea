"""`MCPSkillsSource`: skills of a remote server by its index resource."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from mcp.shared.exceptions import MCPError

from gateway import MCPSkillsSource, Skill
from gateway.errors import NotFound
from gateway.protocol import SKILLS_EXTENSION
from gateway.skills.model import MAX_SKILL_BYTES, digest_of
from gateway.skills.remote import file_of, unlisted_skill

INDEX = "skill://index.json"


class Server:
    """Answers `resources/read` from a table of texts, bytes and errors, and records the requests."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        self.asked: list[str] = []

    async def read_resource(self, uri: str) -> object:
        self.asked.append(uri)
        found = self.table.get(uri, MCPError(-32002, "not found"))
        if isinstance(found, MCPError):
            raise found
        content = {"blob": base64.b64encode(found).decode()} if isinstance(found, bytes) else {"text": found}
        return SimpleNamespace(contents=[SimpleNamespace(**content)])


def entry(name: str = "pdf", kind: str = "skill-md", **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, "description": "d", "url": f"skill://{name}/SKILL.md", **more}


def index(*entries: object) -> str:
    return json.dumps({"skills": entries})


async def skills_of(table: Mapping[str, Any]) -> list[Skill]:
    return await MCPSkillsSource(Server(table)).get_skills()


@pytest.mark.requirement(125, "SK13")
@pytest.mark.parametrize("code", [-32002, -32601, -32602])
async def test_server_without_index_has_no_skills(code: int) -> None:
    assert await skills_of({INDEX: MCPError(code, "no", {"uri": INDEX} if code == -32602 else None)}) == []


@pytest.mark.requirement(125, "SK13")
@pytest.mark.parametrize(("code", "data"), [(-32603, None), (-32602, None), (-32602, {"uri": INDEX, "reason": "denied"})])
async def test_unreadable_index_is_an_error(code: int, data: object) -> None:
    with pytest.raises(MCPError):
        await skills_of({INDEX: MCPError(code, "no", data)})


@pytest.mark.requirement(125, "SK13")
@pytest.mark.parametrize("text", ["{", "[]", '{"skills": 3}', "null"])
async def test_malformed_index_is_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await skills_of({INDEX: text}) == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.requirement(125, "SK13")
async def test_unknown_and_incomplete_entries_are_skipped() -> None:
    odd = [entry("a", "other"), entry("b", url=""), entry("c", description=""), entry("Not Legal"), "text", {}, entry("d", "SKILL-MD")]
    assert [s.frontmatter.name for s in await skills_of({INDEX: index(*odd, entry("pdf"))})] == ["d", "pdf"]


@pytest.mark.requirement(126, "SK13")
async def test_body_is_fetched_once() -> None:
    server = Server({INDEX: index(entry()), "skill://pdf/SKILL.md": "body"})
    (skill,) = await MCPSkillsSource(session_provider=lambda: server).get_skills()
    assert server.asked == [INDEX]
    assert (await skill.get_content(), await skill.get_content()) == ("body", "body")
    assert server.asked == [INDEX, "skill://pdf/SKILL.md"]


@pytest.mark.requirement(126, "SK13")
async def test_empty_body_is_an_error() -> None:
    (skill,) = await skills_of({INDEX: index(entry()), "skill://pdf/SKILL.md": ""})
    with pytest.raises(ValueError, match="no text"):
        await skill.get_content()


@pytest.mark.requirement(126, "SK13")
async def test_resource_is_fetched_as_text_or_bytes() -> None:
    server = Server({INDEX: index(entry()), "skill://pdf/a.md": "text", "skill://pdf/b.bin": b"\x00\xff"})
    (skill,) = await MCPSkillsSource(server).get_skills()
    for name, expected in (("a.md", "text"), ("b.bin", b"\x00\xff")):
        resource = await skill.get_resource(name)
        assert resource is not None and await resource.read() == expected
    assert await skill.get_resource("absent.md") is None
    assert await skill.get_script("a.py") is None


class Lister(Server):
    """A server with the skills extension, whose one skill has the digests that `digested` had when its entry was last sent."""

    server_capabilities = SimpleNamespace(extensions={SKILLS_EXTENSION: {}})

    def __init__(self, table: Mapping[str, str], digested: Mapping[str, str], renewed: Mapping[str, str]) -> None:
        super().__init__({f"skill://pdf/{path}": text for path, text in table.items()})
        self.entries = [self.entry(digested), self.entry(renewed)]

    def entry(self, files: Mapping[str, str]) -> dict[str, object]:
        resources = [
            {"uri": f"skill://pdf/{quote(path)}", "digest": digest_of(text.encode()), "size": len(text)} for path, text in files.items()
        ]
        return {"uri": "skill://pdf/SKILL.md", "frontmatter": {"name": "pdf", "description": "d"}, "resources": resources}

    async def send_request(self, request: Any, result_type: object) -> dict[str, object]:
        self.asked.append(request.method)
        return {"skills": [self.entries[0]]} if request.method == "skills/list" else {"skill": self.entries[1]}


@pytest.mark.requirement(126, "SK13")
async def test_file_that_changed_is_used_after_its_entry_was_fetched_again() -> None:
    files, before = {"SKILL.md": "now", "a%20b.md": "new"}, {"SKILL.md": "then", "a b.md": "old"}
    server = Lister(files, before, {"SKILL.md": "now", "a b.md": "new"})
    (skill,) = await MCPSkillsSource(server).get_skills()
    assert await skill.get_content() == "now"
    assert server.asked == ["skills/list", "skill://pdf/SKILL.md", "skills/get", "skill://pdf/SKILL.md"]
    resource = await skill.get_resource("a b.md")
    assert resource is not None and await resource.read() == "new"
    assert await skill.get_resource("unlisted.md") is None
    assert server.asked[4:] == ["skill://pdf/a%20b.md"]


@pytest.mark.requirement(126, "SK13")
async def test_file_with_another_digest_than_listed_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    listed = {"SKILL.md": "listed", "a.md": "listed"}
    (skill,) = await MCPSkillsSource(Lister({"SKILL.md": "sent", "a.md": "sent"}, listed, listed)).get_skills()
    with pytest.raises(ValueError, match="another digest"):
        await skill.get_content()
    assert await skill.get_resource("a.md") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.requirement(126, "SK13")
async def test_listed_file_is_found_in_any_case() -> None:
    files = {"SKILL.md": "x", "Notes.md": "notes"}
    (skill,) = await MCPSkillsSource(Lister(files, files, files)).get_skills()
    resource = await skill.get_resource("notes.MD")
    assert resource is not None and await resource.read() == "notes"


@pytest.mark.requirement(126, "SK13")
async def test_file_larger_than_a_skill_is_refused() -> None:
    large = "x" * (MAX_SKILL_BYTES + 1)
    (skill,) = await skills_of({INDEX: index(entry()), "skill://pdf/SKILL.md": large, "skill://pdf/a.md": large})
    with pytest.raises(ValueError, match="too large"):
        await skill.get_content()
    assert await skill.get_resource("a.md") is None


@pytest.mark.requirement(126, "SK13")
async def test_malformed_frontmatter_drops_skill(caplog: pytest.LogCaptureFixture) -> None:
    server = Lister({"SKILL.md": "x"}, {"SKILL.md": "x"}, {})
    listed: Any = server.entries[0]["frontmatter"]
    listed |= {"allowed-tools": "Read Bash", "license": "MIT", "metadata": {"owner": "us"}}
    (skill,) = await MCPSkillsSource(server).get_skills()
    fields = skill.frontmatter
    assert (fields.allowed_tools, fields.license, fields.metadata) == ("Read Bash", "MIT", {"owner": "us"})
    listed["allowed-tools"] = ["Read", "Bash"]
    assert await MCPSkillsSource(server).get_skills() == []
    assert caplog.records == []  # a server could fill the log with malformed skills


@pytest.mark.requirement(126, "SK13")
def test_unlisted_file_has_the_type_of_its_extension() -> None:
    skill = unlisted_skill("skill://pdf/SKILL.md", "pdf", "d", "server:", "files")
    file = file_of(skill, "a b/logo.png")
    assert (file.segments, file.mime_type, file.is_dynamic) == (("skill://pdf/a%20b/logo.png",), "image/png", True)
    with pytest.raises(NotFound):
        file_of(skill, "../logo.png")


def encoded(text: str, levels: int) -> str:
    for _ in range(levels):
        text = quote(text, safe="")
    return text


@pytest.mark.requirement(126, "SK13")
@pytest.mark.parametrize(
    "name",
    ["", " ", "/etc/passwd", "\\x", "http://x/y", "file:x", "../x", "a/../../x", "a\\..\\x", "a?../x", "a#/../x", ".. /x", "a\x00", "a\nb"]
    + [encoded("../x", levels) for levels in (1, 2, 20, 31, 40)]
    + [encoded("http://x", 3), encoded("a\x07", 2)],
)
async def test_unsafe_name_is_refused_without_a_request(name: str) -> None:
    server = Server({INDEX: index(entry())})
    (skill,) = await MCPSkillsSource(server).get_skills()
    assert await skill.get_resource(name) is None
    assert server.asked == [INDEX]


def packed(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


MANIFEST = "---\nname: pdf\ndescription: d\n---\nbody"


async def from_archive(data: bytes, **more: Any) -> list[Skill]:
    return await skills_of({INDEX: index(entry(kind="archive", url="skill://pdf.zip", **more)), "skill://pdf.zip": data})


@pytest.mark.requirement(127, "SK13")
@pytest.mark.parametrize("folder", ["", "pdf/"])
async def test_archive_scripts_can_only_be_read(folder: str) -> None:
    files: dict[str, str | bytes] = {"SKILL.md": MANIFEST, "refs/a.md": "a", "run.py": "print()", "b.bin": b"\xff"}
    files |= {"x/y/deep.md": "d", "x/SKILL.md": "n"}
    data = packed({folder + name: content for name, content in files.items()})
    (skill,) = await from_archive(data, digest="sha256:" + hashlib.sha256(data).hexdigest())
    assert (await skill.get_content()).startswith(MANIFEST)
    offered = [name for name in files if await skill.get_resource(name) is not None]
    assert (offered, await skill.get_script("run.py")) == (["refs/a.md"], None)


BAD_ARCHIVES: dict[str, tuple[bytes, dict[str, object]]] = {
    "no zip": (b"\x1f\x8b tar", {}),
    "torn": (packed({"SKILL.md": MANIFEST})[:60], {}),
    "too many files": (packed({"SKILL.md": MANIFEST} | {f"{i}.md": "" for i in range(20)}), {}),
    "too large packed": (packed({"SKILL.md": MANIFEST}) + b"\x00" * 1_048_577, {}),
    "too large unpacked": (packed({"SKILL.md": MANIFEST, "a.md": "a" * 1_048_577}), {}),
    "leads out": (packed({"SKILL.md": MANIFEST, "../evil.md": "x"}), {}),
    "leads out backwards": (packed({"SKILL.md": MANIFEST, "a\\..\\..\\evil.md": "x"}), {}),
    "absolute": (packed({"SKILL.md": MANIFEST, "/etc/evil.md": "x"}), {}),
    "leads out encoded": (packed({"SKILL.md": MANIFEST, "%2e%2e/evil.md": "x"}), {}),
    "other name": (packed({"SKILL.md": MANIFEST.replace("pdf", "other")}), {}),
    "no manifest": (packed({"README.md": "x"}), {}),
    "bad digest": (packed({"SKILL.md": MANIFEST}), {"digest": "md5:abc"}),
    "other digest": (packed({"SKILL.md": MANIFEST}), {"digest": "sha256:" + "0" * 64}),
}


@pytest.mark.requirement(127, "SK13")
@pytest.mark.parametrize("case", BAD_ARCHIVES)
async def test_invalid_archive_is_logged(case: str, caplog: pytest.LogCaptureFixture) -> None:
    data, more = BAD_ARCHIVES[case]
    assert await from_archive(data, **more) == []
    assert "left out" in caplog.text


@pytest.mark.requirement("SK13")
@pytest.mark.parametrize("both", [True, False])
def test_exactly_one_connection_is_required(both: bool) -> None:
    server = Server({})
    with pytest.raises(ValueError, match="exactly one"):
        MCPSkillsSource(server if both else None, session_provider=(lambda: server) if both else None)
