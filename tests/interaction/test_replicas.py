"""Two gateways on machines of their own (separate state folders) with one database: API keys, revocations and the installation key."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import psycopg
import pytest

from gateway.auth import key_rows
from gateway.auth.api_keys import KeyStore
from gateway.server.sdk_path.call_methods import KEY_GONE
from tests.cli.processes import Ended, moongate_process
from tests.fakes.inside import gateway_inside
from tests.fakes.postgres import Postgres, postgres
from tests.fakes.running import ROOT, gateway_http, upstream_http, write_config
from tests.interaction.wire import Era, Wire, modern_params, over_http

pytestmark = [pytest.mark.fleet, pytest.mark.postgres, pytest.mark.timeout(90)]

ROOT_KEY = secrets.token_hex(32)


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    return server.database(f"replicas_{secrets.token_hex(4)}")


@dataclass(frozen=True)
class Site:
    """The configuration files of two machines, whose gateways share a database."""

    folder: Path
    env: dict[str, str]
    config: dict[str, Any]

    def settings(self, name: str) -> dict[str, Any]:
        """Return the configuration of the machine `name`."""
        storage = {"dir": str(self.folder / f"{name}-state"), "url": "${env:SITE_DATABASE}", "installationKey": "${env:SITE_KEY}"}
        return {"storage": storage, **self.config}

    def command(self, name: str, *arguments: str) -> Ended:
        """Run a command on the machine `name`."""
        path = write_config(self.folder, self.settings(name), name)
        return moongate_process(*arguments, "--config", str(path), cwd=self.folder, env=self.env)

    async def run(self, name: str, *arguments: str) -> Ended:
        """Run a command on the machine `name`, which must succeed, without blocking the event loop."""
        done = await anyio.to_thread.run_sync(self.command, name, *arguments)
        assert done.code == 0, done.err
        return done

    def serve(self, stack: ExitStack, name: str, **more: Any) -> str:
        """Start the gateway of the machine `name`, and return its URL."""
        return stack.enter_context(gateway_http(self.folder, {**self.settings(name), **more}, name, self.env))


@pytest.fixture
def site(tmp_path: Path, url: str) -> Site:
    return Site(tmp_path, {"SITE_DATABASE": url, "SITE_KEY": ROOT_KEY}, {})


def status(url: str, token: str = "") -> int:
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": modern_params({}, tasks=False, capabilities={})}
    return httpx2.post(url, headers=headers, json=body, timeout=10).status_code


async def until_status(url: str, token: str, expected: int, seconds: float = 1.0) -> float:
    """Wait until requests with this key get the status `expected`, and return the seconds that this took."""
    start = time.monotonic()
    while (found := await anyio.to_thread.run_sync(status, url, token)) != expected:
        assert time.monotonic() - start < seconds, found
        await anyio.sleep(0.02)
    return time.monotonic() - start


async def stats(wire: Wire) -> dict[str, Any]:
    return (await wire.send("tools/call", name="up__stats", arguments={}))["result"]["structuredContent"]


@pytest.mark.parametrize("path", ["auto", "off"])
async def test_key_of_one_machine_works_and_is_revoked_at_the_other(site: Site, path: str) -> None:
    with ExitStack() as stack:
        http = {"server": {"http": {"directPath": path}}}
        a, b = site.serve(stack, "a", **http), site.serve(stack, "b", **http)
        assert [status(gateway) for gateway in (a, b)] == [200, 200], "without keys, both serve this machine"
        ada = (await site.run("a", "keys", "add", "ada", "--json")).data
        for gateway in (a, b):
            await until_status(gateway, ada["key"], 200)
            assert await until_status(gateway, "", 401) < 1
        bob = (await site.run("b", "keys", "add", "bob", "--json")).data
        await until_status(a, bob["key"], 200)
        listed = [(await site.run(name, "keys", "list", "--json")).data["keys"] for name in "ab"]
        assert listed[0] == listed[1]
        assert [key["id"] for key in listed[0]] == [ada["id"], bob["id"]]
        await site.run("a", "keys", "revoke", ada["id"])
        for gateway in (a, b):
            await until_status(gateway, ada["key"], 401)
            assert await anyio.to_thread.run_sync(status, gateway, bob["key"]) == 200
        assert not list(site.folder.glob("*-state/installation-key"))
        assert not list(site.folder.glob("*-state/keys.json"))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_revocation_ends_a_running_call_at_the_other_machine(site: Site, era: Era) -> None:
    answers: list[dict[str, Any]] = []
    gone = site.command("a", "keys", "add", "gone", "--json").data
    stays = site.command("a", "keys", "add", "stays", "--json").data
    with ExitStack() as stack:
        upstream = stack.enter_context(upstream_http())
        b = site.serve(stack, "b", mcpServers={"up": {"type": "http", "url": upstream}})
        async with (
            over_http(b, era, token=gone["key"], tasks=False) as leaver,
            over_http(b, era, token=stays["key"], tasks=False) as looking,
            anyio.create_task_group() as tasks,
        ):

            async def hang() -> None:
                answers.append(await leaver.send("tools/call", name="up__hang", arguments={}))

            tasks.start_soon(hang)
            with anyio.fail_after(20):
                while (await stats(looking))["calls"].get("hang") != 1:
                    await anyio.sleep(0.05)
            await site.run("a", "keys", "revoke", gone["id"])
            with anyio.fail_after(5):
                while not answers or (await stats(looking))["cancelled"].get("hang") != 1:
                    await anyio.sleep(0.05)
    assert answers[0]["result"]["content"][0]["text"] == KEY_GONE


async def test_machine_beyond_loopback_starts_with_a_key_of_another_machine(site: Site) -> None:
    beyond = {"server": {"http": {"host": "0.0.0.0", "port": 0}}}
    refused = Site(site.folder, site.env, beyond).command("b", "run")
    assert (refused.code, "Refusing to listen on '0.0.0.0' without API keys" in refused.err) == (2, True)
    key = site.command("a", "keys", "add", "ada", "--json").data["key"]
    with ExitStack() as stack:
        b = site.serve(stack, "b", **beyond)
        assert [status(b, token) for token in (key, "")] == [200, 401]


async def test_keys_of_a_machine_that_joins_a_database_move_there(site: Site) -> None:
    old = KeyStore(site.folder / "a-state" / "keys.json")
    kept, gone = old.add("kept"), old.add("gone")
    assert [key["id"] for key in site.command("a", "keys", "list", "--json").data["keys"]] == [kept.id, gone.id]
    assert old.find(kept.token) is not None, "listing moves no key"
    with ExitStack() as stack:
        a = site.serve(stack, "a")
        b = site.serve(stack, "b")
        assert [status(gateway, key.token) for gateway in (a, b) for key in (kept, gone)] == [200] * 4
        await site.run("b", "keys", "revoke", gone.id)
        await until_status(a, gone.token, 401)
    with ExitStack() as stack:
        a = site.serve(stack, "a")
        assert [status(a, key.token) for key in (kept, gone)] == [200, 401]
    alone = {"storage": {"dir": str(site.folder / "a-state")}}
    path = write_config(site.folder, alone, "alone")
    listed = site.command("a", "keys", "list")
    assert (listed.code, "kept" in listed.out) == (0, True)
    listed = moongate_process("keys", "list", "--config", str(path), cwd=site.folder)
    assert (listed.code != 0, "moved to the database" in listed.err) == (True, True)


@pytest.mark.parametrize("command", ["run --http 127.0.0.1:0", "keys list", "keys add x", "audit", "tasks list"])
async def test_machine_with_another_installation_key_is_refused(site: Site, command: str) -> None:
    key = site.command("a", "keys", "add", "ada", "--json").data["key"]
    other = secrets.token_hex(32)
    refused = Site(site.folder, {**site.env, "SITE_KEY": other}, {}).command("b", *command.split())
    assert refused.code != 0
    assert "use another installation key" in refused.err and "storage.installationKey" in refused.err
    for secret in (ROOT_KEY, other, key):
        assert secret not in refused.out + refused.err


async def test_doctor_reports_another_installation_key(site: Site) -> None:
    assert site.command("a", "doctor", "--json").code == 0
    done = Site(site.folder, {**site.env, "SITE_KEY": secrets.token_hex(32)}, {}).command("b", "doctor", "--json")
    checks = {check["subject"]: check for check in json.loads(done.out)["checks"]}
    assert done.code != 0
    assert (checks["database"]["status"], "another installation key" in checks["database"]["text"]) == ("fail", True)


async def test_backup_restored_to_one_machine_keeps_keys_and_revocations(site: Site) -> None:
    kept, gone = (site.command("a", "keys", "add", name, "--scope", "docs", "--json").data for name in ("kept", "gone"))
    assert site.command("a", "keys", "revoke", gone["id"]).code == 0
    assert site.command("a", "db", "check").code == 0
    assert site.command("a", "db", "backup", "site.tar").code == 0
    alone = {"storage": {"dir": str(site.folder / "alone"), "installationKey": "${env:SITE_KEY}"}}
    path = str(write_config(site.folder, alone, "alone"))
    done = moongate_process("db", "restore", "site.tar", "--config", path, cwd=site.folder, env=site.env)
    assert done.code == 0, done.err
    keys = KeyStore(site.folder / "alone" / "keys.json")
    found = keys.find(kept["key"])
    assert found is not None and (found.id, found.name, found.scopes) == (kept["id"], "kept", ("docs",))
    assert (keys.find(gone["key"]), len(keys.list())) == (None, 1)
    assert moongate_process("db", "check", "--config", path, cwd=site.folder, env=site.env).code == 0
    # The revocation in the file is not undone by a later restore to a server.
    keys.revoke(kept["id"])
    assert moongate_process("db", "backup", "alone.tar", "--config", path, cwd=site.folder, env=site.env).code == 0
    assert site.command("a", "db", "restore", "alone.tar", "--replace").code == 0
    assert site.command("a", "keys", "list", "--json").data["keys"] == []


@pytest.mark.parametrize("has_keys", [True, False])
async def test_requests_are_refused_while_the_database_is_away_and_accepted_again(
    server: Postgres, site: Site, has_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace period is shortened from 30 s. Without keys, another machine may have added one during the outage."""
    monkeypatch.setattr(key_rows, "GRACE_SECONDS", 4.0)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    key = (await site.run("a", "keys", "add", "ada", "--json")).data["key"] if has_keys else ""
    with gateway_inside(site.folder, site.settings("b"), "b") as gateway:
        assert await anyio.to_thread.run_sync(status, gateway.url, key) == 200
        await anyio.to_thread.run_sync(server.stop)
        try:
            await anyio.sleep(1.5)
            assert await anyio.to_thread.run_sync(status, gateway.url, key) == 200
            await until_status(gateway.url, key, 503, 6.0)
        finally:
            await anyio.to_thread.run_sync(server.start)
        await until_status(gateway.url, key, 200, 6.0)


