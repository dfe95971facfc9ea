"""The load harness for several gateways (`benchmarks.fleet`), with a small load: it finds no mistake here, and each planted one."""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of the harness
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import report
from benchmarks.fleet.clients import Answer, Connection, ConnectionLost, StreamBroke
from benchmarks.fleet.judge import Failure, Kill, Outcome, Verdict, judge, weigh
from benchmarks.fleet.site import NGINX
from tests.fakes.running import ROOT

HARNESS = [
    pytest.mark.fleet,
    pytest.mark.postgres,
    pytest.mark.nginx,
    pytest.mark.timeout(240),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]
SMALL = ["--sessions", "40", "--rate", "20", "--every", "2", "--quiet", "4", "--kills", "1", "--interval", "5"]
CALL = "person1:7"
RETRYABLE = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"The gateway stopped. Send it again."}}'


def answer(text: str, *, number: int = 3, status: int = 200) -> Answer:
    body = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}]}}
    return Answer(status, json.dumps(body).encode(), "")


def failed(began: float, seconds: float = 0.1, *, failure: Failure = Failure.RETRYABLE) -> Outcome:
    return Outcome(CALL, f"{CALL}/1", "2026", began, seconds, Verdict.FAILED, "HTTP 503", failure)


def fleet(folder: Path, part: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the harness; return its exit code, the figures of its part, and what it printed to stderr."""
    argv = [sys.executable, "-m", "benchmarks.fleet", part, "--json", str(folder / "figures.json"), *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert (folder / "figures.json").exists(), done.stderr[-3000:]
    (figures,) = json.loads((folder / "figures.json").read_text())
    return done.returncode, figures[part], done.stderr


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (answer(CALL), Verdict.RIGHT),
        (answer("person1:8"), Verdict.WRONG),
        (answer("person2:7"), Verdict.FOREIGN),
        (answer(CALL, number=4), Verdict.WRONG),
        (answer(CALL, status=502), Verdict.FAILED),
        (Answer(200, b'{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"no"}}', ""), Verdict.FAILED),
        (Answer(200, b'{"jsonrpc":"2.0","id":3,"result":{}}', ""), Verdict.WRONG),
    ],
)
def test_judge_weighs_each_answer(found: Answer, verdict: Verdict) -> None:
    assert weigh(found, 3, CALL)[0] is verdict


def test_answer_in_an_event_stream_is_read() -> None:
    stream = b"event: message\r\ndata: " + answer(CALL).body + b"\r\n\r\n"
    assert weigh(Answer(200, stream, ""), 3, CALL)[0] is Verdict.RIGHT


@pytest.mark.parametrize(
    ("outcome", "sent_to", "is_excused"),
    [
        (failed(99.95), "127.0.0.1:1", True),
        (failed(99.95), "127.0.0.1:2", False),
        (failed(99.0), "127.0.0.1:1", False),
        (failed(101.0), "127.0.0.1:1", False),
        (failed(99.95, failure=Failure.STREAM_BROKE), "127.0.0.1:1", True),
        (failed(99.95, failure=Failure.BARE), "127.0.0.1:1", False),
    ],
)
def test_only_failures_in_flight_at_a_killed_replica_are_excused(outcome: Outcome, sent_to: str, is_excused: bool) -> None:
    judged = judge([outcome], [Kill("127.0.0.1:1", 100.0)], {outcome.attempt: (sent_to,)})
    assert (sum(judged.excused.values()), len(judged.violations)) == ((1, 0) if is_excused else (0, 1))
    assert judged.failures == {outcome.failure: 1}


@pytest.mark.parametrize(
    ("status", "body", "learned"),
    [
        (503, RETRYABLE, Failure.RETRYABLE),
        (200, RETRYABLE, Failure.RETRYABLE),
        (503, b"<html>503</html>", Failure.BARE),
        (502, b"<html>502</html>", Failure.BARE),
        (400, RETRYABLE, Failure.BARE),
        (503, RETRYABLE.replace(b"again", b"away"), Failure.BARE),
    ],
)
def test_only_an_error_that_says_so_is_retryable(status: int, body: bytes, learned: Failure) -> None:
    verdict, _, failure = weigh(Answer(status, body, ""), 3, CALL)
    assert (verdict, failure) == (Verdict.FAILED, learned)


@pytest.mark.parametrize(("kind", "raised"), [("text/event-stream", StreamBroke), ("application/json", ConnectionLost)])
async def test_broken_stream_is_told_from_a_lost_connection(kind: str, raised: type[Exception]) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n3\r\n:\n\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    async with server:
        connection = await Connection.open(server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionLost) as found:
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
    assert type(found.value) is raised


class TestHarness:
    pytestmark = HARNESS

    def test_calls_survive_a_kill(self, tmp_path: Path) -> None:
        _, figures, said = fleet(tmp_path, "calls", *SMALL, "--no-upgrade")
        for phase in ("quiet", "disturbed"):
            judged = figures[phase]["judgement"]
            assert (judged["wrong"], judged["foreign"], judged["lost"], judged["violation_forms"]) == (0, 0, 0, {}), said[-3000:]
            assert (judged["bare"], figures[phase]["calls"] > 100) == (0, True)
        assert figures["disturbed"]["open_streams"] == 40
        assert [event.split(" ", 1)[1] for event in figures["disturbed"]["events"]] == ["killed replica 1"]

    def test_planted_wrong_answers_are_found(self, tmp_path: Path) -> None:
        code, figures, said = fleet(tmp_path, "calls", *SMALL, "--no-upgrade", "--wrong-every", "25")
        assert code == 1
        judged = figures["quiet"]["judgement"]
        assert judged["wrong"] + judged["foreign"] > 0
        assert judged["foreign"] > 0
        assert "answers of another principal" in said

    def test_tasks_survive_kills(self, tmp_path: Path) -> None:
        _, figures, said = fleet(tmp_path, "tasks", "--tasks", "400", "--in-flight", "20", "--interval", "3")
        assert (figures["right"], figures["lost"], figures["wrong"]) == (400, [], []), said[-3000:]
        assert figures["kills"] > 0
        assert figures["most_repeats_of_a_task"] <= 1

    def test_fleet_is_upgraded_while_it_serves(self, tmp_path: Path) -> None:
        _, figures, said = fleet(tmp_path, "calls", *SMALL)
        judged = figures["disturbed"]["judgement"]
        assert (judged["wrong"], judged["foreign"], judged["lost"], judged["violation_forms"]) == (0, 0, 0, {}), said[-3000:]
        replaced = [event for event in figures["disturbed"]["events"] if "replaced replica" in event]
        assert len(replaced) == 6


def test_missed_target_is_reported() -> None:
    figures: dict[str, Any] = {"replicas": {"ratio": 1.3}}
    assert report.problems(figures) == ["replicas: CPU per call, most expensive fleet of 1 to 4 / one replica: 1.30, at most 1.10"]
    assert report.problems({"replicas": {"ratio": 1.05}}) == []
