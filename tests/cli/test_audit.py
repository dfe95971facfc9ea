"""`moongate audit`: shows, follows and exports the audit log, and verifies exports without the gateway."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.load import load_text
from gateway.errors import ConfigError
from gateway.storage.record_types import AuditEntry
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.cli.processes import environment, moongate, write_gateway

DAY = 86_400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A configuration whose audit log has a refusal, an allowed call, and a call whose tool has the name of a formula."""
    write_gateway(tmp_path, storage={"dir": "state"})
    write(tmp_path, "call.refused", "docs__delete", {"outcome": "refused", "rule": "scopes", "milliseconds": 0.1})
    write(tmp_path, "call.finished", "docs__search", {"outcome": "complete", "milliseconds": 12.6, "bytes": 99, "client": "Inspector"})
    write(tmp_path, "call.finished", '=cmd|"/c calc"!A1', {"outcome": "error", "client": "@SUM(1)", "more": ["+1"]})
    return tmp_path


def write(folder: Path, kind: str, name: str, fields: dict[str, Any], at: float | None = None) -> None:
    import time

    async def work() -> None:
        records = Records(StateFolder(folder / "state"), audit_days=30)
        records.note(AuditEntry(time.time() if at is None else at, kind, "docs", name, "key:ada", fields))
        await records.aclose()

    anyio.run(work)


def test_allowed_calls_are_shown_on_request(log: Path) -> None:
    assert [entry["name"] for entry in moongate("audit", "--json", cwd=log).data["entries"]] == ["docs__delete"]
    shown = moongate("audit", "show", "--calls", "--json", cwd=log).data["entries"]
    assert [(entry["kind"], entry["outcome"]) for entry in shown] == [
        ("call.refused", "refused"), ("call.finished", "complete"), ("call.finished", "error"),
    ]  # fmt: skip
    assert moongate("audit", "--verify", "--json", cwd=log).data == {"entries": 3, "problem": None}
    assert moongate("audit", "verify", "--json", cwd=log).data == {"entries": 3, "problem": None}


def test_tail_prints_one_line_per_entry(log: Path) -> None:
    lines = moongate("audit", "tail", "-n", "2", cwd=log).out.splitlines()
    assert len(lines) == 2 and "name=docs__search caller=key:ada" in lines[0] and "milliseconds=12.6" in lines[0]
    [decision] = moongate("audit", "tail", "--decisions", "--json", cwd=log).out.splitlines()
    assert json.loads(decision)["rule"] == "scopes"
    assert moongate("audit", "tail", "--server", "other", cwd=log).out == ""


