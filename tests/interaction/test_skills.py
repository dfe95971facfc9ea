"""Skills over the wire: one index on every surface, and a gateway that publishes another's skills (SEP-2640)."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.skills.index import build_index
from gateway.skills.scripts import set_digest
from tests.fakes.inside import gateway_inside
from tests.skills.on_disk import write_skill

RESERVED = "io.modelcontextprotocol"
EXTENSION = f"{RESERVED}/skills"


async def request(url: str, method: str, **params: Any) -> Any:
    """One modern request, written by hand; the result or the error."""
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    if name := params.get("uri") or params.get("name"):
        headers["Mcp-Name"] = name
    meta: dict[str, Any] = {f"{RESERVED}/protocolVersion": "2026-07-28", f"{RESERVED}/clientCapabilities": {}}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    async with httpx2.AsyncClient(timeout=20, verify=False) as client:
        text = (await client.post(url, headers=headers, json=body)).text
    answer = json.loads(next((line[6:] for line in text.splitlines() if line.startswith("data: {")), text))
    return answer.get("result", answer.get("error"))


async def every_entry(url: str) -> list[dict[str, Any]]:
    page = await request(url, "skills/list")
    found = list(page["skills"])
    while cursor := page.get("nextCursor"):
        page = await request(url, "skills/list", cursor=cursor)
        found += page["skills"]
    return found


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A gateway with skills of its own, before one with others."""
    folder = tmp_path_factory.mktemp("skills")
    write_skill(folder / "inner" / "pdf", files={"references/a b.md": "text", "scripts/run.py": "print()", "logo.png": b"\x89PNG\xff"})
    write_skill(folder / "inner" / "same", description="The inner one.")
    write_skill(folder / "outer" / "same", description="The outer one.")
    with ExitStack() as stack:
        inner = stack.enter_context(gateway_inside(folder, {"expose": {"skills": [str(folder / "inner")]}}, "behind")).url
        config = {"expose": {"skills": [str(folder / "outer")]}, "mcpServers": {"team": {"type": "http", "url": inner}}}
        yield stack.enter_context(gateway_inside(folder, config, "front")).url


async def test_own_and_server_skills_are_listed_with_their_origin(chain: str) -> None:
    found = {entry["uri"]: entry for entry in await every_entry(chain)}
    assert set(found) == {"skill://same/SKILL.md", "skill://team/pdf/SKILL.md", "skill://team/same/SKILL.md"}
    assert found["skill://team/pdf/SKILL.md"]["_meta"] == {"dev.moongate/origin": "team"}
    assert found["skill://team/same/SKILL.md"]["frontmatter"]["description"] == "The inner one."
    discovered = await request(chain, "server/discover")
    assert discovered["capabilities"]["extensions"][EXTENSION] == {"directoryRead": True}


@pytest.mark.requirement(129)
async def test_every_published_skill_file_is_read_with_its_listed_digest(chain: str) -> None:
    seen = 0
    for entry in await every_entry(chain):
        again = (await request(chain, "skills/get", uri=entry["uri"]))["skill"]
        assert again == entry
        for file in entry["resources"]:
            (content,) = (await request(chain, "resources/read", uri=file["uri"]))["contents"]
            data = base64.b64decode(content["blob"]) if "blob" in content else content["text"].encode()
            assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (file["digest"], file["size"])
            seen += 1
    assert seen == 6


async def test_folders_of_a_published_skill_are_listed(chain: str) -> None:
    top = await request(chain, "resources/directory/read", uri="skill://team/pdf")
    assert {(child["uri"], child.get("mimeType")) for child in top["resources"]} == {
        ("skill://team/pdf/SKILL.md", "text/markdown"),
        ("skill://team/pdf/logo.png", "image/png"),
        ("skill://team/pdf/references", "inode/directory"),
        ("skill://team/pdf/scripts", "inode/directory"),
    }
    (child,) = (await request(chain, "resources/directory/read", uri="skill://team/pdf/references"))["resources"]
    assert child["uri"] == "skill://team/pdf/references/a%20b.md"


UNKNOWN = ["skill://team/none/SKILL.md", "skill://none/SKILL.md", "skill://team/pdf", "skill://team/pdf/logo.png", "file:///etc/passwd"]


def assert_unknown(kind: str, error: dict[str, Any]) -> None:
    """The error names what is unknown in its text and its data."""
    name = error["data"]["uri"]
    assert error == {"code": -32602, "message": f"Unknown {kind}: {name}", "data": {"uri": name}}


@pytest.mark.parametrize("uri", UNKNOWN)
async def test_unknown_skill_is_invalid_params_on_every_surface(chain: str, uri: str) -> None:
    assert_unknown("skill", await request(chain, "skills/get", uri=uri))


async def test_foreign_cursor_is_invalid_params(chain: str) -> None:
    for cursor in ("x", base64.b64encode(b'["gone", null]').decode().rstrip("="), base64.b64encode(b'["team", "!"]').decode().rstrip("=")):
        assert_unknown("cursor", await request(chain, "skills/list", cursor=cursor))


async def test_unknown_folder_of_a_skill_is_invalid_params(chain: str) -> None:
    for uri in ("skill://team/none", "skill://team/pdf/none"):
        assert_unknown("directory", await request(chain, "resources/directory/read", uri=uri))


async def test_server_that_is_down_hides_no_other_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "own" / "pdf")
    config = {"expose": {"skills": [str(tmp_path / "own")]}, "mcpServers": {"gone": {"type": "http", "url": "http://127.0.0.1:9/mcp"}}}
    with gateway_inside(tmp_path, config) as front:
        assert [entry["uri"] for entry in await every_entry(front.url)] == ["skill://pdf/SKILL.md"]


@pytest.mark.requirement(132, 133)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")
async def test_granted_script_runs_and_waits_for_approval_unless_never(tmp_path: Path) -> None:
    write_skill(tmp_path / "own" / "pdf", files={"run.py": "import sys\nprint('ran', *sys.argv[1:])\n"})
    digest = set_digest(build_index([str(tmp_path / "own")]).named("pdf")[0])
    scripts = {"enabled": True, "allow": [{"skill": "pdf", "script": "run.py", "digest": digest}]}
    arguments = {"skill_name": "pdf", "script_name": "run.py", "args": ["a b"]}
    for approval, text in (("never", "ran a b\n"), ("always", "approved")):
        config: dict[str, Any] = {"expose": {"skills": [str(tmp_path / "own")]}, "server": {"askTimeoutSeconds": 0.5}}
        with gateway_inside(tmp_path, {**config, "skills": {"scripts": {**scripts, "approval": approval}}}, approval) as front:
            url = front.url
            listed = {tool["name"] for tool in (await request(url, "tools/list"))["tools"]}
            if "run_skill_script" not in listed:
                pytest.skip("there is no sandbox here")
            result = await request(url, "tools/call", name="run_skill_script", arguments=arguments)
        assert bool(result.get("isError")) == (approval == "always")
        assert text in result["content"][0]["text"]