async def test_machine_without_its_database_does_not_start(server: Postgres, site: Site) -> None:
    """It cannot know whether another machine has keys, so it would serve everybody on this machine without a key."""
    unreachable = {**site.env, "SITE_DATABASE": "postgresql://moongate@127.0.0.1:9/none"}
    refused = Site(site.folder, unreachable, {}).command("b", "run", "--http", "127.0.0.1:0")
    assert refused.code != 0
    assert "The database 'postgresql://moongate@127.0.0.1:9/none'" in refused.err or "127.0.0.1:9/none" in refused.err


@contextmanager
def adding(site: Site) -> Generator[subprocess.Popen[bytes]]:
    """Start a command that adds a key, and end it on leaving."""
    path = write_config(site.folder, site.settings("a"), "a")
    argv = [sys.executable, "-m", "gateway", "keys", "add", "ada", "--config", str(path)]
    env = {**os.environ, **site.env}
    process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_killed_command_adds_a_key_wholly_or_not_at_all(site: Site, url: str) -> None:
    """The transaction is held open at each of its statements in turn by a lock, and the command is killed there."""
    first = site.command("a", "keys", "add", "first", "--json").data["key"]
    for table in ("api_keys", "versions"):
        with psycopg.connect(url) as holder:
            holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            with adding(site) as process:
                with psycopg.connect(url, autocommit=True) as watcher, anyio.fail_after(20):
                    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                    while watcher.execute(waiting).fetchone() != (1,):
                        await anyio.sleep(0.02)
                process.send_signal(signal.SIGKILL)
                process.wait()
    with psycopg.connect(url, autocommit=True) as reader:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        reader.execute(f"SELECT pg_terminate_backend(pid) {others}")
        assert reader.execute("SELECT name FROM api_keys").fetchall() == [("first",)]
        assert reader.execute("SELECT number FROM versions WHERE name = 'api-keys'").fetchall() == [(1,)]
    with ExitStack() as stack:
        b = site.serve(stack, "b")
        assert [status(b, token) for token in (first, "")] == [200, 401]
