"""The state and the configuration that released versions wrote open in this version, through its commands and over MCP."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from gateway.storage.migrations import STEPS
from tests.cli.processes import moongate
from tests.fakes.openai_server import openai_server
from tests.fakes.postgres import postgres
from tests.interaction.wire import over_stdio
from tests.storage.kept.restored import VERSIONS, Kept, restored
from tests.tasks.test_gateways import until

pytestmark = [pytest.mark.timeout(90)]


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """A working folder of each kept version."""
    return restored(request.param, tmp_path / "kept")


def run(kept: Kept, *words: str) -> Any:
    """Run a command on the kept state and return its JSON output."""
    done = moongate(*words, "--json", cwd=kept.folder)
    assert done.code == 0, done.err
    return done.data


def schema_of(kept: Kept) -> int:
    with closing(sqlite3.connect(kept.folder / "state/gateway.db")) as database:
        return database.execute("SELECT MAX(version) FROM schema_version").fetchone()[0]


def test_every_minor_version_is_kept() -> None:
    assert "0.1" in VERSIONS


def test_check_reads_the_database_of_an_earlier_version(kept: Kept) -> None:
    before = schema_of(kept)
    done = moongate("db", "check", "--json", cwd=kept.folder)
    assert done.code == (7 if before < len(STEPS) else 0), done.err
    assert {finding["check"]: finding["state"] for finding in done.data["findings"] if finding["check"] != "schema"} == {
        "file": "ok",
        "rows": "ok",
        "audit": "ok",
    }
    assert schema_of(kept) == before
    run(kept, "db", "migrate")
    assert run(kept, "db", "check")["schema"] == len(STEPS)


def test_commands_show_what_an_earlier_version_stored(kept: Kept) -> None:
    facts = kept.facts
    assert {task["id"]: task["status"] for task in run(kept, "tasks")["tasks"]} == {
        facts["finished"]: "completed",
        facts["unfinished"]: "working",
    }
    shown = run(kept, "tasks", "show", facts["finished"])
    assert "a12" in json.dumps(shown)
    assert [found["id"] for found in run(kept, "sessions")["sessions"]] == [facts["session"]]
    messages = run(kept, "sessions", "show", facts["session"])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert [rule["id"] for rule in run(kept, "approvals", "rules")["rules"]] == [facts["rule"]]
    entries = run(kept, "audit", "--since", "36500d")["entries"]
    assert len(entries) >= facts["audit"]
    assert {"approval.decided", "call.refused"} <= {entry["kind"] for entry in entries}, entries
    assert run(kept, "audit", "--verify")["problem"] is None
    assert [key["name"] for key in run(kept, "keys", "list")["keys"]] == ["ada"]


async def test_client_resumes_a_session_and_reads_a_finished_task(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = kept.facts
    with openai_server({"text": "You said: {last_user}", "repeat": True}) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        async with over_stdio(kept.path, "modern") as wire:
            finished = await until(wire, facts["finished"], "completed")
            assert finished["result"]["content"] == facts["result"]
            await unfinished_task_ends(kept, wire)
        async with over_stdio(kept.path, "modern", tasks=False) as wire:
            arguments = {"task": "Who am I?", "session_id": facts["session"]}
            answer = await wire.send("tools/call", name="agent__helper", arguments=arguments)
            assert answer["result"]["content"][0]["text"] == "You said: Who am I?"
            heard = [message["content"] for message in (await model.requests())[-1]["body"]["messages"] if message["role"] == "user"]
            assert heard == ["I am Ada.", "I like figs.", "Who am I?"]
            # The standing approval still holds, and the server's definitions are still accepted.
            written = await wire.send("tools/call", name="notes__write", arguments={"path": "notes/b"})
            assert written["result"]["content"][0]["text"] == "write notes/b"


async def unfinished_task_ends(kept: Kept, wire: Any) -> None:
    """Let the task that the killed process ran continue: only the step in doubt may run again."""
    (kept.folder / "go").touch()
    with anyio.fail_after(40):
        while (state := (await wire.send("tasks/get", taskId=kept.facts["unfinished"]))["result"])["status"] != "completed":
            if state["status"] == "input_required":
                answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
                await wire.send("tasks/update", taskId=kept.facts["unfinished"], inputResponses=answers)
            await anyio.sleep(0.1)
    assert state["result"]["content"][0]["text"] == "b12"
    assert (kept.folder / "journal").read_text().split() == ["second"]


@pytest.mark.postgres
def test_backup_of_an_earlier_version_moves_to_postgresql_and_back(kept: Kept) -> None:
    """The backup is made of the database as the earlier version left it, without a migration."""
    run(kept, "db", "backup", "old.tar")
    with postgres() as server:
        document = json.loads(kept.path.read_text())
        document["storage"] = {"dir": "other", "auditDays": 36500, "url": server.database("moved")}
        (kept.folder / "server.json").write_text(json.dumps(document))
        report = run(kept, "db", "restore", "old.tar", "--config", "server.json")
        assert report["rows"] > 20
        assert run(kept, "db", "check", "--config", "server.json")["schema"] == len(STEPS)
        for words in (("tasks",), ("sessions",), ("keys", "list"), ("audit", "--since", "36500d")):
            assert run(kept, *words, "--config", "server.json") == run(kept, *words)
        assert run(kept, "audit", "--verify", "--config", "server.json")["problem"] is None
        run(kept, "db", "backup", "server.tar", "--config", "server.json")
        before = rows_of(kept)
        run(kept, "db", "restore", "server.tar", "--replace")
        assert rows_of(kept) == before
        refused = moongate("db", "restore", "old.tar", "--config", "server.json", cwd=kept.folder)
        assert (refused.code, "--replace" in refused.err) == (2, True)
        # A gateway on another machine, which this state folder does not know, has a connection.
        with psycopg.connect(document["storage"]["url"], application_name="moongate"):
            refused = moongate("db", "restore", "old.tar", "--replace", "--config", "server.json", cwd=kept.folder)
            assert (refused.code, "Stop every gateway" in refused.err) == (2, True)
        assert rows_of(kept) == before
        run(kept, "db", "restore", "old.tar", "--replace", "--config", "server.json")


def rows_of(kept: Kept) -> list[str]:
    """Return the rows of the database as SQL, without those of migrations and the digest that only shared databases have."""
    with closing(sqlite3.connect(kept.folder / "state/gateway.db")) as database:
        lines = [line for line in database.iterdump() if line.startswith("INSERT")]
    lines = [line for line in lines if "schema_" not in line and '"installation"' not in line]
    return sorted(lines)