def test_tail_follows_entries_of_other_processes(log: Path) -> None:
    argv = [sys.executable, "-m", "gateway", "audit", "tail", "--follow", "-n", "1", "--json"]
    with subprocess.Popen(argv, cwd=log, env=environment(log, {"PYTHONPATH": os.getcwd()}), stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        try:
            assert json.loads(tail.stdout.readline())["outcome"] == "error"
            write(log, "call.finished", "new\nline", {"outcome": "complete"})
            assert json.loads(tail.stdout.readline())["name"] == "new\nline"
        finally:
            tail.kill()


@pytest.mark.parametrize("form", ["jsonl", "csv", "ocsf"])
def test_export_verifies_until_one_byte_changes(log: Path, form: str) -> None:
    done = moongate("audit", "export", "out", "--format", form, "--json", cwd=log)
    assert (done.code, done.data["entries"], done.data["manifest"]) == (0, 3, "out.manifest.json"), done.err
    key = moongate("audit", "key", cwd=log).out.strip()
    assert key == done.data["publicKey"]
    offline = log / "offline"
    offline.mkdir()
    for name in ("out", "out.manifest.json"):
        (offline / name).write_bytes((log / name).read_bytes())
    assert moongate("audit", "verify", "out", "--key", key, "--json", cwd=offline).data == {"files": 1, "entries": 3, "problem": None}
    assert not (offline / "xdg-state").exists(), "verifying an export makes no key"
    content, manifest = (offline / "out").read_bytes(), (offline / "out.manifest.json").read_text()
    (offline / "out").write_bytes(content.replace(b"scopes", b"scopez"))
    assert "was changed after the export" in moongate("audit", "verify", "out", "--key", key, cwd=offline).err
    (offline / "out").write_bytes(content)
    (offline / "out.manifest.json").write_text(manifest.replace('"entries": 3', '"entries": 2'))
    refused = moongate("audit", "verify", "out", "--key", key, cwd=offline)
    assert refused.code != 0 and "not signed with this key" in refused.err


def test_manifest_signed_with_another_key_is_refused(log: Path, tmp_path: Path) -> None:
    moongate("audit", "export", "out", cwd=log)
    other = tmp_path / "other"
    other.mkdir()
    write_gateway(other, storage={"dir": "state"})
    for name in ("out", "out.manifest.json"):
        (other / name).write_bytes((log / name).read_bytes())
    assert "not signed with this key" in moongate("audit", "verify", "out", cwd=other).err
    assert moongate("audit", "verify", "out", "--key", "ed25519:abc", cwd=other).code != 0
    assert moongate("audit", "verify", "missing", cwd=log).code != 0


def test_export_overwrites_nothing(log: Path) -> None:
    (log / "out").write_text("mine")
    assert "exists" in moongate("audit", "export", "out", cwd=log).err
    assert (log / "out").read_text() == "mine"


def test_csv_cells_are_no_formulas(log: Path) -> None:
    moongate("audit", "export", "out.csv", "--format", "csv", cwd=log)
    with (log / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["docs__delete", "docs__search", "'=cmd|\"/c calc\"!A1"]
    assert rows[2]["client"] == "'@SUM(1)" and json.loads(rows[2]["other"]) == {"more": ["+1"]}
    assert (rows[1]["milliseconds"], rows[1]["bytes"]) == ("12.6", "99")
    assert not [cell for row in rows for cell in row.values() if re.match(r"[=+\-@\t\r]", cell)]


def test_ocsf_events_have_what_their_class_requires(log: Path) -> None:
    moongate("audit", "export", "out", "--format", "ocsf", cwd=log)
    refused, allowed, failed = [json.loads(line) for line in (log / "out").read_text().splitlines()]
    for event in (refused, allowed, failed):
        assert (event["class_uid"], event["category_uid"], event["type_uid"]) == (6003, 6, 600_399)
        assert isinstance(event["time"], int) and event["metadata"]["version"] == "1.3.0"
        assert event["metadata"]["product"]["vendor_name"] and event["api"]["operation"] and event["actor"]["user"]["uid"]
        assert event["src_endpoint"]["uid"] == "key:ada" and event["severity_id"] in (1, 2)
    assert (refused["status_id"], refused["action_id"], refused["status_detail"]) == (2, 2, "scopes")
    assert (allowed["status_id"], allowed["action_id"], allowed["duration"]) == (1, 1, 13)
    assert failed["status_id"] == 2 and failed["unmapped"]["more"] == ["+1"]


def test_gap_between_exports_shows(log: Path) -> None:
    import time

    from gateway.storage.audit_export import verify_sequence

    write(log, "call.finished", "later", {"outcome": "complete"}, time.time() + 2 * DAY)
    moongate("audit", "export", "all", cwd=log)
    moongate("audit", "export", "again", cwd=log)
    assert moongate("audit", "verify", "all", "again", "--json", cwd=log).data["entries"] == 8
    whole = json.loads((log / "all.manifest.json").read_text())
    first = {**whole, "lastId": 1, "head": "a"}
    assert verify_sequence([{**whole, "firstId": 2, "before": "a"}, first]) == ""
    assert "entries between 1 (all) and 3 (all) are missing" in verify_sequence([first, {**whole, "firstId": 3, "before": "b"}])


def test_damaged_log_is_exported_and_said_to_be_damaged(log: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(log / "state" / "gateway.db")) as raw, raw:
        raw.execute("UPDATE audit SET principal = 'key:bob' WHERE id = 2")
    done = moongate("audit", "export", "out", cwd=log)
    assert done.code != 0 and "entry 2 was changed" in done.err
    refused = moongate("audit", "verify", "out", cwd=log)
    assert refused.code != 0 and "already damaged" in refused.err


@pytest.mark.parametrize("wrong", [{"callSample": {"docs": 0.5}}, {"callSample": {"docs/*": 2}}, {"arguments": {"*/x": {"a": "mask"}}}])
def test_wrong_rule_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_text(json.dumps({"audit": wrong}), Path("gateway.json"), {})
    assert "audit." in str(raised.value) or (raised.value.path or "").startswith("audit.")
