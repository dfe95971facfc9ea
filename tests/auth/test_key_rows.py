"""`DatabaseKeys`: API keys in a database are valid in every process within a second, and nobody is accepted while they cannot be read."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from gateway.auth import key_rows
from gateway.auth.api_keys import KeyStore
from gateway.auth.key_rows import DatabaseKeys
from gateway.auth.principal import LOCAL
from gateway.errors import ConfigError, NotFound, StorageError
from gateway.server.key_gate import check_bind
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.postgres import Postgres, postgres

pytestmark = pytest.mark.fleet

ROOT_KEY = bytes(range(40))


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    started: Postgres = request.getfixturevalue("server")
    return started.database(f"keys_{time.monotonic_ns()}")


@asynccontextmanager
async def replica(url: str, folder: Path, root: bytes = ROOT_KEY) -> AsyncGenerator[DatabaseKeys]:
    """The keys as a gateway uses them, with a state folder of its own."""
    records = Records(StateFolder(folder, root), audit_days=30, url=url)
    feed = ChangeFeed(records.database)
    keys = DatabaseKeys(records.database, feed)
    try:
        await keys.start()
        await keys.take_over(folder / "keys.json")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.run)
            yield keys
            tasks.cancel_scope.cancel()
    finally:
        await records.aclose()


async def until(holds: Callable[[], bool], seconds: float = 1.0) -> None:
    with anyio.fail_after(seconds):
        while not holds():
            await anyio.sleep(0.01)


async def test_key_of_one_gateway_is_valid_and_revoked_at_another(url: str, tmp_path: Path) -> None:
    async with replica(url, tmp_path / "a") as a, replica(url, tmp_path / "b") as b:
        assert not b.are_required()
        made = await a.add(" ada ", scopes=("docs", "docs", "admin"))
        await until(lambda: b.find(made.token) is not None)
        found = b.find(made.token)
        assert found is not None and b.are_required()
        assert (found.id, found.name, found.scopes, found.expires_at) == (made.id, "ada", ("docs", "admin"), None)
        assert b.holds(found)
        await a.add("bob")
        await until(lambda: len(b.list()) == 2)
        assert b.holds(found), "unchanged keys stay the same objects"
        assert [info.name for info in b.list()] == ["ada", "bob"]
        assert b.find(made.token[:-1] + "x") is None
        await a.revoke(made.id)
        await until(lambda: not b.holds(found))
        assert (b.find(made.token), b.current(found.principal), b.current(LOCAL)) == (None, None, LOCAL)
        with pytest.raises(NotFound):
            await b.revoke(made.id)


@pytest.mark.parametrize(("name", "days", "scopes"), [("", None, None), ("a", 0, None), ("a", None, ()), ("a", None, ("",))])
async def test_invalid_keys_are_not_stored(url: str, tmp_path: Path, name: str, days: float | None, scopes: tuple[str, ...] | None) -> None:
    async with replica(url, tmp_path / "a") as keys:
        with pytest.raises(ValueError, match=r"."):
            await keys.add(name, expires_days=days, scopes=scopes)
        assert list(keys.list()) == []


def unread(folder: Path) -> DatabaseKeys:
    records = Records(StateFolder(folder), audit_days=30, url="postgresql://moongate@127.0.0.1:9/none")
    return DatabaseKeys(records.database, ChangeFeed(records.database))


async def test_nobody_is_accepted_before_the_keys_were_read(tmp_path: Path) -> None:
    keys = unread(tmp_path)
    for check in (keys.list, lambda: keys.find("gk_a_b"), lambda: keys.current(LOCAL.__class__("key:a", "a", None))):
        with pytest.raises(StorageError, match="No API key is accepted"):
            check()
    assert keys.are_required()
    with pytest.raises(StorageError, match="No API key is accepted"):
        check_bind("127.0.0.1", keys)


async def test_gateway_beyond_loopback_needs_a_key_in_the_database(url: str, tmp_path: Path) -> None:
    async with replica(url, tmp_path / "a") as a, replica(url, tmp_path / "b") as b:
        with pytest.raises(ConfigError, match="moongate keys add"):
            check_bind("0.0.0.0", b)
        await a.add("ada")
        await until(lambda: bool(b.list()))
        assert check_bind("0.0.0.0", b)


async def test_keys_of_the_file_are_moved_once_and_a_revocation_is_not_undone(url: str, tmp_path: Path) -> None:
    files = [tmp_path / name / "keys.json" for name in "ab"]
    old = [KeyStore(file) for file in files]
    kept, gone = old[0].add("kept", scopes=("docs",)), old[0].add("gone", expires_days=9)
    files[1].parent.mkdir()
    files[1].write_bytes(files[0].read_bytes())  # the second machine has a copy
    before = {info.id: info for info in old[0].list()}
    async with replica(url, tmp_path / "a") as a:
        assert {info.id: info for info in a.list()} == before
        assert a.find(gone.token) is not None
        await a.revoke(gone.id)
    async with replica(url, tmp_path / "a") as a, replica(url, tmp_path / "b") as b:
        for keys in (a, b):
            assert [info.id for info in keys.list()] == [kept.id]
            assert (keys.find(gone.token), keys.find(kept.token)) == (None, before[kept.id])
    for file, store in zip(files, old, strict=True):
        with pytest.raises(StorageError, match="moved to the database"):
            store.find(kept.token)
        with pytest.raises(StorageError, match="moved to the database"):
            KeyStore(file).add("more")
        assert len(json.loads(file.with_name("keys.json.moved").read_text())["keys"]) == 2


async def test_gateways_of_one_machine_that_start_at_once_move_the_keys_once(url: str, tmp_path: Path) -> None:
    made = KeyStore(tmp_path / "a" / "keys.json").add("ada")
    found: list[list[str]] = []

    async def start() -> None:
        async with replica(url, tmp_path / "a") as keys:
            found.append([info.id for info in keys.list()])

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(start)
    assert found == [[made.id]] * 4


async def test_damaged_key_file_stops_the_move(url: str, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(StorageError, match="damaged"):
        async with replica(url, tmp_path):
            pass


async def test_key_with_damaged_scopes_widens_no_rights(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_rows, "GRACE_SECONDS", 2.0)
    async with replica(url, tmp_path / "a") as keys:
        made = await keys.add("ada", scopes=("docs",))
        async with (await keys._database()).begin() as connection:  # pyright: ignore[reportPrivateUsage]
            await connection.exec_driver_sql("UPDATE api_keys SET scopes = '\"*\"'")
            await connection.exec_driver_sql("UPDATE versions SET number = number + 1")
        await anyio.sleep(3.0)
        with pytest.raises(StorageError, match="No API key is accepted"):
            keys.find(made.token)


@pytest.mark.postgres
async def test_keys_stay_valid_for_a_grace_period_while_the_server_is_stopped(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_rows, "GRACE_SECONDS", 3.0)
    async with replica(server.database("grace"), tmp_path / "a") as keys:
        made = await keys.add("ada")
        found = keys.find(made.token)
        assert found is not None
        await anyio.to_thread.run_sync(server.stop)
        try:
            await anyio.sleep(1.0)
            assert keys.holds(found) and keys.find(made.token) is found
            await anyio.sleep(3.5)
            for check in (lambda: keys.holds(found), lambda: keys.find(made.token), keys.list, lambda: keys.current(found.principal)):
                with pytest.raises(StorageError, match="No API key is accepted"):
                    check()
        finally:
            await anyio.to_thread.run_sync(server.start)

        def is_back() -> bool:
            try:
                return keys.find(made.token) is not None
            except StorageError:
                return False

        await until(is_back, 5.0)


@pytest.mark.postgres
@pytest.mark.parametrize("skew", [-300.0, 300.0])
async def test_expiry_is_judged_by_the_servers_clock(
    server: Postgres, tmp_path: Path, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    async with replica(server.database(f"skew_{time.monotonic_ns()}"), tmp_path / "a") as keys:
        made = await keys.add("ada", expires_days=4 / 86_400)
        found = keys.find(made.token)
        assert found is not None and abs(found.created_at - real()) < 2
        await anyio.sleep(2.0)
        assert keys.holds(found)
        await anyio.sleep(3.0)
        assert (keys.holds(found), keys.find(made.token), keys.current(found.principal)) == (False, None, None)


@pytest.mark.postgres
async def test_clock_that_is_changed_while_the_gateway_runs_is_measured_again(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(server.database("step"), tmp_path / "a") as keys:
        made = await keys.add("ada", expires_days=60 / 86_400)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 300)
        await until(lambda: keys.find(made.token) is not None, 2.0)
        monkeypatch.undo()


async def test_gateway_with_another_installation_key_uses_no_shared_data(url: str, tmp_path: Path) -> None:
    other = bytes(reversed(ROOT_KEY))
    async with replica(url, tmp_path / "a") as keys:
        made = await keys.add("ada")
        with pytest.raises(StorageError, match=r"storage\.installationKey") as refused:
            async with replica(url, tmp_path / "b", other):
                pass
        assert not any(text in str(refused.value) for text in (ROOT_KEY.hex(), other.hex(), made.token))
        assert keys.find(made.token) is not None
    async with replica(url, tmp_path / "c") as keys:
        assert keys.find(made.token) is not None


@pytest.mark.postgres
async def test_first_gateways_that_start_at_once_agree_on_one_installation_key(server: Postgres, tmp_path: Path) -> None:
    url = server.database("first")
    outcomes: list[str] = []

    async def start(number: int) -> None:
        records = Records(StateFolder(tmp_path / str(number), bytes(range(number % 2, 40))), audit_days=30, url=url)
        try:
            await records.database()
            outcomes.append(f"{number % 2} started")
        except StorageError as error:
            outcomes.append(f"{number % 2} {str(error)[:8]}")
        finally:
            await records.aclose()

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(start, number)
    first = next(outcome[0] for outcome in outcomes if outcome.endswith("started"))
    other = "1" if first == "0" else "0"
    assert sorted(outcomes) == sorted([f"{first} started"] * 3 + [f"{other} The gate"] * 3)
    with psycopg.connect(url) as raw:
        assert len(raw.execute("SELECT digest FROM installation").fetchall()) == 1
