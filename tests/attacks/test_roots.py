"""Folders for models: no folder lets a model change the programs of the gateway or read its secrets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load_config
from gateway.gate.root_rules import RootRules
from gateway.policy.root_policy import Access
from tests.agents.test_tool import agent_file
from tests.cli.processes import moongate
from tests.cli.test_reload import File, Running, gateway, until
from tests.fakes.openai_server import openai_server

pytestmark = [pytest.mark.attack(37), pytest.mark.timeout(90)]

WRITES: list[Access] = ["write", "delete"]


def configured(folder: Path) -> Path:
    """Write a configuration that names a file or folder of every kind, and return its path."""
    for name in ("agents", "skills", "locks", "state", "data", "work", "bin", "tools/deep"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tools" / "deep" / "server.py").write_text("")
    (folder / "bin" / "secret-program").write_text("#!/bin/sh\n")
    document = {
        "mcpServers": {
            "one": {"command": sys.executable, "args": ["tools/deep/server.py"]},
            "two": {"command": sys.executable, "args": ["-m", "pkg_two.server"], "cwd": str(folder / "work")},
        },
        "secrets": {"token": {"command": ["./bin/secret-program"]}},
        "expose": {"agents": ["agents"], "skills": ["skills"], "functions": ["chores.daily"]},
        "skills": {"objects": ["made_skills:all"]},
        "agents": {"middleware": ["layers:Layer"]},
        "server": {"lockFile": "locks/pins.json"},
        "storage": {"dir": "state"},
    }
    path = folder / "gateway.json"
    path.write_text(json.dumps(document))
    return path


REFUSED = {
    ".": "the configuration file",
    "..": "the configuration file",
    "data/../.": "the configuration file",
    "locks": "the lock file",
    "LOCKS/new/../../locks": "the lock file",
    "state": "the state folder",
    "state/results": "the state folder",
    "agents": "agents and workflows",
    "agents/notes": "agents and workflows",
    "skills/pdf/references": "skills",
    "chores": "module 'chores'",
    "chores/data": "module 'chores'",
    "made_skills": "module 'made_skills'",
    "layers": "module 'layers'",
    "steps/deep": "module 'steps'",
    "tools": "the program of server 'one'",
    "tools/deep": "the program of server 'one'",
    "work/pkg_two/inner": "the program of server 'two'",
    "work": "the program of server 'two'",
    "bin": "the program of secrets.token",
}


@pytest.mark.parametrize("root", REFUSED)
@pytest.mark.parametrize("access", WRITES)
def test_folder_with_programs_of_the_gateway_is_refused(tmp_path: Path, root: str, access: Access) -> None:
    rules = RootRules(load_config(configured(tmp_path), os.environ))
    rules.protect(["steps.all:run"])
    refusal = rules.refusal(tmp_path / root, access)
    assert refusal is not None
    assert REFUSED[root] in refusal
    assert str(tmp_path) in refusal


@pytest.mark.parametrize("root", ["data", "data/new", "elsewhere", "work/results", "tools-data"])
def test_folder_of_its_own_is_allowed(tmp_path: Path, root: str) -> None:
    rules = RootRules(load_config(configured(tmp_path), os.environ))
    assert rules.refusal(tmp_path / root, "delete") is None
    assert rules.remark(tmp_path / root) is None


def test_links_and_letter_case_do_not_hide_a_protected_folder(tmp_path: Path) -> None:
    path = configured(tmp_path)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "state")
    (tmp_path / "data" / "up").symlink_to(tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "server": {"lockFile": "Later/pins.json"}}))
    rules = RootRules(load_config(path, os.environ))
    assert "the state folder" in (rules.refusal(tmp_path / "data" / "link" / "new", "read") or "")
    assert "the configuration file" in (rules.refusal(tmp_path / "data" / "up", "write") or "")
    # The folder does not exist yet, and the file system may turn out to ignore case.
    assert "the lock file" in (rules.refusal(tmp_path / "LATER", "write") or "")


PROGRAMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # The folder of the agent, the file in it, and the server's entry.
    "folder with __main__": ("s", "__main__.py", {"command": "python3", "args": ["./s"]}),
    "inside such a folder": ("s/lib", "../__main__.py", {"command": "python3", "args": ["./s"]}),
    "folder of a flag": ("s", "server.py", {"command": "env", "args": ["--chdir=./s", "python3", "server.py"]}),
    "folder of a flag before it": ("s", "main.py", {"command": "uv", "args": ["--directory", "./s", "run", "main.py"]}),
    "folder of a flag alone": ("s", "other.toml", {"command": "uv", "args": ["--directory", "./s", "run", "serve"]}),
    "no suffix": ("s", "serve", {"command": "python3", "args": ["./s/serve"]}),
    "suffix left out": ("s", "serve.js", {"command": "node", "args": ["./s/serve"]}),
    "shell": ("s", "serve.py", {"command": "bash", "args": ["-c", "exec python3 ./s/serve.py"]}),
    "shell in a folder": ("s", "serve", {"command": "bash", "args": ["-c", "cd s; python3 serve"]}),
    "quoted": ("a b", "serve", {"command": "bash", "args": ["-c", "exec python3 './a b/serve'"]}),
    "python -c": ("s", "x", {"command": "python3", "args": ["-c", "import runpy;runpy.run_path('./s/x',run_name='__main__')"]}),
    "module of PYTHONPATH": ("s", "mod.py", {"command": "python3", "args": ["-m", "mod"], "env": {"PYTHONPATH": f"/lib{os.pathsep}./s"}}),
    "folder of node": ("s/build", "index.js", {"command": "node", "args": ["./s/build"]}),
    "required": ("s", "hook.js", {"command": "node", "args": ["--require=./s/hook.js", "-"]}),
    "required by a variable": ("s", "hook.js", {"command": "node", "args": ["-"], "env": {"NODE_OPTIONS": "--require ./s/hook.js"}}),
    "library": ("s", "none", {"command": "serve", "env": {"LD_PRELOAD": "./s/hook.so.1"}}),
    "module of a folder": ("s", "app.py", {"command": "uvicorn", "args": ["app:make", "--app-dir", "s"], "env": {"PYTHONPATH": "s"}}),
    "package of the folder": ("s", "__init__.py", {"command": "uvicorn", "args": ["s.app:make"]}),
    "package with metadata": ("s", "package.json", {"command": "npx", "args": ["--package=./s", "serve"]}),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_folder_with_the_program_of_a_command_is_refused(tmp_path: Path, case: str) -> None:
    root, file, entry = PROGRAMS[case]
    (tmp_path / root).mkdir(parents=True)
    (tmp_path / root / file).write_text("")
    document = {"mcpServers": {"one": entry}, "storage": {"dir": "state"}}
    (tmp_path / "gateway.json").write_text(json.dumps(document))
    rules = RootRules(load_config(tmp_path / "gateway.json", os.environ))
    assert "the program of server 'one'" in (rules.refusal(tmp_path / root, "write") or "")
    assert rules.refusal(tmp_path / root, "read") is None


def test_link_to_a_program_is_protected_like_the_program(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "python").symlink_to(sys.executable)
    entry = {"command": "./s/python", "args": ["-m", "mod"]}
    (tmp_path / "gateway.json").write_text(json.dumps({"mcpServers": {"one": entry}, "storage": {"dir": "state"}}))
    rules = RootRules(load_config(tmp_path / "gateway.json", os.environ))
    assert "the program of server 'one'" in (rules.refusal(tmp_path / "s", "write") or "")


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "./data"]},
        {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]},
        {"command": "serve", "args": ["--root=./data"], "env": {"NOTES_FILE": "./data/notes.json", "DATA": "data"}},
        {"command": "bash", "args": ["-c", "exec serve data"], "env": {"PYTHONPATH": "."}},
    ],
)
def test_folder_of_data_that_a_server_gets_is_allowed(tmp_path: Path, entry: dict[str, Any]) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("data/notes.json", "data/read.me", "package.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "gateway.json").write_text(json.dumps({"mcpServers": {"one": entry}, "storage": {"dir": "state"}}))
    rules = RootRules(load_config(tmp_path / "gateway.json", os.environ))
    for root in ("data", "data/deep"):
        assert rules.refusal(tmp_path / root, "delete") is None


def test_folders_on_program_and_module_search_paths_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("programs", "library"):
        (tmp_path / name).mkdir()
    path = configured(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "library"), *sys.path])
    rules = RootRules(load_config(path, os.environ))
    for name in ("programs", "library"):
        assert "a folder in which programs are looked for" in (rules.refusal(tmp_path / name, "write") or "")
        assert rules.refusal(tmp_path / name / "below", "write") is None
    import gateway

    package = Path(gateway.__file__).parent
    assert "Python code in use" in (rules.refusal(package / "new", "write") or "")
    assert rules.refusal(package, "write") is not None


def test_read_only_folder_may_hold_configuration_and_never_state(tmp_path: Path) -> None:
    document = json.loads(configured(tmp_path).read_text())
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "gateway.json"
    path.write_text(json.dumps({**document, "storage": {"dir": "../state"}, "expose": {}}))
    rules = RootRules(load_config(path, os.environ))
    assert rules.refusal(tmp_path / "conf", "read") is None
    assert "the configuration file" in (rules.remark(tmp_path / "conf") or "")
    for root in (tmp_path, tmp_path / "state", tmp_path / "state" / "results"):
        assert "could read the gateway's secrets" in (rules.refusal(root, "read") or "")


def hostile(document: dict[str, Any], root: str, access: str = "write") -> list[dict[str, Any]]:
    """Return the script of a hostile model: it writes `document` to every path at which the configuration could be."""
    text = json.dumps(document)
    places = ["gateway.json", "../gateway.json", f"{root}/gateway.json"]
    calls = [{"name": "file_access_save_file", "arguments": {"file_name": name, "content": text, "overwrite": True}} for name in places]
    return [{"tool_calls": calls}, {"text": "{last_tool}", "repeat": True}]


async def agents_of(running: Running) -> set[str]:
    return {tool.name for tool in (await running.client.list_tools()).tools if tool.name.startswith("agent__")}


async def test_agent_with_the_configuration_folder_is_not_served_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "started"
    (tmp_path / "agents").mkdir()
    agent_file(tmp_path / "agents", "good", files="{root: ../data, access: write}", model="openai:m")
    agent_file(tmp_path / "agents", "bad", files="{root: .., access: write}", model="openai:m")
    file = File(tmp_path)
    evil = {"mcpServers": {"evil": {"command": "touch", "args": [str(marker)]}}, "storage": {"dir": str(tmp_path / "state")}}
    with openai_server(*hostile(evil, "..")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        file.write({}, expose={"agents": ["agents"]})
        before = file.path.read_bytes()
        async with gateway(file, "http", "legacy") as running:
            assert await agents_of(running) == {"agent__good"}
            for name in ("agent__bad", "agent__good"):
                try:
                    await running.client.call_tool(name, {"task": "go"})
                except Exception as error:
                    assert "bad" in str(error)
            assert file.path.read_bytes() == before
            assert (tmp_path / "data" / "gateway.json").exists()
            assert not marker.exists()
            assert "files.root" in running.log.read_text()
    listed = moongate("list", "agents", "--standalone", cwd=tmp_path)
    assert "not served: " in listed.err and "bad.agent.md" in listed.err and "contains the configuration file" in listed.err
    checks = moongate("doctor", "--json", cwd=tmp_path).data["checks"]
    [named] = [check for check in checks if check["subject"].startswith("agent ")]
    assert named["status"] == "fail" and "bad.agent.md" in named["subject"]
    assert "Name a folder of its own" in named["text"]


async def test_folder_of_the_settings_and_of_a_provider_is_judged_too(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    agent_file(tmp_path / "agents", "plain", model="openai:m")
    agent_file(tmp_path / "agents", "own", files="{root: ../data}", context_providers="[stores:todo]", model="openai:m")
    (tmp_path / "stores.py").write_text(
        "from gateway import TodoFileStore, TodoProvider\n"
        f"todo = TodoProvider(store=TodoFileStore({str(tmp_path / 'state' / 'todo')!r}))\n"
    )
    file = File(tmp_path)
    file.write({}, expose={"agents": ["agents"]}, agents={"files": {"root": "agents", "access": "delete"}})
    async with gateway(file, "stdio", "2026-07-28") as running:
        assert await agents_of(running) == set()
        log = running.log.read_text()
    assert "plain.agent.md: files.root" in log and "agents and workflows" in log
    assert "own.agent.md: context-providers" in log and "the state folder" in log


async def test_folder_turned_into_a_link_to_the_configuration_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "data").mkdir()
    agent_file(tmp_path / "agents", "good", files="{root: ../data, access: write}", model="openai:m")
    file = File(tmp_path)
    with openai_server(*hostile({}, ".")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        file.write({}, expose={"agents": ["agents"]})
        before = file.path.read_bytes()
        async with gateway(file, "http", "legacy") as running:
            assert await agents_of(running) == {"agent__good"}
            (tmp_path / "data").rmdir()
            (tmp_path / "data").symlink_to(tmp_path)
            result: Any = await running.client.call_tool("agent__good", {"task": "go"})
            assert result.is_error
            assert "contains the configuration file" in result.content[0].text or "is inside" in result.content[0].text
    assert file.path.read_bytes() == before


async def test_folder_is_judged_again_after_a_reload(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    agent_file(tmp_path / "agents", "good", files="{root: ../data, access: write}", model="openai:m")
    file = File(tmp_path)
    file.write({}, expose={"agents": ["agents"]})
    async with gateway(file, "http", "legacy") as running:
        assert await agents_of(running) == {"agent__good"}
        file.write({}, expose={"agents": ["agents"]}, server={"lockFile": "data/pins.json"})

        async def is_gone() -> bool:
            return await agents_of(running) == set()

        await until(is_gone)
        file.write({}, expose={"agents": ["agents"]})

        async def is_back() -> bool:
            return await agents_of(running) == {"agent__good"}

        await until(is_back)


def test_doctor_names_folders_with_the_configuration_and_bad_paths(tmp_path: Path) -> None:
    (tmp_path / "conf" / "agents").mkdir(parents=True)
    agent_file(tmp_path / "conf" / "agents", "reader", files="{root: .., access: read}", model="openai:m")
    state = tmp_path / "state"
    document = {
        "expose": {"agents": ["agents"]},
        "storage": {"dir": str(state)},
        "skills": {"scripts": {"enabled": True, "readPaths": [str(state / "results")]}},
    }
    (tmp_path / "conf" / "gateway.json").write_text(json.dumps(document))
    env = {"XDG_STATE_HOME": str(tmp_path / "xdg")}
    checks = moongate("doctor", "--json", cwd=tmp_path / "conf", env=env).data["checks"]
    [remark] = [check for check in checks if check["subject"].startswith("agent ")]
    assert remark["status"] == "warn"
    assert "the configuration file" in remark["text"]
    assert any(check["status"] == "fail" and "readPaths" in check["text"] for check in checks)
