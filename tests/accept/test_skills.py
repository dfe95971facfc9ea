"""Skills as readers that are not ours see them: agent-framework-core's `MCPSkillsSource` and the MCP Inspector, over hard cases."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.accept.clients import HOME, TIMEOUT_SECONDS, Inspector, are_installed
from tests.fakes.running import ROOT, gateway_http
from tests.skills.on_disk import write_skill

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CLIENT = Path(__file__).with_name("skills_client.py")
LISTED = {"crlf", "bom", "folded", "unicode-text", "other-name", "many-files", "dates", "twice"}
"""The hard cases that the skills extension lists."""


def write_hard_cases(folder: Path) -> None:
    """Write skills with the irregularities of published skills, and one invalid skill without frontmatter."""
    (write_skill(folder / "crlf") / "SKILL.md").write_bytes(b"---\r\nname: crlf\r\ndescription: Line ends.\r\n---\r\n# A\r\n\r\nb\r\n")
    (write_skill(folder / "bom") / "SKILL.md").write_bytes(b"\xef\xbb\xbf---\nname: bom\ndescription: A mark.\n---\nbody\n")
    write_skill(folder / "folded", description=">-\n  Two lines\n  as one.")
    write_skill(folder / "unicode-text", description="Schreibt \u00dcber \u2013 \u4f1a\u8b70 \U0001f600.", body="\u00fc\u4f1a\U0001f600\n")
    write_skill(folder / "folder-name", name="other-name")
    odd = {"a b/[slug].md": "x", "\u4f1a\u8b70.md": "y", "logo.png": b"\x89PNG\xff\x00", "empty.txt": ""}
    write_skill(folder / "many-files", files=odd)
    write_skill(folder / "dates", extra="metadata:\n  released: 2026-01-02\n  on: yes\n  build: 0123\n")
    write_skill(folder / "one" / "twice", description="The first.")
    write_skill(folder / "two" / "twice", description="The second.")
    write_skill(folder / "Loud Name", name="Loud Name")  # for tools only
    (write_skill(folder / "refused") / "SKILL.md").write_text("no frontmatter")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """The bundled skills and the hard cases: as folders, and as the skills of a server."""
    folder = tmp_path_factory.mktemp("skills")
    write_hard_cases(folder / "hard")
    with ExitStack() as stack:
        config: dict[str, Any] = {"expose": {"skills": [str(ROOT / "skills"), str(folder / "hard")]}}
        direct = stack.enter_context(gateway_http(folder, config, "direct"))
        through = stack.enter_context(gateway_http(folder, {"mcpServers": {"team": {"type": "http", "url": direct}}}, "through"))
        yield {"of folders": direct, "of a server": through}


@pytest.mark.requirement(128)
@pytest.mark.parametrize("where", ["of folders", "of a server"])
@pytest.mark.parametrize("version", ["1.9", "1.23"])
def test_agent_framework_lists_and_loads_every_listed_skill(served: dict[str, str], version: str, where: str) -> None:
    python = HOME / f"agent-framework-{version}/bin/python"
    if not python.exists():
        pytest.skip(f"agent-framework {version} is not installed in {HOME}; run `make accept`")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv = [str(python), str(CLIENT), served[where]]
    done = subprocess.run(argv, cwd=CLIENT.parent, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    bundled = {folder.name for folder in (ROOT / "skills").iterdir()}
    assert sorted(name for name, _ in loaded) == sorted([*LISTED, *bundled, "twice"])
    texts = {text[0]: text[1] for text in loaded}
    for name in bundled:
        assert texts[name].startswith((ROOT / "skills" / name / "SKILL.md").read_text(encoding="utf-8"))
    assert "\r\n" in texts["crlf"] and "\U0001f600" in texts["unicode-text"]


@pytest.mark.requirement(129)
@pytest.mark.parametrize("where", ["of folders", "of a server"])
def test_inspector_lists_every_skill_and_verifies_every_file(served: dict[str, str], where: str, tmp_path: Path) -> None:
    if not are_installed():
        pytest.skip("the Inspector is not installed; run `make accept`")
    target = {"type": "http", "url": served[where]}
    ended = Inspector(tmp_path, target, "modern").run("skills/list", "--verify", "--require-digests")
    reports = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0, ended.out
    assert {report["name"] for report in reports} == LISTED | {folder.name for folder in (ROOT / "skills").iterdir()}
    assert {file["status"] for report in reports for file in report["files"]} == {"verified"}
