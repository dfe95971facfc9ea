"""Makes a kept state folder by running the command `moongate` of an installed release, as its users would.

    git worktree add /tmp/release COMMIT
    python -m venv /tmp/old && /tmp/old/bin/pip install /tmp/release
    python -m tests.storage.kept.make VERSION /tmp/old/bin/moongate

writes `VERSION/`, which has the files of the configuration (copied from `files/`), the database as SQL text, the other files of the state
folder, and `facts.json` with the ids that tests look for. Do it with every release. `files/` may then use new keys, but the copies in the
folders of earlier versions never change.

The gateways run over HTTP, a finished and an unfinished task, a session with two turns, a standing approval, audit entries, accepted
definitions and an API key are made, and the last gateway is killed. The API key is only for these tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio

from tests.cli.processes import environment
from tests.fakes.openai_server import openai_server
from tests.fakes.running import free_port, wait_until_ready
from tests.interaction.wire import HttpWire, over_http
from tests.tasks.test_gateways import until

HERE = Path(__file__).parent
STATE_FOLDERS = ("pins", "tokens")
"""Folders that are kept. The record of accepted commands is not, because its name and content depend on the path of the configuration."""


@contextmanager
def served(moongate: str, folder: Path, environ: dict[str, str]) -> Generator[str]:
    """Run the release's gateway over HTTP, yield its endpoint, and kill it."""
    port, log = free_port(), folder / "gateway.log"
    command = [moongate, "run", "--http", f"127.0.0.1:{port}", "--config", str(folder / "gateway.json")]
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, start_new_session=True, env=environ)
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def command(moongate: str, folder: Path, environ: dict[str, str], *words: str) -> Any:
    """Run a command of the release and return its JSON output."""
    done = subprocess.run([moongate, *words, "--json"], cwd=folder, env=environ, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


async def use(moongate: str, folder: Path, environ: dict[str, str], url: str) -> dict[str, Any]:
    """Make everything that the fixture keeps; return the ids."""
    async with over_http(url, "modern") as wire:
        done = await started(wire, folder, "a")
        (folder / "go").touch()
        finished = await until(wire, done, "completed")
        (folder / "go").unlink()
        async with over_http(url, "modern", tasks=False) as plain:
            first = await plain.send("tools/call", name="agent__helper", arguments={"task": "I am Ada.", "session_id": "new"})
            session = first["result"]["_meta"]["dev.moongate/sessionId"]
            await plain.send("tools/call", name="agent__helper", arguments={"task": "I like figs.", "session_id": session})
            rule = await approved(moongate, folder, environ, plain)
            refused = await plain.send("tools/call", name="notes__read", arguments={"path": "/etc/passwd"})
            assert refused["result"]["isError"], refused
        runs = await started(wire, folder, "b")
    return {"finished": done, "result": finished["result"]["content"], "unfinished": runs, "session": session, "rule": rule}


async def started(wire: HttpWire, folder: Path, x: str) -> str:
    """Start the workflow as a task, and wait until it runs its second step."""
    journal = folder / "journal"
    there = journal.read_text().count("second") if journal.exists() else 0
    answer = await wire.send("tools/call", name="workflow__flow", arguments={"x": x})
    with anyio.fail_after(30):
        while not journal.exists() or journal.read_text().count("second") <= there:
            await anyio.sleep(0.05)
    return answer["result"]["taskId"]


async def approved(moongate: str, folder: Path, environ: dict[str, str], wire: HttpWire) -> str:
    """Call a tool that needs approval, approve it for good from a terminal, and return the id of the standing approval."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call_to_approve, wire)
        with anyio.fail_after(30):
            while not (waiting := command(moongate, folder, environ, "approvals", "list")["approvals"]):
                await anyio.sleep(0.1)
        words = ("approvals", "approve", waiting[0]["id"], "--always")
        await anyio.to_thread.run_sync(lambda: command(moongate, folder, environ, *words))
    [rule] = command(moongate, folder, environ, "approvals", "rules")["rules"]
    return rule["id"]


async def call_to_approve(wire: HttpWire) -> None:
    async with over_http(wire.url, "modern", tasks=False, capabilities={}) as other:  # a client that cannot be asked
        answer = await other.send("tools/call", name="notes__write", arguments={"path": "notes/a"})
        assert answer["result"]["content"][0]["text"] == "write notes/a", answer


def keep(version: str, folder: Path, facts: dict[str, Any]) -> None:
    """Write the files of the configuration and of the state to the folder of this version."""
    target = HERE / version
    shutil.copytree(HERE / "files", target, ignore=shutil.ignore_patterns("__pycache__"))
    with closing(sqlite3.connect(folder / "state/gateway.db")) as database:
        (target / "database.sql").write_text("\n".join([*database.iterdump(), ""]), encoding="utf-8")
    (target / "state").mkdir()
    for name in ("installation-key", "keys.json"):
        shutil.copy(folder / "state" / name, target / "state" / name)
    for name in STATE_FOLDERS:
        if (folder / "state" / name).exists():
            shutil.copytree(folder / "state" / name, target / "state" / name, ignore=shutil.ignore_patterns("*.lock"))
    (target / "facts.json").write_text(json.dumps({"at": time.time(), **facts}, indent=1) + "\n")


def make(version: str, moongate: str) -> None:
    """Make the folder `version` with the release's command."""
    with tempfile.TemporaryDirectory() as made, openai_server({"text": "You said: {last_user}", "repeat": True}) as model:
        folder = Path(made) / "gateway"
        shutil.copytree(HERE / "files", folder)
        environ = {**environment(folder), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "x", "MOONGATE_PYTHON": sys.executable}
        environ.pop("PYTHONPATH", None)
        with served(moongate, folder, environ) as url:
            facts = anyio.run(use, moongate, folder, environ, url)
            facts["key"] = command(moongate, folder, environ, "keys", "add", "ada", "--scope", "notes/*")["key"]
            facts["audit"] = len(command(moongate, folder, environ, "audit")["entries"])
            shown = subprocess.run([moongate, "--version"], env=environ, capture_output=True, text=True, check=True)
            facts["version"] = shown.stdout.split()[-1]
            time.sleep(1)  # the gateway writes the audit log in batches
        facts["configuration"] = configuration_id(folder)
        keep(version, folder, facts)


def configuration_id(folder: Path) -> str:
    """Return the id under which the gateway stored its rows, which depends on the path of the configuration."""
    with closing(sqlite3.connect(folder / "state/gateway.db")) as database:
        [found] = database.execute("SELECT DISTINCT gateway FROM sessions").fetchone()
    return found


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2])
