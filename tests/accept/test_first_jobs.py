"""The first jobs of a new user, done as the documentation says: the installed `moongate` command in an empty folder, the default state
folder, published servers behind it and published clients before it.

Chained gateways and an IDE that starts the gateway have files of their own (`test_chained_gateways`, `test_codex`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.accept.clients import HOME, NODE, Era, Inspector, Target, TypeScript, text_of
from tests.accept.test_servers import are_installed, node_server, python_server
from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, free_port, wait_until_ready

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COMMAND = Path(sys.executable).with_name("moongate")
START_SECONDS = 60.0


@dataclass
class User:
    """A person with a home folder, a project folder in it, and the installed command."""

    home: Path
    env: Mapping[str, str]
    port: int = field(default_factory=free_port)

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def http(self, **more: Any) -> Target:
        """Return the entry with which a client reaches the gateway over HTTP."""
        return {"type": "http", "url": self.url, **more}

    def stdio(self) -> Target:
        """Return the entry with which a client starts the gateway over stdio."""
        return {"command": str(COMMAND), "args": ["run", "--stdio", "-c", str(self.project / "gateway.json")], "env": dict(self.env)}

    def write(self, **document: Any) -> None:
        """Write `gateway.json` with a port that no other test uses."""
        document["server"] = {"http": {"port": self.port, "drainSeconds": 1}, **document.get("server", {})}
        (self.project / "gateway.json").write_text(json.dumps(document, indent=2))

    def runs(self, *words: str, stdin: str = "", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one `moongate` command until it exits."""
        return subprocess.run(
            [COMMAND, *words],
            cwd=self.project,
            env={**self.env, **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def data(self, *words: str) -> Any:
        """Return the JSON that a command prints with `--json`."""
        done = self.runs(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def gateway(self) -> Generator[subprocess.Popen[bytes]]:
        """Run `moongate run` in the project until the block ends."""
        log = self.home / "run.log"
        with log.open("a") as stream:
            process = subprocess.Popen([COMMAND, "run"], cwd=self.project, env=self.env, stdout=subprocess.DEVNULL, stderr=stream)
        try:
            wait_until_ready(process, f"http://127.0.0.1:{self.port}/ready", log)
            yield process
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def user(tmp_path: Path) -> User:
    if not are_installed():
        pytest.skip(f"the clients and servers are not installed in {HOME}; run `make accept`")
    (tmp_path / "project").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOONGATE_", "OPENAI_", "XDG_"))}
    path = os.pathsep.join([str(with_npx(tmp_path)), str(COMMAND.parent), os.environ["PATH"]])
    return User(tmp_path, {**kept, "HOME": str(tmp_path), "COLUMNS": "80", "PATH": path})


def with_npx(home: Path) -> Path:
    """A folder for PATH with `npx`, which finds the packages of `setup.sh` in the project, as after `npm install`."""
    (home / "project/node_modules").symlink_to(HOME / "js/node_modules")
    folder = home / "bin"
    folder.mkdir()
    npx = NODE.resolve().parents[1] / "lib/node_modules/npm/bin/npx-cli.js"
    (folder / "npx").write_text(f'#!/bin/sh\nnpm_config_offline=true exec {shlex.quote(str(NODE))} {shlex.quote(str(npx))} "$@"\n')
    (folder / "npx").chmod(0o755)
    (folder / "node").symlink_to(NODE)
    return folder


def by_npx(package: str, *arguments: str) -> dict[str, Any]:
    """Return an entry as the servers' READMEs show it."""
    return {"command": "npx", "args": ["-y", f"@modelcontextprotocol/{package}", *arguments]}


def files_of(user: User) -> dict[str, Any]:
    """The published filesystem server over two folders of the project."""
    for name, text in (("docs", "High water is at noon."), ("private", "4711")):
        (user.project / name).mkdir()
        (user.project / name / "note.txt").write_text(text)
    return node_server("filesystem", str(user.project))


def test_job_three_published_servers_from_a_pasted_file(user: User, era: Era) -> None:
    files_of(user)
    here = {"files": by_npx("server-filesystem", "."), "memory": by_npx("server-memory")}
    user.write(mcpServers={**here, "time": python_server("time")})
    assert user.runs("doctor").returncode == 0
    with user.gateway():
        rows = user.data("list", "servers")["servers"]
        assert {row["name"]: row["state"] for row in rows} == {"files": "ready", "time": "ready", "memory": "ready"}
        for target in (user.http(), user.stdio()):
            client = Inspector(user.home, target, era)
            assert {name.split("__")[0] for name in client.list_tools()} >= {"files", "time", "memory"}
            read = client.call("files__read_text_file", {"path": "docs/note.txt"})
            assert "High water is at noon." in text_of(read)
        shown = user.runs("call", "time__get_current_time", "timezone=Europe/Warsaw")
        assert (shown.returncode, "Europe/Warsaw" in shown.stdout) == (0, True)


def test_job_restrict_paths_and_find_out_why_a_call_was_refused(user: User, era: Era) -> None:
    within = {"within": str(user.project / "docs")}
    policies = {"files": {"tools": {"allow": ["read_text_file", "list_directory"]}, "arguments": {"*": {"path": within}}}}
    user.write(mcpServers={"files": files_of(user)}, policies=policies)
    assert user.runs("policy", "lint").returncode == 0
    allowed, refused = str(user.project / "docs/note.txt"), str(user.project / "private/note.txt")
    with user.gateway():
        inside, outside, climbing = TypeScript(user.home, user.http(), era).run(
            [["call", "files__read_text_file", {"path": path}] for path in (allowed, refused, f"{user.project}/docs/../private/note.txt")]
        )
        assert "High water" in text_of(inside)
        for result in (outside, climbing):
            assert result["isError"] and "4711" not in text_of(result) and "path" in text_of(result)
        by_hand = user.runs("call", "files__read_text_file", f"path={refused}")
        assert (by_hand.returncode, "4711" in by_hand.stdout) == (6, False)
        explained = user.runs("policy", "explain", "files__read_text_file", f"path={refused}")
        assert explained.returncode == 6
        assert "policies.files.arguments" in explained.stdout + explained.stderr
        entries = [str(entry) for entry in user.data("audit", "--server", "files")["entries"] if entry["kind"] == "call.refused"]
        assert any("files__read_text_file" in entry and "arguments.*.path" in entry for entry in entries)
        hidden = user.runs("call", "files__write_file", f"path={user.project}/docs/new.txt", "content=x")
        assert (hidden.returncode, (user.project / "docs/new.txt").exists()) == (1, False)
        assert "moongate policy explain files__write_file" in hidden.stderr
        assert "tools.allow" in user.runs("policy", "explain", "files__write_file").stdout


def test_job_approve_a_call_from_a_second_terminal(user: User, era: Era) -> None:
    policies = {"files": {"approval": {"always": ["write_file"], "by": "operator"}}}
    user.write(mcpServers={"files": files_of(user)}, policies=policies)
    written = user.project / "docs/new.txt"
    with user.gateway():
        for word, is_written in (("deny", False), ("approve", True)):
            arguments = {"path": str(written), "content": "new"}
            with ThreadPoolExecutor() as pool:
                called = pool.submit(TypeScript(user.home, user.http(silent=True), era).call, "files__write_file", arguments)
                waiting = until(lambda: user.data("approvals", "list")["approvals"])
                shown = "".join(re.split(r"\n?│?\s+", user.runs("approvals", "show", waiting[0]["id"][:6]).stdout))
                assert "write_file" in shown and str(written) in shown
                assert not written.exists()
                assert user.runs("approvals", word, waiting[0]["id"][:6]).returncode == 0
                result = called.result(60)
            assert (result.get("isError", False), written.exists()) == (not is_written, is_written)


def test_job_own_agent_skill_and_workflow(user: User, era: Era) -> None:
    (user.project / "agents").mkdir()
    skill = user.project / "skills/tides"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tides\ndescription: How to read a tide table.\n---\nHigh water comes twice a day.\n")
    (user.project / "agents/pilot.agent.md").write_text(
        "---\nname: pilot\ndescription: Answers about tides.\ntools: [files/read_text_file]\nskills: [tides]\n---\nRead the note first.\n"
    )
    (user.project / "agents/plan.workflow.yaml").write_text(
        "name: plan\ndescription: Plans a passage.\ninput:\n  port: {type: string}\nexecutors:\n"
        "  ask: {agent: pilot, prompt: 'When is high water in {{port}}?'}\n"
        "  load: {tool: skill/load_skill, arguments: {skill_name: tides}}\n"
        "start: ask\nedges:\n  - {from: ask, to: load}\noutput-from: [ask, load]\n"
    )
    files = files_of(user)
    user.write(mcpServers={"files": files}, expose={"agents": ["./agents"], "skills": ["./skills"]})
    read = {"name": "files__read_text_file", "arguments": {"path": str(user.project / "docs/note.txt")}}
    turns: list[dict[str, Any]] = [
        {"when": {"last_role": "user"}, "tool_calls": [read], "repeat": True},
        {"when": {"last_role": "tool"}, "text": "I read: {last_tool}", "repeat": True},
    ]
    with openai_server(*turns) as model:
        user.env = {**user.env, "OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "unused"}
        doctor = user.runs("doctor")
        assert doctor.returncode == 0, doctor.stdout
        with user.gateway():
            for target in (user.http(), user.stdio()):
                client = Inspector(user.home, target, era)
                assert {"agent__pilot", "workflow__plan", "load_skill"} <= set(client.list_tools())
                assert "High water is at noon." in text_of(client.call("agent__pilot", {"task": "When?"}))
                assert "twice a day" in text_of(client.call("load_skill", {"skill_name": "tides"}))
                planned = json.dumps(client.call("workflow__plan", {"port": "Gdynia"}))
                assert "High water is at noon." in planned and "twice a day" in planned


def test_job_kill_the_gateway_and_resume(user: User) -> None:
    (user.project / "agents").mkdir()
    (user.project / "agents/release.workflow.yaml").write_text(
        "name: release\ndescription: Writes a note once somebody agreed.\nexecutors:\n"
        "  before: {tool: files/write_file, arguments: {path: '" + str(user.project / "docs/before.txt") + "', content: started}}\n"
        "  agree: {ask: 'Release it?', output: {agreed: {type: boolean}}}\n"
        "  after: {tool: files/write_file, arguments: {path: '"
        + str(user.project / "docs/after.txt")
        + "', content: 'agreed: {{agree.agreed}}'}}\n"
        "start: before\nedges:\n  - {from: before, to: agree}\n  - {from: agree, to: after}\noutput: after\ntask: required\n"
    )
    user.write(mcpServers={"files": files_of(user)}, expose={"agents": ["./agents"]})
    with ThreadPoolExecutor() as pool:
        with user.gateway() as process:
            left = pool.submit(TypeScript(user.home, user.http(silent=True), "legacy").run, [["task", "workflow__release", {}]])
            waiting = until(lambda: user.data("approvals", "list")["approvals"])
            task = user.data("tasks", "list")["tasks"][0]["id"]
            first = (user.project / "docs/before.txt").stat().st_mtime_ns
            process.send_signal(signal.SIGKILL)
            process.wait(20)
        with pytest.raises(AssertionError):
            left.result(60)
    assert "Release it?" in user.runs("approvals", "show", waiting[0]["id"][:6]).stdout
    with user.gateway():
        assert user.runs("approvals", "answer", waiting[0]["id"][:6], "agreed=true").returncode == 0
        until(lambda: user.data("tasks", "show", task)["status"] == "completed")
    assert (user.project / "docs/after.txt").read_text() == "agreed: true"
    assert (user.project / "docs/before.txt").stat().st_mtime_ns == first, "a step that had ended ran again"


def test_job_scoped_key(user: User, era: Era) -> None:
    user.write(mcpServers={"files": files_of(user), "time": python_server("time")})
    key = user.data("keys", "add", "reader", "--scope", "time/*")["key"]
    with user.gateway():
        client = TypeScript(user.home, user.http(headers={"Authorization": f"Bearer {key}"}), era)
        names, now = client.run([["list"], ["call", "time__get_current_time", {"timezone": "UTC"}]])
        assert {name.split("__")[0] for name in names if "__" in name} == {"time"}
        assert "UTC" in text_of(now)
        by_key = user.runs("call", "time__get_current_time", "timezone=UTC", env={"MOONGATE_API_KEY": key})
        assert (by_key.returncode, user.url in by_key.stderr) == (0, True), by_key.stderr
        denied = user.runs("call", "files__list_directory", f"path={user.project}", env={"MOONGATE_API_KEY": key})
        assert (denied.returncode, denied.stdout) == (6, ""), denied.stderr
        assert user.runs("call", "time__get_current_time", "timezone=UTC").returncode == 3


def test_job_first_agent_of_the_library(user: User) -> None:
    page = (ROOT / "docs/library.md").read_text()
    (user.project / "notes.txt").write_text("High water is at noon.")
    program = user.project / "first.py"
    program.write_text(page.partition("```python\n")[2].partition("```")[0])
    read = {"name": "read_text_file", "arguments": {"path": "notes.txt"}}
    turns: list[dict[str, Any]] = [
        {"when": {"last_role": "user"}, "tool_calls": [read]},
        {"when": {"last_role": "tool"}, "text": "I read: {last_tool}"},
    ]
    with openai_server(*turns) as model:
        env = {**user.env, "OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "unused"}
        done = subprocess.run(
            [sys.executable, str(program)], cwd=user.project, env=env, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "'read_text_file'" in done.stdout and "[FILE] notes.txt" in done.stdout
    assert done.stdout.rstrip().endswith("I read: High water is at noon."), done.stdout


def until(value: Any) -> Any:
    """Call a function until its result is true, for at most a minute, and return the result."""
    deadline = time.monotonic() + START_SECONDS
    while not (found := value()):
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.2)
    return found
