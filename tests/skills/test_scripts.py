"""`run_skill_script`: grants, arguments and results."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config.policies import ApprovalLists, SourcePolicy
from gateway.config.skill_settings import ScriptGrant, ScriptSettings
from gateway.errors import SkillError
from gateway.json_types import JsonValue
from gateway.policy.approval_policy import judge_approval, with_script_approval
from gateway.skills.index import build_index
from gateway.skills.sandbox.sandbox import Limits
from gateway.skills.scripts import ScriptRunner, command_line, interpreter_of, set_digest
from gateway.skills.source import SkillSource
from tests.skills.on_disk import call, write_skill
from tests.skills.sandboxes import RestrictedSandbox

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")

ECHO = "import sys\nprint(sys.argv[1:])\n"


def granted(root: Path, skill: str, *scripts: str) -> list[ScriptGrant]:
    digest = set_digest(build_index([str(root)]).named(skill)[0])
    return [ScriptGrant(skill=skill, script=script, digest=digest) for script in scripts]


@asynccontextmanager
async def serving(root: Path, allow: list[ScriptGrant], **settings: Any) -> AsyncGenerator[SkillSource]:
    runner = ScriptRunner(ScriptSettings(enabled=True, allow=allow, **settings), {"TOKEN": "t", "OTHER": "o"})
    async with SkillSource([root], refresh_seconds=0, scripts=runner) as source:
        if runner.problem:
            pytest.skip(runner.problem)
        yield source


async def names(source: SkillSource) -> list[str]:
    return [tool.definition.name for tool in await source.tools()]


@linux
@pytest.mark.requirement(132, "SK10")
@pytest.mark.parametrize(
    ("args", "seen"),
    [
        (["a b", "--x", "$(id); `id`"], "['a b', '--x', '$(id); `id`']"),
        ({"length": 24, "all": True, "none": None, "no": False, "tag": ["a", 2], "o": {"k": "v"}}, None),
        (None, "[]"),
    ],
)
async def test_granted_script_runs_without_shell(tmp_path: Path, args: JsonValue, seen: str | None) -> None:
    write_skill(tmp_path / "pdf", files={"scripts/echo.py": ECHO})
    expected = seen or str(["--length", "24", "--all", "--tag", "a", "--tag", "2", "--o", '{"k": "v"}'])
    async with serving(tmp_path, granted(tmp_path, "pdf", "scripts/echo.py")) as source:
        done = await call(source, "run_skill_script", skill_name="pdf", script_name="scripts/echo.py", args=args)
    assert (done.is_error, done.structured["stdout"].strip(), done.structured["exitCode"]) == (False, expected, 0)
    assert done.structured["digest"].startswith("sha256:")


@linux
@pytest.mark.requirement(132)
async def test_script_reads_but_cannot_change_its_skill(tmp_path: Path) -> None:
    script = "import helper\nprint(open('references/a.txt').read(), helper.VALUE)\nopen('out.txt', 'w').write('x')\n"
    write_skill(tmp_path / "pdf", files={"scripts/run.py": script, "scripts/helper.py": "VALUE = 7", "references/a.txt": "text"})
    async with serving(tmp_path, granted(tmp_path, "pdf", "scripts/run.py")) as source:
        done = await call(source, "run_skill_script", skill_name="PDF", script_name="./scripts/run.py")
    assert done.structured["stdout"] == "text 7\n"
    assert not (tmp_path / "pdf" / "out.txt").exists()


@linux
@pytest.mark.requirement(132)
async def test_failed_script_returns_end_of_stderr(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"bad.sh": "#!/bin/sh\necho out\necho broken >&2\nexit 3\n", "slow.py": "import time\ntime.sleep(30)\n"}
    write_skill(tmp_path / "pdf", files=files)
    async with serving(tmp_path, granted(tmp_path, "pdf", "bad.sh", "slow.py"), timeout_seconds=0.5) as source:
        bad = await call(source, "run_skill_script", skill_name="pdf", script_name="bad.sh")
        slow = await call(source, "run_skill_script", skill_name="pdf", script_name="slow.py")
    assert bad.is_error and "exit code 3" in bad.as_text() and "broken" in bad.as_text()
    assert (bad.structured["stdout"], bad.structured["stderr"]) == ("out\n", "broken\n")
    assert slow.is_error and slow.structured["timedOut"] and "too long" in slow.as_text()


@linux
async def test_script_that_writes_too_much_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import time\nfor n in range(100): open(f'x{n}', 'wb').write(b'x' * 100_000)\ntime.sleep(20)\n"
    write_skill(tmp_path / "pdf", files={"write.py": script})
    runner = ScriptRunner(ScriptSettings(enabled=True, allow=granted(tmp_path, "pdf", "write.py"), disk_mb=1), {})
    monkeypatch.setattr(runner, "_sandbox", RestrictedSandbox(Limits(disk_bytes=1_000_000), "unshare"))
    async with SkillSource([tmp_path], refresh_seconds=0, scripts=runner) as source:
        if runner.problem:
            pytest.skip(runner.problem)
        done = await call(source, "run_skill_script", skill_name="pdf", script_name="write.py")
    assert done.is_error and "`skills.scripts.diskMb`" in done.as_text()
    assert (done.structured["diskExceeded"], done.structured["timedOut"]) == (True, False)


@pytest.mark.parametrize("path", ["/", "//", "/usr/..", "relative", "~/data"])
def test_invalid_read_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not an absolute path of a file or folder below the root"):
        ScriptSettings(read_paths=[path])


@linux
async def test_script_gets_only_named_variables(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"env.py": "import os\nprint(os.environ.get('TOKEN'), os.environ.get('OTHER'))\n"})
    async with serving(tmp_path, granted(tmp_path, "pdf", "env.py"), environment=["TOKEN", "ABSENT"]) as source:
        done = await call(source, "run_skill_script", skill_name="pdf", script_name="env.py")
    assert done.structured["stdout"] == "t None\n"


@linux
async def test_changed_skill_disables_its_scripts(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"echo.py": ECHO, "data.txt": "1"})
    async with serving(tmp_path, granted(tmp_path, "pdf", "echo.py")) as source:
        assert not (await call(source, "run_skill_script", skill_name="pdf", script_name="echo.py")).is_error
        (tmp_path / "pdf" / "data.txt").write_text("2")
        done = await call(source, "run_skill_script", skill_name="pdf", script_name="echo.py")
    assert done.is_error and "changed since it was granted" in done.as_text()


@linux
async def test_ungranted_or_missing_script_does_not_run(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"echo.py": ECHO, "other.py": ECHO, "notes.md": "n"})
    async with serving(tmp_path, granted(tmp_path, "pdf", "echo.py")) as source:
        for script, said in (("other.py", "not granted"), ("ecko.py", "'echo.py'"), ("notes.md", "no script"), ("../x.py", "no script")):
            done = await call(source, "run_skill_script", skill_name="pdf", script_name=script)
            assert done.is_error and said in done.as_text()


@pytest.mark.parametrize("settings", [None, ScriptSettings(), ScriptSettings(enabled=True)])
async def test_tool_is_hidden_without_runnable_scripts(tmp_path: Path, settings: ScriptSettings | None) -> None:
    write_skill(tmp_path / "pdf", files={"echo.py": ECHO})
    runner = None if settings is None else ScriptRunner(settings, {})
    async with SkillSource([tmp_path], refresh_seconds=0, scripts=runner) as source:
        assert "run_skill_script" not in await names(source)


@linux
async def test_tool_is_offered_with_a_grant(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"echo.py": ECHO})
    async with serving(tmp_path, granted(tmp_path, "pdf", "echo.py")) as source:
        assert await names(source) == ["search_skills", "load_skill", "read_skill_resource", "run_skill_script"]


LISTS = SourcePolicy(approval=ApprovalLists(always=["load_*"]))


@pytest.mark.requirement(133, "SK11")
@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        (SourcePolicy(), ScriptSettings(enabled=True), {"run_skill_script": True, "load_skill": False, "read_skill_resource": False}),
        (SourcePolicy(), ScriptSettings(enabled=True, approval="never"), {"run_skill_script": False}),
        (SourcePolicy(approval="always"), ScriptSettings(enabled=True), {"run_skill_script": True, "load_skill": True}),
        (LISTS, ScriptSettings(enabled=True), {"run_skill_script": True, "load_skill": True}),
    ],
)
def test_only_scripts_need_approval_by_default(
    policy: SourcePolicy, settings: ScriptSettings, expected: dict[str, bool]
) -> None:
    rules = with_script_approval(policy, settings)
    assert {name: judge_approval(name, rules.approval) for name in expected} == expected


@pytest.mark.parametrize(
    "args", ["text", 3, [1], ["a\x00b"], {"bad key": 1}, {"--x": 1}, {"": 1}, ["x" * 200_000], ["\ud800"], {"a": "\x00"}]
)
def test_unsafe_arguments_are_refused(args: JsonValue) -> None:
    with pytest.raises(SkillError, match="args"):
        command_line(args)


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("run.py", b"print()", "python"),
        ("run", b"#!/usr/bin/env python3\n", "python"),
        ("run", b"#!/usr/bin/env -S python3.12 -c 'evil'\n", "python"),
        ("run", b"#!/usr/bin/env FOO=1 bash\r\n", "bash"),
        ("run.py", b"#!/bin/bash -e\n", "bash"),
        ("run.mjs", b"", "node"),
        ("run.SH", b"echo", "sh"),
    ],
)
def test_shebang_then_extension_select_interpreter(path: str, data: bytes, expected: str) -> None:
    assert interpreter_of(path, data) == expected


@pytest.mark.parametrize(
    ("path", "data"), [("run.exe", b"MZ"), ("run", b"#!/opt/evil\n"), ("run.py", b"#!/usr/bin/env -S\n"), ("x.ts", b"")]
)
def test_script_without_known_interpreter_is_refused(path: str, data: bytes) -> None:
    with pytest.raises(SkillError, match=r"interpreter|is not one of"):
        interpreter_of(path, data)
