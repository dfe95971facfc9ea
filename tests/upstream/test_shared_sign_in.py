"""A sign-in that two gateways with one database share: tokens are renewed by one of them at a time, also if it is killed."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from gateway.upstream.oauth.grant_rows import LEASE_SECONDS
from tests.fakes.machines import Machines, machines
from tests.fakes.running import auth_server
from tests.interaction.wire import Wire, over_http
from tests.upstream.signing import SIGNED_IN, config, control, ended, everything_under, signing_in, token_requests

pytestmark = [pytest.mark.timeout(150), pytest.mark.fleet]


@pytest.fixture
def origin() -> Generator[str]:
    with auth_server() as started:
        control(started, reuse_revokes=True)
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def site(request: pytest.FixtureRequest, tmp_path: Path, origin: str) -> Generator[Machines]:
    with machines(tmp_path, request.param) as made:
        made.write(**{key: value for key, value in config(origin, SIGNED_IN).items() if key != "server"})
        yield made


def login(site: Machines, name: str) -> None:
    with signing_in(site.folder / "gateway.json", env=site.env_of(name)) as (process, address, _):
        httpx2.get(address, follow_redirects=True).raise_for_status()
        code, _, err = ended(process)
        assert code == 0, err


def refreshes(origin: str) -> list[str]:
    return [entry["refresh_token"] for entry in token_requests(origin) if entry["grant_type"] == "refresh_token"]


async def say(wire: Wire) -> str:
    done: Any = await wire.send("tools/call", name="docs__echo", arguments={"text": "hi"})
    return done["result"]["content"][0]["text"] if "result" in done else done["error"]["message"]


async def until_says(wire: Wire, expected: str, seconds: float) -> None:
    with anyio.fail_after(seconds):
        while expected not in await say(wire):
            await anyio.sleep(0.05)


async def test_sign_in_and_sign_out_on_one_machine_hold_on_the_other(site: Machines, origin: str) -> None:
    first, second = [await anyio.to_thread.run_sync(site.start, name) for name in ("a", "b")]
    async with over_http(first, "modern", tasks=False) as a, over_http(second, "modern", tasks=False) as b:
        for wire in (a, b):
            status = await wire.send("tools/call", name="gateway_status", arguments={"server": "docs"})
            assert "moongate auth login docs" in str(status)
        await anyio.to_thread.run_sync(login, site, "a")
        for wire in (a, b):
            await until_says(wire, "hi", 5)  # a second for the sign-in, the rest for the first connection to the server
        states = (await site.command("b", "auth", "status", "--json")).data["servers"]
        assert [row["state"] for row in states] == ["signed in"]
        done = await site.command("b", "auth", "logout", "docs", "--json")
        assert done.data == {"server": "docs", "forgotten": True, "revoked": True}
        for wire in (a, b):
            await until_says(wire, "needs a person to sign in", 1.2)
    assert not list(site.folder.glob("state-*/moongate/tokens/*.bin"))
    assert b"canary" not in everything_under(site.folder)


async def test_rotating_refresh_token_is_never_used_twice(site: Machines, origin: str) -> None:
    await anyio.to_thread.run_sync(login, site, "a")
    first, second = [await anyio.to_thread.run_sync(site.start, name) for name in ("a", "b")]
    async with over_http(first, "modern", tasks=False) as a, over_http(second, "modern", tasks=False) as b:
        for wire in (a, b):
            await until_says(wire, "hi", 20)
        before = len(refreshes(origin))
        for number in range(1, 5):
            control(origin, revoke_all=True)
            said: list[str] = []

            async def note(wire: Wire, said: list[str] = said) -> None:
                said.append(await say(wire))

            async with anyio.create_task_group() as tasks:
                for wire in (a, b) * 4:
                    tasks.start_soon(note, wire)
            assert said == ["hi"] * 8
            assert len(refreshes(origin)) == before + number
    used = refreshes(origin)
    assert len(set(used)) == len(used)


async def test_killed_gateway_that_renews_a_token_blocks_the_other_for_its_lease(site: Machines, origin: str) -> None:
    await anyio.to_thread.run_sync(login, site, "a")
    first, second = [await anyio.to_thread.run_sync(site.start, name) for name in ("a", "b")]
    async with over_http(first, "modern", tasks=False) as a, over_http(second, "modern", tasks=False) as b:
        for wire in (a, b):
            await until_says(wire, "hi", 20)
        before, start = len(refreshes(origin)), time.monotonic()
        control(origin, revoke_all=True, hold=True)

        async def ask_and_break() -> None:
            try:
                await say(a)
            except (httpx2.TransportError, KeyError):
                return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_and_break)
            with anyio.fail_after(20):
                while len(refreshes(origin)) == before:
                    await anyio.sleep(0.05)
            start = time.monotonic()
            await anyio.to_thread.run_sync(site.stop, "a")
        control(origin, hold=False, drop=True)  # the server has not processed the killed gateway's request
        await until_says(b, "hi", LEASE_SECONDS + 5)
        assert time.monotonic() - start < LEASE_SECONDS + 2
    assert len(refreshes(origin)) == before + 2


async def test_sign_in_in_a_file_moves_to_the_database(site: Machines, origin: str) -> None:
    storage = dict(site.config["storage"])
    site.write(**{**site.config, "storage": {"installationKey": storage["installationKey"]}})
    await anyio.to_thread.run_sync(login, site, "a")
    assert len(list(site.folder.glob("state-a/moongate/tokens/*.bin"))) == 1
    site.write(**{**site.config, "storage": storage})
    first, second = [await anyio.to_thread.run_sync(site.start, name) for name in ("a", "b")]
    async with over_http(first, "modern", tasks=False) as a, over_http(second, "modern", tasks=False) as b:
        for wire in (a, b):
            await until_says(wire, "hi", 20)
    assert not list(site.folder.glob("state-*/moongate/tokens/*.bin"))
