"""Databases with unfinished tasks as earlier versions left them, kept as text in `golden/`, for the test that an upgrade finishes them.

    python -m tests.faults.golden NAME [FOLDER] [--postgres]

adds one, of the code in FOLDER (a checkout of a release; this one's by default): do it with every release. What is kept of
a state folder is its database, or with `--postgres` the database on a server. Times in it move along to the day of the test,
but for the leases, which are over.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psycopg

from gateway.storage.file_names import DATABASE_FILE
from tests.fakes.postgres import Postgres, postgres
from tests.fakes.running import ROOT, free_port, wait_until_ready
from tests.interaction.wire import Wire, over_http
from tests.tasks.test_gateways import FLOW, FUNCTIONS, until

FOLDER = Path(__file__).with_name("golden")
SERVER_FOLDER = FOLDER / "postgres"
"""Golden databases of a PostgreSQL server."""
_TIMES = """SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = 'public' AND data_type = 'double precision'"""
TASKS = ("done", "asks", "again", "runs")
"""The tasks of a golden database: finished; in doubt with an unanswered question; started again after an answer; started."""


def lay_out(folder: Path) -> dict[str, Any]:
    """Write the workflow and its functions to the folder, and return the configuration that serves the workflow."""
    (folder / "durable_functions.py").write_text(FUNCTIONS)
    (folder / "flow.workflow.yaml").write_text(FLOW)
    return {"expose": {"agents": ["."]}, "storage": {"dir": str(folder / "state")}}


def write(name: str, state: Path, tasks: dict[str, str]) -> None:
    """Keep the database of a state folder whose process is dead; `tasks` are ids by `TASKS`."""
    with closing(sqlite3.connect(state / DATABASE_FILE)) as database:
        lines = list(database.iterdump())
    head = f"-- {json.dumps({'at': time.time(), 'tasks': tasks})}"
    (FOLDER / f"{name}.sql").write_text("\n".join([head, *lines, ""]), encoding="utf-8")


def restore(name: str, state: Path) -> dict[str, str]:
    """Make a state folder of a golden database; returns the ids of its tasks by `TASKS`."""
    text = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    head = json.loads(text.partition("\n")[0].removeprefix("-- "))
    state.mkdir(mode=0o700)
    with closing(sqlite3.connect(state / DATABASE_FILE)) as database:
        database.executescript(text)
        since = time.time() - head["at"]
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for column in database.execute(f"PRAGMA table_info({table})").fetchall():
                if column[2].startswith(("FLOAT", "REAL", "DOUBLE")) and column[1] != "lease_until":
                    database.execute(f"UPDATE {table} SET {column[1]} = {column[1]} + ? WHERE {column[1]} > 1e9", (since,))
        database.commit()
    (state / DATABASE_FILE).chmod(0o600)
    return head["tasks"]


def write_server(name: str, server: Postgres, database: str, tasks: dict[str, str]) -> None:
    """Keep a database of a server, whose gateway is dead; `tasks` are ids by `TASKS`."""
    settings = ("--", "\\", "SET ", "SELECT pg_catalog.set_config")  # of the version of `pg_dump`
    lines = [line for line in server.dump(database).splitlines() if line and not line.startswith(settings)]
    head = f"-- {json.dumps({'at': time.time(), 'tasks': tasks})}"
    SERVER_FOLDER.mkdir(exist_ok=True)
    (SERVER_FOLDER / f"{name}.sql").write_text("\n".join([head, *lines, ""]), encoding="utf-8")


def restore_server(name: str, url: str) -> dict[str, str]:
    """Fill the empty database at `url` from a golden database; returns the ids of its tasks by `TASKS`."""
    text = (SERVER_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    head = json.loads(text.partition("\n")[0].removeprefix("-- "))
    since = time.time() - head["at"]
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(text.encode())
        for table, column in database.execute(_TIMES).fetchall():
            if column != "lease_until":
                database.execute(f"UPDATE {table} SET {column} = {column} + {since} WHERE {column} > 1e9".encode())
    return head["tasks"]


class _Old:
    """A running gateway from a given checkout of the code."""

    def __init__(self, code: Path, folder: Path, config: dict[str, Any]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        path, log = folder / "gateway.json", folder / f"{port}.log"
        path.write_text(json.dumps(config))  # `write_config` adds a key that an earlier version may not support
        command = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path)]
        environ = {**os.environ, "PYTHONPATH": str(code)}
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, cwd=code, stdout=out, stderr=out, start_new_session=True, env=environ)
        wait_until_ready(self._process, f"{self.url}/ready", log)

    def __enter__(self) -> _Old:
        return self

    def __exit__(self, *exc: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


async def begin(wire: Wire, journal: Path, x: str) -> str:
    """Start a task and wait until it is in its second step."""
    there = seconds(journal)
    started = await wire.send("tools/call", name="workflow__flow", arguments={"x": x})
    await until_more(journal, there)
    return started["result"]["taskId"]


def seconds(journal: Path) -> int:
    """Return how often a task began its second step."""
    return journal.read_text().splitlines().count("second") if journal.exists() else 0


async def until_more(journal: Path, there: int) -> None:
    """Wait until a task has begun its second step more than `there` times."""
    with anyio.fail_after(30):
        while seconds(journal) <= there:
            await anyio.sleep(0.05)


async def answer(wire: Wire, task_id: str) -> None:
    """Answer the question about the step in doubt with `retry`."""
    state = await until(wire, task_id, "input_required")
    answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
    await wire.send("tasks/update", taskId=task_id, inputResponses=answers)


async def make(name: str, code: Path, *, is_on_server: bool) -> None:
    """Run the gateway of a checkout, leave its tasks unfinished, and keep what it leaves."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        config = lay_out(folder)
        server = stack.enter_context(postgres()) if is_on_server else None
        if server is not None:
            config["storage"]["url"] = server.database("golden")
        tasks = await _leave_tasks(code, folder, config)
        if server is not None:
            write_server(name, server, "golden", tasks)
        else:
            write(name, folder / "state", tasks)


async def _leave_tasks(code: Path, folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Start tasks at two gateways in turn, which are killed, and return the ids by `TASKS`."""
    journal, go = folder / "journal", folder / "go"
    tasks: dict[str, str] = {}
    with _Old(code, folder, config) as old:
        async with over_http(f"{old.url}/mcp", "modern") as wire:
            go.touch()
            tasks["done"] = await begin(wire, journal, "done")
            await until(wire, tasks["done"], "completed")
            go.unlink()
            for kind in ("asks", "again"):
                tasks[kind] = await begin(wire, journal, kind)
    with _Old(code, folder, config) as old:
        async with over_http(f"{old.url}/mcp", "modern") as wire:
            await until(wire, tasks["asks"], "input_required")
            there = seconds(journal)
            await answer(wire, tasks["again"])
            await until_more(journal, there)
            tasks["runs"] = await begin(wire, journal, "runs")
    return tasks


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--postgres"]
    checkout = Path(words[1] if len(words) > 1 else ROOT).resolve()
    anyio.run(partial(make, words[0], checkout, is_on_server="--postgres" in sys.argv))
