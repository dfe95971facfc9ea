"""`moongate db`: check, migrate, backup and restore on SQLite, through the command line."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.migrations import STEPS
from tests.cli.processes import Ended, moongate, write_gateway
from tests.fakes.running import ROOT, child, free_port, wait_until_ready
from tests.storage.earlier_schemas import SCHEMA, back_to_13

pytestmark = pytest.mark.fleet

KNOWN = len(STEPS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration, a migrated database with an audit entry and a task, and an API key."""
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    assert moongate("keys", "add", "ada", "--json", cwd=tmp_path).code == 0
    assert moongate("db", "migrate", cwd=tmp_path).code == 0
    add_rows(tmp_path)
    return tmp_path


def add_rows(folder: Path) -> None:
    task = (
        "INSERT INTO tasks (id, principal, tool, call, status, message, outcome, asked, ttl_seconds, created_at, updated_at, gone_at, "
        "is_cancelled, attempts, owner) VALUES ('t1', 'local', 'x', '{}', 'completed', '', '{}', '[]', 1e9, 2e9, 2e9, 3e9, 0, 1, '')"
    )
    sql(folder, task)
    sql(folder, "INSERT INTO task_steps (task, key, is_done, value) VALUES ('t1', 'a', 1, '\"é\"' || char(0))")
    sql(folder, "INSERT INTO memories (owner, collection, text, vector, fields, at) VALUES ('ada', 'm', 'x', x'00ff', '{}', 1.5)")
    rule = ("INSERT INTO approval_rules (id, principal, source, name, arguments, shown, created_at, expires_at, made_by) "
            "VALUES ('r1', 'ada', 'docs', 'read', '', '', 1, 3e9, 'local')")  # fmt: skip
    sql(folder, rule)
    assert moongate("approvals", "revoke", "r1", cwd=folder).code == 0  # writes an audit entry


def sql(folder: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "state/gateway.db")) as raw, raw:
        return raw.execute(statement).fetchall()


def states(done: Ended) -> dict[str, str]:
    """Return the state of each check."""
    return {finding["check"]: finding["state"] for finding in done.data["findings"]}


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of the state folder that are no locks and no URLs of gateways, with the rows in place of the database."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / "state").rglob("*"))
        if path.is_file() and path.suffix != ".lock" and "endpoints" not in path.parts and not path.name.startswith("gateway.db")
    }
    if (folder / "state/gateway.db").exists():
        with closing(sqlite3.connect(folder / "state/gateway.db")) as raw:
            found["rows"] = "\n".join(raw.iterdump()).encode()
    return found


# -- check and migrate -----------------------------------------------------------------------------------------------


def test_check_verifies_the_audit_log_with_the_configured_installation_key(tmp_path: Path) -> None:
    env = {"ROOT_KEY": bytes(range(32)).hex()}
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state", "installationKey": "${env:ROOT_KEY}"})
    assert moongate("db", "migrate", cwd=tmp_path, env=env).code == 0
    rule = ("INSERT INTO approval_rules (id, principal, source, name, arguments, shown, created_at, expires_at, made_by) "
            "VALUES ('r1', 'ada', 'docs', 'read', '', '', 1, 3e9, 'local')")  # fmt: skip
    sql(tmp_path, rule)
    assert moongate("approvals", "revoke", "r1", cwd=tmp_path, env=env).code == 0  # writes an audit entry
    for first, expected in ((0, (0, "ok")), (1, (5, "damaged"))):
        done = moongate("db", "check", "--json", cwd=tmp_path, env={"ROOT_KEY": bytes(range(first, first + 32)).hex()})
        found = next(json.loads(line) for line in done.out.splitlines())
        assert (done.code, {finding["check"]: finding["state"] for finding in found["findings"]}["audit"]) == expected


def test_check_of_a_sound_database_ends_with_zero(folder: Path) -> None:
    before = content(folder)
    done = moongate("db", "check", "--json", cwd=folder)
    assert (done.code, done.data["schema"], done.data["waiting"]) == (0, KNOWN, [])
    assert states(done) == {"schema": "ok", "file": "ok", "rows": "ok", "audit": "ok"}
    assert content(folder) == before


