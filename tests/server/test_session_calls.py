"""Calls in 2025 sessions have the same response, effect and record on the fast path and on the SDK path."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway.server.in_flight import HAND_OVER_SECONDS
from gateway.tools.base import InputRequired
from tests.server.both_paths import (
    ASK,
    ENVELOPE,
    OUTCOMES,
    TEXT,
    VERSION,
    Reply,
    bodies,
    is_json,
    messages,
    old_heads,
    old_request,
    open_session,
    post,
    same,
    standing,
)


async def test_each_outcome_of_a_session_call_reads_the_same_on_both_paths(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        before = setup.behind.count
        for outcome in (o for o in OUTCOMES if not isinstance(o, InputRequired)):
            setup.echo.told = outcome
            await same(setup, old_heads(session), json.dumps(old_request()).encode())
        assert 8 < setup.behind.count - before < len(OUTCOMES) - 6


async def test_session_calls_have_equal_response_and_record_on_both_paths(tmp_path: Path) -> None:
    chance = random.Random(8)
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        given = old_heads(session)
        made = [json.loads(body) for body in bodies(chance) if body.startswith(b'{"jsonrpc') and is_json(body)]
        for message in made[::3]:
            params: Any = message.get("params")
            meta: Any = cast("Any", params).get("_meta") if isinstance(params, dict) else None
            if isinstance(meta, dict) and chance.random() < 0.7:
                params["_meta"] = {key: value for key, value in cast("dict[str, Any]", meta).items() if key not in ENVELOPE}
            if message.get("id") is None and "id" not in message:
                continue  # no request: nothing is answered
            await same(setup, given, json.dumps(message).encode())
        for name, direct in (("asking", True), ("own", False), ("none", False)):
            await same(setup, given, json.dumps(old_request(name=name)).encode(), direct=direct)
        odd = ("", "x", "application/json", "2025-03-26", "2025-06-18", VERSION, "*/*")
        changed = [[(n, value if n == name else v) for n, v in given.items()] for name in given for value in odd]
        for lines in [*changed, *([line for line in given.items() if line[0] != name] for name in given)]:
            await same(setup, lines, json.dumps(old_request()).encode())


async def test_plain_session_call_skips_the_sdk_and_passes_the_gate(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        status, _, message = await same(setup, old_heads(session), json.dumps(old_request(number="x")).encode(), direct=True)
        assert (status, message, setup.taken) == (200, {"jsonrpc": "2.0", "id": "x", "result": {"content": [TEXT]}}, 2)
        body = json.dumps(old_request({"text": "evil"})).encode()
        _, _, refused = await same(setup, old_heads(session), body, direct=True)
        assert refused["result"]["_meta"]["dev.moongate/rule"] == "arguments.echo.text"


async def test_ended_session_is_not_found_by_either_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=True)
        assert (await post(setup.direct, list(old_heads(session).items()), b"", method="DELETE")).status == 200
        status, *_ = await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
        assert status == 404


async def test_slow_session_call_runs_once_and_is_answered_by_the_sdk_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.seconds = HAND_OVER_SECONDS + 0.5
        status, _, message = await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
        assert (status, message["result"]["content"]) == (200, [TEXT])


async def test_logs_of_a_session_call_reach_its_client_before_the_response(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.says = ("debug", "warning")
        body = json.dumps(old_request()).encode()
        for app in (setup.direct, setup.longer):
            reply = await post(app, list(old_heads(session).items()), body)
            heard = [message.get("method") or message["result"]["content"] for message in messages(reply)]
            assert heard == ["notifications/message", [TEXT]]


async def test_session_call_cancelled_at_once_ends(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        setup.echo.seconds = 60
        replies: list[Reply] = []
        lines = list(old_heads(session).items())

        async def call() -> None:
            replies.append(await post(setup.direct, lines, json.dumps(old_request(number=7)).encode()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not setup.echo.calls:
                await anyio.lowlevel.checkpoint()
            taken_back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            assert (await post(setup.direct, lines, json.dumps(taken_back).encode())).status == 202
            await setup.echo.cancelled.wait()
        assert [message["error"]["message"] for message in messages(replies[0])] == ["Request cancelled"]


async def test_elicitation_during_a_session_call_reaches_its_client(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        lines = list(old_heads(session).items())
        setup.echo.told = InputRequired({"who": ASK}, "state")

        async def answer(asked: Any) -> None:
            setup.echo.told = OUTCOMES[0]
            said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {}}}
            assert (await post(setup.direct, lines, json.dumps(said).encode())).status == 202

        async with anyio.create_task_group() as tasks:

            def hear(asked: Any) -> None:
                tasks.start_soon(answer, asked)

            question, result = messages(await post(setup.direct, lines, json.dumps(old_request()).encode(), hearing=hear))
            assert (question["method"], result["result"]["content"]) == ("elicitation/create", [TEXT])
        assert [call[4] for call in setup.echo.calls] == [None, {"who": {"action": "accept", "content": {}}}]


async def test_session_unused_on_the_sdk_path_is_checked_by_the_sdk_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.clients.SEEN_SECONDS", 0.0)
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=False)
