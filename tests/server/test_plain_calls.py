"""The fast path and the SDK path receive the same messages and must send the same responses.

The fast path has two entry points: an ASGI application, and a function that the connection calls for its first or a later request.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.server.in_flight import HAND_OVER_SECONDS
from tests.server.both_paths import META, OUTCOMES, TEXT, Reply, bodies, heads, post, request, same, standing


async def test_each_outcome_of_a_call_reads_the_same_by_both_paths(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        before = setup.behind.count
        for outcome in OUTCOMES:
            setup.echo.told = outcome
            for capabilities in ("{}", f'{{"elicitation": {{}}, "extensions": {{"{META}tasks": {{}}}}}}'):
                meta = {f"{META}clientCapabilities": json.loads(capabilities)}
                await same(setup, heads(), json.dumps(request(None, meta)).encode())
        assert len(OUTCOMES) < setup.behind.count - before < 2 * len(OUTCOMES) - 10


def fields(chance: random.Random) -> list[list[tuple[str, str]]]:
    """Return lists of header lines, each with one unusual line."""
    usual = list(heads().items())
    picked = chance.sample
    made = [[line for line in usual if line[0] != name] for name, _ in usual]
    made += [[*usual, line] for line in usual]
    odd = ["", "x", "application/json", "*/*", "text/event-stream;q=0, application/*", "2025-11-25", "2027-01-01", "tools/list"]
    odd.append("=?base64?ZWNobw==?=")
    made += [[(name, value) if line[0] == name else line for line in usual] for name, _ in usual for value in picked(odd, 5)]
    more = {"mcp-param-text": "a", "origin": "http://localhost", "Origin": "http://evil.example", "mcp-session-id": "x", "X-Odd": "é"}
    made += [[*usual, line] for line in more.items()]
    made.append([(name.upper(), value) for name, value in usual])
    return made


async def test_calls_have_equal_response_effect_and_record_on_both_paths(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with standing(tmp_path) as setup:
        for body in bodies(chance):
            await same(setup, heads(json.loads(body)["params"]["name"]) if b'"own", "arg' in body else heads(), body)
        for name in ("mirrored", "asking", "own", "none"):
            await same(setup, heads(name), json.dumps(request(name=name)).encode(), direct=name == "asking")
        for value in ("roots", "sampling", "elicitation"):
            body = request(None, {f"{META}clientCapabilities": {value: {}}}, name="asking")
            await same(setup, heads("asking"), json.dumps(body).encode(), direct=False)
        for lines in fields(chance):
            await same(setup, lines, json.dumps(request()).encode())


async def test_plain_call_skips_the_sdk_and_passes_the_gate(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        status, _, message = await same(setup, heads(), json.dumps(request(number="seven")).encode(), direct=True)
        assert (status, message["id"], message["result"]["content"], setup.taken) == (200, "seven", [TEXT], 2)
        _, _, refused = await same(setup, heads(), json.dumps(request({"text": "evil"})).encode(), direct=True)
        assert refused["result"]["_meta"]["dev.moongate/rule"] == "arguments.echo.text"
        _, _, wrong = await same(setup, heads(), json.dumps(request({"text": 1})).encode(), direct=True)
        assert wrong["result"]["isError"] is True


async def test_cached_client_facts_distinguish_values_that_compare_equal(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        claims: list[Any] = [True, 1, 1.0, True, False, 0, None, "1", [], {}, [1], [True]]
        for said in (claim for claim in claims for _ in range(2)):
            meta = {f"{META}clientCapabilities": {"roots": {"listChanged": said}}, "x/y": said}
            await same(setup, heads(), json.dumps(request(None, meta)).encode(), direct=True)


async def test_chunked_or_oversized_body_is_read_as_the_sdk_reads_it(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        await same(setup, heads(), json.dumps(request({"n": "x" * 49_000})).encode(), direct=True)
        status, *_ = await same(setup, heads(), json.dumps(request({"n": "x" * 51_000})).encode(), direct=True)
        assert status == 413


async def test_slow_call_runs_once_and_is_answered_by_the_sdk_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = HAND_OVER_SECONDS + 0.5
        status, _, message = await same(setup, heads(), json.dumps(request()).encode(), direct=False)
        assert (status, message["result"]["content"]) == (200, [TEXT])


@pytest.mark.parametrize("after", [0.0, HAND_OVER_SECONDS + 0.1])
async def test_client_disconnect_ends_its_call(tmp_path: Path, after: float) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = 60

        async def leaving() -> Any:
            await anyio.sleep(after)
            return {"type": "http.disconnect"}

        with anyio.fail_after(20):
            reply = await post(setup.direct, list(heads().items()), json.dumps(request()).encode(), leaving=leaving)
        assert reply == Reply()
        assert setup.echo.cancelled.is_set()
        assert len(setup.echo.calls) == 1


async def test_closed_connection_ends_its_call(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        body = json.dumps(request()).encode()
        await same(setup, heads(), body, direct=True)
        setup.echo.seconds = 60
        before = setup.taken
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, setup.wired, list(heads().items()), body)
            while setup.taken == before:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        await setup.echo.cancelled.wait()


async def test_stopping_server_ends_the_calls_it_started(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        setup.echo.seconds = 60
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post, setup.direct, list(heads().items()), json.dumps(request()).encode())
                while not setup.echo.calls:
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            await setup.echo.cancelled.wait()