def test_check_without_a_database_creates_nothing(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    assert moongate("db", "check", cwd=tmp_path).code == 0
    assert not (tmp_path / "state").exists()


def test_check_names_waiting_steps_and_migrate_runs_them(folder: Path) -> None:
    steps = back_to_13(lambda statement: sql(folder, statement))
    done = moongate("db", "check", "--json", cwd=folder)
    assert (done.code, done.data["waiting"], done.error["code"]) == (7, steps, "migration-waits")
    assert moongate("db", "check", "--json", cwd=folder).code == 7  # it only read
    migrated = moongate("db", "migrate", "--json", cwd=folder)
    assert migrated.data == {"schema": KNOWN, "steps": steps}
    assert moongate("db", "migrate", "--json", cwd=folder).data == {"schema": KNOWN, "steps": []}
    assert moongate("db", "check", cwd=folder).code == 0


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        ("rows", "DELETE FROM tasks"),
        ("audit", "UPDATE audit SET principal = 'mallory'"),
        ("audit", "DELETE FROM audit"),
    ],
)
def test_check_finds_damaged_rows(folder: Path, check: str, statement: str) -> None:
    sql(folder, statement)
    done = moongate("db", "check", "--json", cwd=folder)
    assert (done.code, states(done)[check], done.error["code"]) == (5, "damaged", "database-damaged")


@pytest.mark.parametrize("damage", ["head", "middle"])
def test_check_and_backup_find_a_damaged_file(folder: Path, damage: str) -> None:
    sql(folder, "PRAGMA journal_mode=DELETE")
    path = folder / "state/gateway.db"
    whole = bytearray(path.read_bytes())
    start = 0 if damage == "head" else 4096
    whole[start : start + 4096 * 8] = b"\xff" * 4096 * 8
    path.write_bytes(whole)
    done = moongate("db", "check", "--json", cwd=folder)
    assert done.code == 5, done.err
    assert states(done)["file"] == "damaged"
    backup = moongate("db", "backup", "b.tar", cwd=folder)
    assert backup.code == 2
    assert not (folder / "b.tar").exists()


def test_check_without_the_installation_key_says_so(folder: Path) -> None:
    (folder / "state/installation-key").unlink()
    done = moongate("db", "check", "--json", cwd=folder)
    assert (done.code, states(done)["audit"]) == (5, "damaged")
    assert not (folder / "state/installation-key").exists()


# -- backup ----------------------------------------------------------------------------------------------------------


def test_backup_is_one_private_file_with_digests(folder: Path) -> None:
    done = moongate("db", "backup", "b.tar", "--json", cwd=folder)
    assert done.code == 0, done.err
    path = folder / "b.tar"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert done.data["bytes"] == path.stat().st_size
    with tarfile.open(path) as tar:
        assert tar.getnames()[0] == "manifest.json"
        bodies = {name: body.read() for name in tar.getnames() if (body := tar.extractfile(name)) is not None}
    manifest = json.loads(bodies.pop("manifest.json"))
    assert manifest["schema"] == KNOWN
    assert {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()} == {
        name: member["sha256"] for name, member in manifest["members"].items()
    }
    assert {"state/installation-key", "state/keys.json", "database/tasks.jsonl"} <= bodies.keys()
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_backup_overwrites_no_file(folder: Path) -> None:
    (folder / "b.tar").write_text("mine")
    done = moongate("db", "backup", "b.tar", cwd=folder)
    assert (done.code, (folder / "b.tar").read_text()) == (2, "mine")
    assert "exists already" in done.err


def test_backup_to_a_missing_folder_names_it(folder: Path) -> None:
    done = moongate("db", "backup", "no/b.tar", cwd=folder)
    assert (done.code, "no/b.tar" in done.err) == (2, True)


