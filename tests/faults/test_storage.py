"""State that cannot be written: calls without state continue, other calls fail with the reason, and no restart is needed later."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import ROOT, child, free_port, gateway_http, upstream_stdio, wait_until_ready, write_config
from tests.interaction.ways import Way, connected

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
RULES = {"up": {"maxResultBytes": 4096, "arguments": {"echo": {"text": {"pattern": "^[a-z0-9 ]*$"}}}}}
WAY = Way("http", "modern", "up")
SECONDS = 30


@contextmanager
def small_disk(at: Path, size: str) -> Generator[Path]:
    """A file system of `size` at `at`, or the test is skipped by name where this user may not mount one."""
    at.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small file system (root)")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def audited(config: Path, *words: str) -> Any:
    argv = [sys.executable, "-m", "gateway", "audit", *words, "--config", str(config), "--json"]
    return json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout)


def lines(state: Path) -> int:
    """Return the number of entries in the audit log, which the gateway writes after the calls have returned."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{state / 'gateway.db'}?mode=ro", uri=True)) as database:
        return int(database.execute("select count(*) from audit").fetchone()[0])
    return 0  # the database does not exist yet


async def written(state: Path, count: int) -> None:
    """Wait until the audit log has `count` entries."""
    with anyio.fail_after(SECONDS):
        while lines(state) < count:
            await anyio.sleep(0.05)


async def tried(log: Path) -> None:
    """Wait until the gateway has reported a failed write of the audit log."""
    with anyio.fail_after(SECONDS):
        while "audit log not written" not in await anyio.Path(log).read_text():
            await anyio.sleep(0.05)


async def refused(client: Any, count: int) -> None:
    """Make `count` calls that a rule rejects. Each call adds an entry to the audit log."""
    for _ in range(count):
        assert (await client.call_tool("up__echo", {"text": "NO!"})).is_error


async def echo(client: Any, words: str) -> str:
    answer: Any = await client.call_tool("up__echo", {"text": words})
    return str(answer.content[0].text)


@pytest.mark.fault(12)
async def test_calls_survive_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        settings = {"mcpServers": {"up": upstream_stdio()}, "storage": {"dir": str(disk / "state")}, "policies": RULES}
        with gateway_http(tmp_path, settings) as url:
            async with connected(WAY, url) as (client, _):
                assert await echo(client, "before") == "before"
                await refused(client, 1)
                await written(disk / "state", 1)
                filler = disk / "filler"
                with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
                    while True:
                        file.write(b"x" * 65536)
                        file.flush()
                await refused(client, 500)
                for number in range(50):
                    assert await echo(client, str(number)) == str(number)
                big: Any = await client.call_tool("up__big", {"bytes": 100_000})
                assert big.is_error
                assert str(disk) not in big.content[0].text  # the error does not show the path of the state folder to callers
                await tried(tmp_path / "gateway.log")
                filler.unlink()
                await refused(client, 7)
                await written(disk / "state", 1 + 500 + 1 + 7)
        log = (tmp_path / "gateway.log").read_text()
        assert "full" in log or "No space" in log
        assert "Traceback" not in log
        assert len(audited(tmp_path / "gateway.json", "--limit", "5000")["entries"]) == 509
        assert audited(tmp_path / "gateway.json", "--verify")
        database = sqlite3.connect(disk / "state" / "gateway.db")
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        database.close()


