"""Checkpoints in a database: two processes, one killed between two rounds, and what the other goes on from."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StorageError, WorkflowCheckpointException
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import WorkflowCheckpoint
from gateway.workflows.executor import Executor, handler
from gateway.workflows.sql_checkpoints import SqlCheckpointStorage
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext
from tests.fakes.postgres import postgres

ROOT = Path(__file__).resolve().parents[2]


def note(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def run_elsewhere(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)


class Step(Executor):
    """An executor that logs its run. The executor `d` kills its process instead if the file `deadly` exists."""

    @handler
    async def run(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        log = Path(message)
        if log.with_name("deadly").exists() and self.id == "d":
            os.kill(os.getpid(), signal.SIGKILL)
        note(log, self.id)
        ctx.set_state("ran", [*ctx.get_state("ran", []), self.id])
        await ctx.send_message(message)
        await ctx.yield_output("".join(ctx.get_state("ran")))


def build(storage: Any) -> Workflow:
    nodes = [Step(name) for name in "abcdef"]
    return WorkflowBuilder(name="steps", start_executor=nodes[0], checkpoint_storage=storage).add_chain(nodes).build()


async def go_on(url: str, log: str) -> None:
    """Run the workflow in a separate process until the process is killed."""
    await build(SqlCheckpointStorage(url)).run(log)


async def survive(url: str, folder: Path) -> None:
    """Kill a process in its fourth step, resume here from the last checkpoint, and check that no step ran twice."""
    log = folder / "log"
    (folder / "deadly").touch()
    code = f"import anyio; from tests.workflows.test_sql_checkpoints import go_on; anyio.run(go_on, {url!r}, {str(log)!r})"
    died = run_elsewhere(code)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert log.read_text() == "abc"
    storage = SqlCheckpointStorage(url)
    latest = await storage.get_latest(workflow_name="steps")
    assert latest is not None
    (folder / "deadly").unlink()
    result = await build(storage).run(checkpoint_id=latest.checkpoint_id)
    assert result.get_outputs()[-1] == "abcdef"
    assert log.read_text() == "abcdef"


@pytest.mark.requirement("WF12")
async def test_killed_run_is_resumed_from_its_last_round(tmp_path: Path) -> None:
    await survive(f"sqlite:///{tmp_path / 'checkpoints.db'}", tmp_path)


@pytest.mark.postgres
@pytest.mark.timeout(60)
@pytest.mark.requirement("WF12")
async def test_killed_run_on_a_server_is_resumed_from_its_last_round(tmp_path: Path) -> None:
    with postgres() as server:
        await survive(server.database("checkpoints"), tmp_path)


@pytest.mark.requirement("WF12")
async def test_checkpoints_are_versioned_json_per_owner_and_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    storage = SqlCheckpointStorage(path, max_per_workflow=2)
    ids = [await storage.save(WorkflowCheckpoint("w", "hash", state={"n": n, "odd": "\0\ud800"})) for n in range(3)]
    assert await storage.list_checkpoint_ids(workflow_name="w") == ids[1:]
    latest = await storage.get_latest(workflow_name="w")
    assert latest is not None
    assert latest.state == {"n": 2, "odd": "\0\ud800"}
    other = SqlCheckpointStorage(path, owner="somebody else")
    assert await other.list_checkpoints(workflow_name="w") == []
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found"):
        await other.load(ids[2])
    assert await other.delete(ids[2]) is False
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT graph, json_extract(form, '$.version') FROM checkpoints").fetchall() == [("hash", "1.0")] * 2
        raw.execute("UPDATE checkpoints SET form = '{' WHERE id = ?", (ids[1],))
    raw.close()
    assert [item.checkpoint_id for item in await storage.list_checkpoints(workflow_name="w")] == [ids[2]]
    with pytest.raises(WorkflowCheckpointException, match="is not a checkpoint"):
        await storage.load(ids[1])


async def test_database_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StorageError, match=r"folder\.db"):
        await SqlCheckpointStorage(tmp_path / "folder.db").get_latest(workflow_name="w")
    with pytest.raises(ValueError, match="max_per_workflow"):
        SqlCheckpointStorage(tmp_path / "x.db", max_per_workflow=0)