def test_backup_of_nothing_is_refused(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    done = moongate("db", "backup", "b.tar", cwd=tmp_path)
    assert (done.code, "nothing to back up" in done.err) == (2, True)


# -- restore ---------------------------------------------------------------------------------------------------------


def test_restore_into_an_empty_folder_brings_everything_back(folder: Path, tmp_path: Path) -> None:
    (folder / "state/results/owner").mkdir(parents=True)
    (folder / "state/results/owner/kept").write_bytes(b"a result")
    os.utime(folder / "state/results/owner/kept", (1e9, 1e9))
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    other = tmp_path / "other"
    other.mkdir()
    write_gateway(other, mcpServers={}, storage={"dir": "state"})
    done = moongate("db", "restore", str(folder / "b.tar"), "--json", cwd=other)
    assert done.code == 0, done.err
    assert (other / "state/results/owner/kept").stat().st_mtime == 1e9
    before, after = content(folder), content(other)
    assert rows_of(before.pop("rows")) == rows_of(after.pop("rows"))
    assert after == before
    assert moongate("db", "check", cwd=other).code == 0
    assert moongate("audit", "--since", "9d", "--json", cwd=other).data == moongate("audit", "--since", "9d", "--json", cwd=folder).data
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (other / "state").rglob("*"))
    # Rows continue to be numbered where they were, or the audit log would not verify.
    sql(other, "INSERT INTO approval_rules (id, principal, source, name, arguments, shown, created_at, expires_at, made_by) "
        "VALUES ('r2', 'ada', 'docs', 'read', '', '', 1, 3e9, 'local')")  # fmt: skip
    assert moongate("approvals", "revoke", "r2", cwd=other).code == 0
    assert moongate("audit", "--verify", cwd=other).code == 0


def rows_of(dump: bytes) -> list[str]:
    """Return the statements of a dump, without the times of migrations, sorted."""
    return sorted(line for line in dump.decode().splitlines() if "schema_version" not in line)


def test_restore_keeps_the_numbers_of_deleted_audit_entries(folder: Path) -> None:
    sql(folder, "UPDATE sqlite_sequence SET seq = 70 WHERE name = 'audit'")
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    assert moongate("db", "restore", "b.tar", "--replace", cwd=folder).code == 0
    assert sql(folder, "SELECT seq FROM sqlite_sequence WHERE name = 'audit'") == [(70,)]


def test_restore_replaces_a_state_only_if_told(folder: Path) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    saved = content(folder)
    assert moongate("keys", "add", "bob", cwd=folder).code == 0
    (folder / "state/pins").mkdir()
    (folder / "state/pins/new.json").write_text("{}")
    sql(folder, "DELETE FROM task_steps")
    changed = content(folder)
    refused = moongate("db", "restore", "b.tar", cwd=folder)
    assert (refused.code, "--replace" in refused.err) == (2, True)
    assert content(folder) == changed
    assert moongate("db", "restore", "b.tar", "--replace", cwd=folder).code == 0
    before, after = saved, content(folder)
    assert rows_of(before.pop("rows")) == rows_of(after.pop("rows"))
    assert after == before
    assert not (folder / "state/restoring").exists()


def test_restore_over_a_damaged_database_works(folder: Path) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    (folder / "state/gateway.db").write_bytes(b"\xff" * 9999)
    assert moongate("db", "check", cwd=folder).code == 5
    assert moongate("db", "restore", "b.tar", "--replace", cwd=folder).code == 0
    assert moongate("db", "check", cwd=folder).code == 0


def test_restore_of_an_older_schema_migrates_it(folder: Path) -> None:
    steps = back_to_13(lambda statement: sql(folder, statement))
    assert moongate("db", "backup", "b.tar", "--json", cwd=folder).data["schema"] == SCHEMA
    assert moongate("db", "check", cwd=folder).code == 7  # the backup did not migrate
    done = moongate("db", "restore", "b.tar", "--replace", "--json", cwd=folder)
    assert (done.code, done.data["schema"], done.data["steps"]) == (0, SCHEMA, steps)
    assert moongate("db", "check", cwd=folder).code == 0


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_restore_is_refused_while_a_gateway_runs(folder: Path, way: str) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    config, log = str(folder / "gateway.json"), folder / "gateway.log"
    port = free_port()
    with ExitStack() as stack:
        if way == "http":
            process = stack.enter_context(child("-m", "gateway", "run", "--http", f":{port}", "--config", config, log=log))
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        else:
            argv = [sys.executable, "-m", "gateway", "run", "--stdio", "-c", config]
            stdio = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=ROOT))
            stack.callback(stdio.kill)
            until_locked(folder)
        before = content(folder)
        done = moongate("db", "restore", "b.tar", "--replace", cwd=folder)
        assert (done.code, "Stop" in done.err) == (2, True), done.err
        assert content(folder) == before
        assert moongate("db", "backup", "c.tar", cwd=folder).code == 0
    assert moongate("db", "restore", "b.tar", "--replace", cwd=folder).code == 0


