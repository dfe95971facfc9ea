"""A running gateway reloads changed files of agents, workflows and functions: real processes, files and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.cli.processes import moongate_process
from tests.cli.test_reload import MODERN, File, Running, gateway, told_of_tools, until

pytestmark = pytest.mark.timeout(90)

CHORES = """
import time
from pathlib import Path
from chores_words import WORD
from gateway import tool

FOLDER = Path(__file__).parent
calls = []

@tool
def say() -> str:
    \"\"\"Say the word and how often it was said.\"\"\"
    calls.append(1)
    return f"{WORD} {len(calls)}"

@tool
def wait() -> str:
    \"\"\"Wait until it may go on.\"\"\"
    (FOLDER / "running").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    return WORD

def shout() -> str:
    return WORD.upper()
"""
AGENT = "---\nname: {name}\ndescription: Helps.\nmodel: openai:m\n---\nHelp.\n"
FLOW = "name: flow\ndescription: {text}\nexecutors:\n  a: {{python: chores:shout}}\nstart: a\n"
CALLING = "name: calling\ndescription: {text}\nexecutors:\n  a: {{tool: function/say, arguments: {{}}}}\nstart: a\n"
QUICK: dict[str, Any] = {"skills": {"refreshSeconds": 0}, "expose": {"functions": ["chores"], "agents": ["agents"]}}


def put(path: Path, text: str) -> None:
    aside = path.with_suffix(".aside")
    aside.write_text(text)
    aside.replace(path)


def lay_out(folder: Path) -> Path:
    (folder / "agents").mkdir()
    (folder / "chores.py").write_text(CHORES)
    (folder / "chores_words.py").write_text("WORD = 'one'\n")
    (folder / "agents" / "flow.workflow.yaml").write_text(FLOW.format(text="d"))
    (folder / "agents" / "calling.workflow.yaml").write_text(CALLING.format(text="d"))
    return folder / "agents"


async def description(running: Running, name: str) -> str:
    return next((tool.description or "" for tool in (await running.client.list_tools()).tools if tool.name == name), "")


@pytest.mark.parametrize(("front", "era"), [("http", MODERN), pytest.param("stdio", "legacy", marks=pytest.mark.faults)])
async def test_changed_files_are_taken_up_while_calls_go_on(tmp_path: Path, front: str, era: str) -> None:
    agents = lay_out(tmp_path)
    file = File(tmp_path)
    file.write({}, **QUICK)
    async with gateway(file, front, era) as running:
        assert [await running.text("function__say"), await running.text("function__say")] == ["one 1", "one 2"]
        assert await running.text("workflow__flow") == "ONE"
        answers: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                answers.append(await running.text("function__wait"))

            tasks.start_soon(call)

            async def is_running() -> bool:
                return (tmp_path / "running").exists()

            await until(is_running)
            put(tmp_path / "chores_words.py", "WORD = 'two'\n")  # a module that a named one imports

            async def says_two() -> bool:
                return (await running.text("function__say")).startswith("two")

            await until(says_two)
            assert await running.text("workflow__flow") == "TWO"
            (tmp_path / "go").touch()
        assert answers == ["one"], "a running call goes on with what it began with"
        async with told_of_tools(running, era):
            put(agents / "new.agent.md", AGENT.format(name="new"))

        async def has_new() -> bool:
            return "agent__new" in await running.names()

        await until(has_new)
        put(agents / "calling.workflow.yaml", CALLING.format(text="Edited."))

        async def is_edited() -> bool:
            return "Edited." in await description(running, "workflow__calling")

        await until(is_edited)
        (agents / "new.agent.md").unlink()

        async def is_gone() -> bool:
            return "agent__new" not in await running.names()

        await until(is_gone)


async def test_broken_edits_keep_the_last_good_version_and_are_reported(tmp_path: Path) -> None:
    agents = lay_out(tmp_path)
    (agents / "helper.agent.md").write_text(AGENT.format(name="helper"))
    file = File(tmp_path)
    file.write({}, **QUICK)
    broken = {
        tmp_path / "chores_words.py": "WORD = (\n",
        agents / "helper.agent.md": "---\nname: [\n---\n",
        agents / "calling.workflow.yaml": "name: calling\nexecutors: {}\n",
    }
    async with gateway(file, "http", MODERN) as running:
        for path, text in broken.items():
            put(path, text)

        async def are_said() -> bool:
            errors = {source["name"]: source.get("error", "") for source in (await running.status())["sources"]}
            return all("problem" in errors.get(name, "") for name in ("function", "agent", "workflow"))

        await until(are_said)
        assert running.log.read_text().count("The earlier version stays in use.") >= 3
        assert {"function__say", "workflow__calling", "workflow__flow", "agent__helper"} <= await running.names()
        assert (await running.text("function__say")).startswith("one")
        assert await running.text("workflow__flow") == "ONE"
        url = f"http://127.0.0.1:{running.port}/mcp"
        listed = await anyio.to_thread.run_sync(lambda: moongate_process("list", "agents", "--url", url, cwd=tmp_path))
        assert f"change not applied: {agents / 'helper.agent.md'}: " in listed.err and ". The earlier version stays in use.\n" in listed.err
        doctor = await anyio.to_thread.run_sync(lambda: moongate_process("doctor", "--config", str(file.path), cwd=tmp_path))
        assert all(str(path) in doctor.out for path in (agents / "helper.agent.md", agents / "calling.workflow.yaml"))
        put(tmp_path / "chores_words.py", "WORD = 'new'\n")  # the file that failed is mended, not the one that is named

        async def is_mended() -> bool:
            return (await running.text("function__say")).startswith("new")

        await until(is_mended)
        assert await running.text("workflow__flow") == "NEW"


@pytest.mark.attack(2)
async def test_edited_file_that_names_new_code_waits_for_acceptance(tmp_path: Path) -> None:
    agents = lay_out(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef run(): return 'evil'\n")
    file = File(tmp_path)
    file.write({}, **QUICK)
    async with gateway(file, "http", MODERN) as running:
        put(agents / "flow.workflow.yaml", FLOW.format(text="Edited.").replace("chores:shout", "evil:run"))
        put(agents / "other.workflow.yaml", FLOW.format(text="d").replace("name: flow", "name: other").replace("chores:shout", "evil:run"))

        async def is_held() -> bool:
            return "workflow/other" in running.log.read_text()

        await until(is_held)
        assert await running.text("workflow__flow") == "ONE", "the accepted version stays in use"
        assert "workflow__other" not in await running.names()
    assert not (tmp_path / "ran").exists()


@pytest.mark.attack(2)
async def test_code_that_a_broken_edit_unloads_stays_protected(tmp_path: Path) -> None:
    agents = lay_out(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "chores_part.py").write_text("PART = 1\n")
    put(tmp_path / "chores.py", "from parts import chores_part\n" + CHORES)
    put(agents / "writer.agent.md", AGENT.format(name="writer\nfiles: {root: ../parts, access: write}"))
    file = File(tmp_path)
    file.write({}, **QUICK)
    async with gateway(file, "http", MODERN) as running:
        assert await running.text("function__say") == "one 1"
        assert "agent__writer" not in await running.names(), "its folder holds code in use"
        put(tmp_path / "chores.py", "import nothing_of_this_name\nfrom parts import chores_part\n" + CHORES)

        async def is_said() -> bool:
            return "nothing_of_this_name" in running.log.read_text()

        await until(is_said)
        put(agents / "calling.workflow.yaml", CALLING.format(text="Edited."))  # all files are judged once more

        async def is_edited() -> bool:
            return "Edited." in await description(running, "workflow__calling")

        await until(is_edited)
        assert "agent__writer" not in await running.names()
