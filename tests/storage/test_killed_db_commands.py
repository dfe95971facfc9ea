"""`moongate db` killed at every point where it changes files: the state is the old or the new one, and the next command continues."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Ended, environment, moongate, write_gateway
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(400)]

DYING = """
import os, signal, sys
limit, calls = int(sys.argv[1]), 0

def counted(function):
    def call(*args, **kwargs):
        global calls
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*args, **kwargs)
    return call

for name in ("rename", "replace", "unlink", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
from gateway.cli.main import main
main(sys.argv[2:])
"""
"""A program that runs `moongate` and kills itself before its n-th call that renames or deletes something."""

SLOW = """
import sys
import sqlalchemy as sa
from gateway.storage import engine, migrations

steps = [*migrations.STEPS, migrations.Step(
    "CREATE TABLE numbers (n INTEGER PRIMARY KEY, v TEXT NOT NULL);\\nINSERT INTO numbers (n, v) WITH RECURSIVE c(x) AS "
    "(SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000000) SELECT x, 'a text of some length' FROM c;\\n",
    oldest=len(migrations.STEPS),
)]
made = sa.create_engine("sqlite:///" + sys.argv[1])
engine.own_transactions(made)
with made.begin() as connection:
    print("begun", flush=True)
    migrations.migrate(connection, steps)
print("done", flush=True)
"""
"""A program of a later version, whose migration takes seconds."""


def dying(limit: int, *words: str, cwd: Path) -> int:
    """Run a command that is killed before its n-th change of a file name; return its exit code, negative for a signal.

    What an earlier killed command left and nothing needs is deleted first, so that the same number means the same point.
    """
    if not (cwd / "state/restoring/journal.json").exists():
        shutil.rmtree(cwd / "state/restoring", ignore_errors=True)
    command = [sys.executable, "-c", DYING, str(limit), *words]
    env = {**environment(cwd), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, check=False, timeout=60).returncode


def prepare(folder: Path, storage: dict[str, Any] | None = None) -> None:
    """Make a state with the key `old`, and the backup `b.tar` of a state with the key `new`, each with rows that name it."""
    write_gateway(folder, mcpServers={}, storage={"dir": "state"})
    for name in ("new", "old"):
        assert moongate("keys", "add", name, "--json", cwd=folder).code == 0
        assert moongate("db", "migrate", cwd=folder).code == 0
        mark(folder, name)
        if name == "new":
            assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
            for path in (folder / "state").iterdir():
                path.unlink()
    assert moongate("db", "backup", "old.tar", cwd=folder).code == 0
    if storage is not None:
        write_gateway(folder, mcpServers={}, storage=storage)
        for path in (folder / "state").iterdir():
            path.unlink()
        assert moongate("db", "restore", "old.tar", cwd=folder).code == 0
    assert seen(folder) == ("old", "old")


def mark(folder: Path, name: str) -> None:
    with closing(sqlite3.connect(folder / "state/gateway.db")) as raw, raw:
        raw.execute(
            "INSERT INTO approval_rules (id, principal, source, name, arguments, shown, created_at, expires_at, made_by) "
            "VALUES (?, 'ada', 'docs', 'read', '', '', 1, 3e9, 'local')", (name,),
        )  # fmt: skip


def seen(folder: Path) -> tuple[str, str]:
    """Return which state the files and the rows have, as the commands show them."""
    rules = moongate("approvals", "rules", "--json", cwd=folder)
    keys = moongate("keys", "list", "--json", cwd=folder)
    assert (rules.code, keys.code) == (0, 0), rules.err + keys.err
    return ",".join(key["name"] for key in keys.data["keys"]), ",".join(rule["id"] for rule in rules.data["rules"])


def restore(folder: Path, archive: str) -> Ended:
    return moongate("db", "restore", archive, "--replace", "--json", cwd=folder)


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.faults)])
def test_killed_restore_leaves_the_old_or_the_new_state(stride: int, tmp_path: Path) -> None:
    prepare(tmp_path)
    found: list[str] = []
    for limit in range(0, 500, stride):
        code = dying(limit, "db", "restore", "b.tar", "--replace", cwd=tmp_path)
        assert code in (0, -signal.SIGKILL)
        files, rows = seen(tmp_path)
        assert files == rows, limit
        assert moongate("db", "check", cwd=tmp_path).code == 0
        found.append(files)
        if code == 0:
            break
        if files == "new":
            assert restore(tmp_path, "old.tar").code == 0
    assert {"old", "new"} == set(found) and found[-1] == "new"
    assert found == sorted(found, reverse=True)  # up to one point the old state, and then the new one
    assert not (tmp_path / "state/restoring").exists()


@pytest.mark.postgres
@pytest.mark.faults
def test_killed_restore_to_postgresql_is_finished_or_must_be_repeated(tmp_path: Path) -> None:
    found: list[str] = []
    with postgres() as server:
        prepare(tmp_path, {"dir": "state", "url": server.database("killed")})
        for limit in range(500):
            code = dying(limit, "db", "restore", "b.tar", "--replace", cwd=tmp_path)
            assert code in (0, -signal.SIGKILL)
            journal = tmp_path / "state/restoring/journal.json"
            if journal.exists() and json.loads(journal.read_text())["phase"] == "server":
                for words in (("approvals", "rules"), ("keys", "list"), ("doctor",), ("run", "--stdio")):
                    refused = moongate(*words, cwd=tmp_path)
                    assert refused.code != 0
                    assert "Run the same `moongate db restore` command again" in " ".join((refused.err + refused.out).split())
                assert restore(tmp_path, "b.tar").code == 0
                found.append("repeated")
            files, rows = seen(tmp_path)
            assert files == rows, limit
            found.append(files)
            if code == 0:
                break
            if files == "new":
                assert restore(tmp_path, "old.tar").code == 0
    # Up to one point the old state, then once a restore that must be repeated, and then the new state.
    assert sorted(set(found), key=found.index) == ["old", "repeated", "new"]
    assert found[found.index("repeated") :].count("old") == 0 and found.count("repeated") == 1


def test_killed_backup_leaves_no_file_or_a_complete_one(tmp_path: Path) -> None:
    prepare(tmp_path)
    codes: list[int] = []
    for limit in (0, 3, 9, 20, 30, 500):
        codes.append(dying(limit, "db", "backup", "c.tar", cwd=tmp_path))
        if (tmp_path / "c.tar").exists():
            assert restore(tmp_path, "c.tar").code == 0
            (tmp_path / "c.tar").unlink()
        assert seen(tmp_path) == ("old", "old")
        if codes[-1] == 0:
            break
    assert codes[0] == -signal.SIGKILL and codes[-1] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []


def test_two_backups_to_one_file_are_not_mixed(tmp_path: Path) -> None:
    prepare(tmp_path)
    command = [sys.executable, "-m", "gateway", "db", "backup", "two.tar"]
    env = {**environment(tmp_path), "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(2)]
    codes = sorted(process.wait(60) for process in both)
    assert codes in ([0, 2], [0, 0])
    assert restore(tmp_path, "two.tar").code == 0


def test_killed_migration_leaves_the_old_schema(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / "state/gateway.db"
    for wait in (0.0, 0.5):
        command = [sys.executable, "-c", SLOW, str(path)]
        env = {**environment(tmp_path), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(wait)
            process.kill()
            assert process.stdout.read() == "", "the migration was faster than the kill"
        done = moongate("db", "check", "--json", cwd=tmp_path)
        assert (done.code, done.data["schema"]) == (0, done.data["knownSchema"]), done.err
        assert seen(tmp_path) == ("old", "old")


def test_processes_that_migrate_at_once_run_each_step_once(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    (tmp_path / "state").mkdir()
    command = [sys.executable, "-m", "gateway", "db", "migrate", "--json"]
    env = {**environment(tmp_path), "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    ran = [json.loads(process.communicate(timeout=60)[0])["steps"] for process in processes]
    assert sorted(map(bool, ran)) == [False, False, True]
    assert moongate("db", "check", cwd=tmp_path).code == 0


def test_two_restores_at_once_restore_one_complete_state(tmp_path: Path) -> None:
    prepare(tmp_path)
    command = [sys.executable, "-m", "gateway", "db", "restore", "b.tar", "--replace"]
    env = {**environment(tmp_path), "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(2)]
    codes = sorted(process.wait(60) for process in both)
    assert codes in ([0, 2], [0, 0])
    assert seen(tmp_path) == ("new", "new")
    assert os.listdir(tmp_path / "state").count("restoring") == 0