def until_locked(folder: Path) -> None:
    """Wait until a gateway uses the state folder."""
    from gateway.storage.atomic_files import lock_file_of, try_sole_lock
    from tests.fakes.running import until

    def is_used() -> bool:
        descriptor = lock_file_of(folder / "state/in-use")
        try:
            return not try_sole_lock(descriptor)
        finally:
            os.close(descriptor)

    until(is_used)


def test_restore_is_refused_while_a_program_has_the_database_open(folder: Path) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    with closing(sqlite3.connect(folder / "state/gateway.db")) as raw:
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("SELECT COUNT(*) FROM tasks").fetchall()
        done = moongate("db", "restore", "b.tar", "--replace", cwd=folder)
    assert (done.code, "open" in done.err) == (2, True)


# -- hostile and damaged backups -------------------------------------------------------------------------------------


def rewritten(folder: Path, change: Callable[[dict[str, Any], dict[str, bytes], list[tarfile.TarInfo]], None]) -> None:
    """Write `b.tar` again after `change` has changed the manifest, the members, or further members without content."""
    with tarfile.open(folder / "b.tar") as tar:
        bodies = {name: body.read() for name in tar.getnames() if (body := tar.extractfile(name)) is not None}
    manifest, further = json.loads(bodies.pop("manifest.json")), list[tarfile.TarInfo]()
    change(manifest, bodies, further)
    with tarfile.open(folder / "b.tar", "w") as tar:
        for name, body in {"manifest.json": json.dumps(manifest).encode(), **bodies}.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        for info in further:
            tar.addfile(info)


def added(name: str, **fields: Any) -> Callable[[dict[str, Any], dict[str, bytes], list[tarfile.TarInfo]], None]:
    """Return a change that adds a member which the manifest describes; with `type` in `fields`, one without content."""

    def change(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
        body = b"" if fields else b"x"
        manifest["members"][name] = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "modified": 0}
        if not fields:
            bodies[name] = body
            return
        info = tarfile.TarInfo(name)
        for key, value in fields.items():
            setattr(info, key, value)
        further.append(info)

    return change


def as_json(table: str, *rows: Any) -> Callable[[dict[str, Any], dict[str, bytes], list[tarfile.TarInfo]], None]:
    """Return a change that replaces the rows of a table."""

    def change(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        bodies[f"database/{table}.jsonl"] = body
        manifest["members"][f"database/{table}.jsonl"] = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "modified": 0}

    return change


