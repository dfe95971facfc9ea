"""What `moongate doctor` says about the gateways that share a database."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gateway.cli.replica_checks import replica_checks
from gateway.config.models import GatewayConfig
from gateway.server.replica_configuration import configuration_digest
from gateway.storage.replica_rows import ReplicaRow, SeenReplica
from tests.fakes.machines import Machines, machines

pytestmark = pytest.mark.timeout(120)


_NUMBERS = itertools.count(1)


def seen(version: str, configuration: str = "c", *, is_running: bool = True, address: str = "") -> SeenReplica:
    address = address or f"http://10.0.0.{next(_NUMBERS)}:1"
    return SeenReplica(ReplicaRow(version, address, "/mcp", version, f"host-{version}", configuration), is_running, 1.0)


@pytest.mark.parametrize(
    ("replicas", "warned"),
    [
        ([seen("1"), seen("1")], []),
        ([seen("1"), seen("2")], ["different versions of Moongate (1, 2)"]),
        ([seen("1"), seen("2", is_running=False)], ["does not run any more"]),
        ([seen("1", "x"), seen("1", "y")], ["different configurations (x, y)"]),
        ([seen("1", "x"), seen("1", "")], []),
        ([seen("1", address="http://127.0.0.1:1"), seen("1", address="http://127.0.0.1:1")], ["name the address http://127.0.0.1:1,"]),
        ([seen("1", address="http://a:1"), seen("1", address="http://a:1", is_running=False)], ["does not run any more"]),
    ],
)
def test_differences_between_running_replicas_are_noted(replicas: list[SeenReplica], warned: list[str]) -> None:
    found = [check.text for check in replica_checks(replicas, []) if check.status != "ok"]
    assert len(found) == len(warned)
    assert all(part in text for part, text in zip(warned, found, strict=True))


def test_digest_ignores_only_what_may_differ_between_machines() -> None:
    def digest(**document: Any) -> str:
        return configuration_digest(bytes(32), GatewayConfig.model_validate(document))

    one = digest(storage={"dir": "/a"}, server={"http": {"port": 1, "replicaAddress": "http://10.0.0.1:1"}})
    assert one == digest(storage={"dir": "/b"}, server={"http": {"port": 2}})
    assert one != digest(mcpServers={"up": {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"x": "1"}}})
    assert one != configuration_digest(bytes([1] * 32), GatewayConfig())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Machines]:
    with machines(tmp_path, request.param) as made:
        yield made


async def doctor(site: Machines, name: str) -> list[dict[str, Any]]:
    return (await site.command(name, "doctor", "--json")).data["replicas"]


@pytest.mark.fleet
async def test_doctor_lists_running_silent_and_refused_replicas(site: Machines) -> None:
    site.write(server={"reload": False, "http": {"drainSeconds": 1}})
    urls = [await anyio.to_thread.run_sync(site.start, name) for name in ("a", "b")]
    found = await doctor(site, "c")
    assert {entry["address"] for entry in found} == {url.removesuffix("/mcp") for url in urls}
    assert {entry["state"] for entry in found} == {"running"}
    assert all(entry["seenSecondsAgo"] < 4 and entry["version"] and entry["name"] for entry in found)
    assert len({entry["configuration"] for entry in found}) == 1

    site.write(server={"reload": False, "http": {"drainSeconds": 1}, "instructions": "Be brief."})
    await anyio.to_thread.run_sync(site.start, "d")
    shown = await site.command("a", "doctor")
    assert "warn  replicas: they have different configurations" in shown.out

    key, site.env["SITE_KEY"] = site.env["SITE_KEY"], secrets.token_hex(32)
    refused = await site.command("e", "run", "--http", "127.0.0.1:0")
    assert refused.code != 0 and "another installation key" in refused.err
    site.env["SITE_KEY"] = key
    await anyio.to_thread.run_sync(site.stop, "b")
    await anyio.sleep(5)
    found = await doctor(site, "a")
    assert sorted(entry["state"] for entry in found) == ["refused", "running", "running", "silent"]
    [reason] = [entry["reason"] for entry in found if entry["state"] == "refused"]
    assert "use another installation key" in reason
    shown = await site.command("a", "doctor")
    assert shown.code == 0, shown.err
    assert "refused" in shown.out and "does not run any more" in shown.out
    assert key not in shown.out


@pytest.mark.fleet
async def test_replica_too_old_for_the_database_is_reported(site: Machines) -> None:
    site.write()
    await anyio.to_thread.run_sync(site.start, "a")
    await anyio.to_thread.run_sync(_raise_schema, site.database)
    refused = await site.command("b", "run", "--http", "127.0.0.1:0")
    assert refused.code != 0 and "a newer Moongate wrote it" in refused.err
    from gateway.storage.engine import open_url
    from gateway.storage.refused_replicas import recent_refusals

    await anyio.to_thread.run_sync(_lower_schema, site.database)
    database = await anyio.to_thread.run_sync(lambda: open_url(site.database, pooled=False))
    [found] = await recent_refusals(database)
    assert "supports only" in found.reason and found.seconds < 60


def _raise_schema(url: str) -> None:
    support = "INSERT INTO schema_support (version, oldest) VALUES (999, 999)"
    _change(url, "INSERT INTO schema_version (version, at) VALUES (999, 0)", support)


def _lower_schema(url: str) -> None:
    _change(url, "DELETE FROM schema_version WHERE version = 999", "DELETE FROM schema_support WHERE version = 999")


def _change(url: str, *statements: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()
