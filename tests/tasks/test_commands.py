"""`moongate tasks`: seen, stopped and tried again from a terminal, beside the gateway that runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.cli.main import run_command
from gateway.errors import ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.tasks.dying import Journal, once_asked, running

ANN = CallContext(CallFacts(principal=Principal("ann"), client=ClientProfile(capabilities={"elicitation": {"form": {}}})))


class Terminal:
    """Runs commands on a state folder, in a thread beside the gateway."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.config = folder / "gateway.json"
        self.config.write_text(json.dumps({"storage": {"dir": str(folder)}}))

    async def run(self, *words: str) -> tuple[int, Any]:
        """Exit code, and the JSON of stdout or of the error line."""
        self.capsys.readouterr()
        code = await anyio.to_thread.run_sync(lambda: run_command(["tasks", *words, "--config", str(self.config), "--json"]))
        told = self.capsys.readouterr()
        return code, json.loads(told.out or told.err)


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, capsys)


def three_steps(journal: Journal, fails: list[bool]) -> Any:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None
        for number in range(3):

            async def work(key: str, number: int = number) -> JsonValue:
                if number == 1 and fails.pop(0):
                    raise ToolFailed("the disk is full")
                journal.write(str(number))
                return number

            await ctx.ports.durable.step("step", work, repeatable=False)
        if arguments.get("wait"):
            await ctx.ask({"method": "elicitation/create", "params": {"message": "Go on?", "requestedSchema": {}}})
        return Complete.text("all three")

    return call


async def over(runner: TaskRunner, task: Task) -> Task:
    with anyio.fail_after(20):
        while not task.is_over:
            task = await runner.wait_for_change(task)
    return task


async def test_failed_task_is_shown_and_retried_after_its_finished_steps(terminal: Terminal, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with running(tmp_path, three_steps(journal, [True, True, False])) as runner:
        task = await over(runner, await runner.start("up__job", {"x": 1}, ANN))
        code, listed = await terminal.run("list", "--status", "failed")
        assert (code, [(row["id"], row["tool"], row["caller"]) for row in listed["tasks"]]) == (0, [(task.id, "up__job", "ann")])
        _, shown = await terminal.run("show", task.id[:8])
        assert shown["arguments"] == {"x": 1}
        assert shown["steps"] == [{"step": "/step#1", "done": True}]
        assert shown["outcome"]["error"]["message"] == "the disk is full"
        code, _ = await terminal.run("retry", task.id[:8])
        assert code == 0
        task = await over(runner, await runner.find(task.id, "ann"))
        assert (task.status, journal.lines()) == ("failed", ["0"])
        await terminal.run("retry", task.id, "--from-start")
        task = await over(runner, await runner.find(task.id, "ann"))
        assert (task.status, journal.lines()) == ("completed", ["0", "0", "1", "2"])
        _, shown = await terminal.run("show", task.id)
        assert shown["steps"] == [{"step": f"/step#{number}", "done": True} for number in (1, 2, 3)]
        code, refused = await terminal.run("retry", task.id)
        assert (code, refused["error"]["code"]) == (5, "tool-error")
        code, refused = await terminal.run("show", "nothing")
        assert (code, refused["error"]["code"]) == (1, "not-found")


async def test_steps_of_a_workflow_are_shown_by_round(terminal: Terminal, tmp_path: Path) -> None:
    rounds = ["write@0.0", "read@1.0", "agree@2.0", "after@10.0"]

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def work(key: str) -> JsonValue:
            return key

        assert ctx.ports.durable is not None
        for name in rounds:
            await ctx.ports.durable.step(name, work, repeatable=True)
        return Complete.text("done")

    async with running(tmp_path, call) as runner:
        task = await over(runner, await runner.start("up__job", {}, ANN))
        _, shown = await terminal.run("show", task.id)
    assert [step["step"] for step in shown["steps"]] == [f"/{name}#1" for name in rounds]


@pytest.mark.requirement(94)
async def test_running_task_is_cancelled_from_a_terminal_and_can_resume(terminal: Terminal, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with running(tmp_path, three_steps(journal, [False, False])) as runner:
        task = await runner.start("up__job", {"wait": True}, ANN)
        task = await once_asked(runner, task)
        _, shown = await terminal.run("show", task.id)
        assert [request["params"]["message"] for request in shown["asks"].values()] == ["Go on?"]
        code, refused = await terminal.run("retry", task.id)
        assert (code, refused["error"]["code"]) == (5, "tool-error")
        code, row = await terminal.run("cancel", task.id)
        assert (code, row["status"]) == (0, "cancelled")
        assert (await terminal.run("cancel", task.id))[0] == 5
    code, row = await terminal.run("retry", task.id)  # no process runs the task now
    assert (code, row["status"]) == (0, "working")
    async with running(tmp_path, three_steps(journal, [])) as runner:
        task = await runner.find(task.id, "ann")
        with anyio.fail_after(20):
            while task.status != "input_required":
                await anyio.sleep(0.05)
                task = await runner.find(task.id, "ann")
        await runner.answer(task, {key: {"action": "accept", "content": {}} for key in task.open_requests})
        task = await over(runner, await runner.find(task.id, "ann"))
    assert (task.status, journal.lines()) == ("completed", ["0", "1", "2"])


def test_people_read_a_table_and_what_a_task_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(tmp_path, capsys)

    async def main() -> None:
        async with running(tmp_path, three_steps(Journal(tmp_path / "journal"), [True])) as runner:
            await over(runner, await runner.start("up__job", {"x": 1}, ANN))

    anyio.run(main)
    assert run_command(["tasks", "--config", str(terminal.config)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TOOL", "CALLER", "STATUS", "BEGUN", "CHANGED", "SAYS"]
    assert line.split()[1:4] == ["up__job", "ann", "failed"]
    assert re.fullmatch("[0-9a-f]+", line.split()[0])  # or a terminal may take it for an option
    assert run_command(["tasks", "show", line.split()[0], "--config", str(terminal.config)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        'arguments: {"x": 1}', "step /step#1: done", "error -32603: the disk is full",
    ]  # fmt: skip