def claims_a_huge_member(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    manifest["members"]["database/tasks.jsonl"]["size"] = 1 << 50


def lacks_a_table(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    del manifest["members"]["database/tasks.jsonl"], bodies["database/tasks.jsonl"]


def lacks_a_member(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    del bodies["database/tasks.jsonl"]


def has_another_digest(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    bodies["state/keys.json"] = bodies["state/keys.json"].replace(b"ada", b"eve")


def has_a_member_twice(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    further.append(tarfile.TarInfo("state/keys.json"))


def is_newer(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    manifest["schema"] = KNOWN + 1


def has_a_newer_format(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    manifest["format"] = 2


def is_malformed(manifest: dict[str, Any], bodies: dict[str, bytes], further: list[tarfile.TarInfo]) -> None:
    manifest["members"] = ["x"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(added("../evil"), "names '../evil'", id="parent"),
        pytest.param(added("/etc/evil"), "names '/etc/evil'", id="absolute"),
        pytest.param(added("state/../../evil"), "names", id="parent within"),
        pytest.param(added("state/tokens/../../../evil"), "names", id="parent below a folder"),
        pytest.param(added("state/tokens\\..\\evil"), "names", id="backslash"),
        pytest.param(added("state/gateway.db"), "names", id="another file of the state folder"),
        pytest.param(added("state/tokens"), "names", id="file in place of a folder"),
        pytest.param(added("database/evil.jsonl"), "names", id="unknown table"),
        pytest.param(added("state/tokens/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is not as the manifest", id="symbolic link"),
        pytest.param(added("state/tokens/x", type=tarfile.LNKTYPE, linkname="state/keys.json"), "is not as the manifest", id="hard link"),
        pytest.param(added("state/tokens/x", type=tarfile.FIFOTYPE), "is not as the manifest", id="fifo"),
        pytest.param(added("state/tokens/x", type=tarfile.DIRTYPE), "is not as the manifest", id="folder"),
        pytest.param(claims_a_huge_member, "larger than the backup itself", id="size"),
        pytest.param(lacks_a_table, "do not fit together", id="missing table"),
        pytest.param(lacks_a_member, "is missing", id="missing member"),
        pytest.param(has_another_digest, "does not match its digest", id="digest"),
        pytest.param(has_a_member_twice, "is not as the manifest", id="twice"),
        pytest.param(is_newer, "Update Moongate", id="newer schema"),
        pytest.param(has_a_newer_format, "another Moongate", id="newer format"),
        pytest.param(is_malformed, "manifest is malformed", id="malformed"),
        pytest.param(as_json("locks", ["name; DROP TABLE tasks"], ["x"]), "do not fit the table", id="unknown column"),
        pytest.param(as_json("locks", ["name"], ["x", "y"]), "do not fit the table", id="too many values"),
        pytest.param(as_json("locks", ["name"], [["x"]]), "do not fit the table", id="nested value"),
        pytest.param(as_json("locks", ["name"], [{"base64": "*"}]), "do not fit the table", id="malformed bytes"),
        pytest.param(as_json("locks", ["name"], ["x"], ["x"]), "cannot be used", id="same key twice"),
        pytest.param(as_json("locks", "name"), "do not fit the table", id="no columns"),
    ],
)
def test_restore_refuses_a_hostile_backup_and_changes_nothing(folder: Path, change: Any, said: str) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    rewritten(folder, change)
    before, beside = content(folder), sorted(folder.rglob("*"))
    done = moongate("db", "restore", "b.tar", "--replace", cwd=folder)
    assert done.code == 2, done.err
    assert said in " ".join(done.err.split()), done.err
    assert content(folder) == before
    assert [path for path in sorted(folder.rglob("*")) if path not in beside and path.suffix != ".lock"] == []


def test_restore_refuses_every_truncated_or_altered_backup(folder: Path) -> None:
    assert moongate("db", "backup", "b.tar", cwd=folder).code == 0
    whole, before = (folder / "b.tar").read_bytes(), content(folder)
    with tarfile.open(folder / "b.tar") as tar:
        used = max(info.offset_data + info.size for info in tar.getmembers())
        places = [info.offset_data + info.size // 2 for info in tar.getmembers() if info.size]
    broken = [whole[:length] for length in range(0, used, used // 20)]
    broken += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    for data in broken:
        (folder / "b.tar").write_bytes(data)
        done = moongate("db", "restore", "b.tar", "--replace", cwd=folder)
        assert done.code == 2, done
        assert content(folder) == before
    (folder / "b.tar").write_bytes(whole)
    assert moongate("db", "restore", "b.tar", "--replace", cwd=folder).code == 0


def test_restore_of_another_file_says_that_it_is_not_a_backup(folder: Path) -> None:
    done = moongate("db", "restore", "gateway.json", "--replace", cwd=folder)
    assert (done.code, "not a backup" in done.err) == (2, True)
    done = moongate("db", "restore", "missing.tar", "--replace", cwd=folder)
    assert (done.code, "missing.tar" in done.err) == (2, True)
