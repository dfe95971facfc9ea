"""Connections of 2025 sessions lost during a call, which is not a cancellation (specification 2025-11-25, Transports)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from gateway.server.in_flight import HAND_OVER_SECONDS
from tests.server.both_paths import happened, old_heads, old_request, open_session, post, standing, told


@pytest.mark.parametrize("after", [0.0, HAND_OVER_SECONDS + 0.4])
async def test_disconnected_session_client_ends_neither_call_nor_session(tmp_path: Path, after: float) -> None:
    """The call runs to its result, and the session answers later requests on both paths."""
    async with standing(tmp_path) as setup:
        lines = list(old_heads(await open_session(setup)).items())
        await post(setup.wired, lines, json.dumps(old_request(number=0)).encode())  # from then on the place is known
        before, setup.echo.seconds = setup.taken, HAND_OVER_SECONDS + 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, setup.wired, lines, json.dumps(old_request()).encode())
            while setup.taken == before:
                await anyio.sleep(0.001)
            await anyio.sleep(after)
            tasks.cancel_scope.cancel()
        setup.echo.seconds = 0
        assert told(await post(setup.wired, lines, json.dumps(old_request(number=2)).encode()))[0] == 200
        with anyio.fail_after(20):
            while len(outcomes := [fields.get("outcome") for kind, *_, fields in happened(setup.events, 0) if kind == "call.finished"]) < 3:
                await anyio.sleep(0.01)
        assert (outcomes, len(setup.echo.calls), setup.echo.cancelled.is_set()) == (["complete"] * 3, 3, False)
        assert told(await post(setup.longer, lines, json.dumps(old_request(number=3)).encode()))[0] == 200


async def test_repeated_id_does_not_hide_a_call_from_cancellation(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        lines = list(old_heads(await open_session(setup)).items())
        taken_back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        setup.echo.seconds = 60
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post, setup.direct, lines, json.dumps(old_request(number=7)).encode())
                while not setup.echo.calls:
                    await anyio.sleep(0.001)
                setup.echo.seconds = 0
                await post(setup.direct, lines, json.dumps(old_request(number=7)).encode())
                assert not setup.echo.cancelled.is_set()
                assert (await post(setup.direct, lines, json.dumps(taken_back).encode())).status == 202
                await setup.echo.cancelled.wait()


async def test_call_messages_missed_by_a_session_are_sent_on_reconnect(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.seconds = HAND_OVER_SECONDS + 2
        body = json.dumps(old_request())
        head = "".join(f"{name}: {value}\r\n" for name, value in {"host": "127.0.0.1", **old_heads(session)}.items())

        async def told_until(mark: bytes, opening: str) -> bytes:
            told = b""
            async with await anyio.connect_tcp("127.0.0.1", setup.wired.port) as stream:
                await stream.send(opening.encode())
                while mark not in told:
                    told += await stream.receive()
            return told

        begun = await told_until(b"\r\nretry: ", f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n{body}")
        seen = begun.split(b"\r\nid: ")[1].split(b"\r\n")[0].decode()
        rest = await told_until(b'"result":', f"GET /mcp HTTP/1.1\r\n{head}last-event-id: {seen}\r\n\r\n")
        assert b'"id":1,"result":' in rest and not setup.echo.cancelled.is_set()