@pytest.mark.fault(12)
async def test_disk_filled_by_the_write_ahead_log_recovers_without_restart(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        settings = {"mcpServers": {"up": upstream_stdio()}, "storage": {"dir": str(disk / "state")}, "policies": RULES}
        with gateway_http(tmp_path, settings) as url:
            async with connected(WAY, url) as (client, _):
                noted = 1
                await refused(client, noted)
                await written(disk / "state", noted)
                filler = disk / "filler"
                filler.write_bytes(b"x" * 200_000)
                with closing(sqlite3.connect(f"file:{disk / 'state' / 'gateway.db'}?mode=ro", uri=True, isolation_level=None)) as reader:
                    reader.execute("begin")
                    reader.execute("select count(*) from audit").fetchone()
                    with anyio.fail_after(SECONDS):
                        while "audit log not written" not in (tmp_path / "gateway.log").read_text():
                            await refused(client, 1)
                            noted += 1
                            await anyio.sleep(0.02)
                for number in range(20):
                    assert await echo(client, str(number)) == str(number)
                filler.unlink()
                for _ in range(200):
                    await refused(client, 1)
                    await anyio.sleep(0.02)
                await written(disk / "state", noted + 200)
        assert len(audited(tmp_path / "gateway.json", "--limit", "5000")["entries"]) == noted + 200
        assert audited(tmp_path / "gateway.json", "--verify")


@pytest.fixture(scope="module")
def failing_io(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that has changes to files fail on demand."""
    library = tmp_path_factory.mktemp("failing") / "failing_io.so"
    argv = [shutil.which("cc") or "", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tests/faults/failing_io.c"), "-ldl"]
    if sys.platform != "linux" or not argv[0]:
        pytest.skip("needs Linux and a C compiler")
    subprocess.run(argv, check=True)
    return library


@pytest.mark.fault(12)
@pytest.mark.parametrize("before", [1, 0], ids=["begun", "not begun"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO], ids=["read-only", "input and output fail"])
async def test_full_disk_stops_no_call_and_recovers(
    tmp_path: Path, failing_io: Path, number: int, before: int
) -> None:
    flag, state = tmp_path / "flag", tmp_path / "state"
    settings = {"mcpServers": {"up": upstream_stdio()}, "storage": {"dir": str(state)}, "policies": RULES}
    env = {"LD_PRELOAD": str(failing_io), "FAILING_DIR": str(state), "FAILING_FLAG": str(flag)}
    place, log_file = f"127.0.0.1:{free_port()}", tmp_path / "gateway.log"
    argv = ("-u", "-m", "gateway", "run", "--http", place, "--config", str(write_config(tmp_path, settings)))  # a process, for `LD_PRELOAD`
    with child(*argv, env=env, log=log_file) as process:
        wait_until_ready(process, f"http://{place}/ready", log_file)
        async with connected(WAY, f"http://{place}/mcp") as (client, _):
            assert await echo(client, "before") == "before"
            await refused(client, before)
            await written(state, before)
            flag.write_text(str(number))
            await refused(client, 20)
            for turn in range(20):
                assert await echo(client, str(turn)) == str(turn)
            big: Any = await client.call_tool("up__big", {"bytes": 100_000})
            assert big.is_error
            assert str(state) not in big.content[0].text
            await tried(log_file)
            flag.unlink()
            await refused(client, 7)
            big = await client.call_tool("up__big", {"bytes": 100_000})
            assert not big.is_error
            await written(state, before + 20 + 1 + 7)
    log = log_file.read_text()
    assert "Traceback" not in log
    assert os.strerror(number) in log or "disk I/O error" in log
    assert len(audited(tmp_path / "gateway.json", "--limit", "5000")["entries"]) == before + 28
    assert audited(tmp_path / "gateway.json", "--verify")
    database = sqlite3.connect(state / "gateway.db")
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.fault(13)
async def test_database_locked_by_another_process_delays_no_call(tmp_path: Path) -> None:
    state = tmp_path / "gateway-state"
    with gateway_http(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "policies": RULES}) as url:
        async with connected(WAY, url) as (client, _):
            assert await echo(client, "before") == "before"
            await refused(client, 1)
            await written(state, 1)
            holder = sqlite3.connect(state / "gateway.db", isolation_level=None)
            holder.execute("begin exclusive")
            with anyio.fail_after(20):
                await refused(client, 20)
                for number in range(50):
                    assert await echo(client, str(number)) == str(number)
            await tried(tmp_path / "gateway.log")
            holder.execute("rollback")
            holder.close()
            await refused(client, 7)
            await written(state, 1 + 20 + 7)
    assert len(audited(tmp_path / "gateway.json", "--limit", "5000")["entries"]) == 28
    assert audited(tmp_path / "gateway.json", "--verify")
