"""Malformed messages: each is rejected without a crash or a server error, and is never taken for another message."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.running import ROOT, gateway_command, gateway_http, upstream_stdio, write_config

pytestmark = pytest.mark.timeout(120)
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
ODD: list[Any] = [None, True, 0, -1, 1e308, 2**70, "", "\x00", "\ud800", "x" * 5000, [], [[]], {}, {"": None}, ["tools/call"]]
METHODS = [
    "initialize", "ping", "server/discover", "tools/list", "tools/call", "resources/read", "resources/list", "prompts/get",
    "completion/complete", "logging/setLevel", "subscriptions/listen", "resources/subscribe", "tasks/get", "tasks/update",
    "tasks/cancel", "tasks/result", "skills/list", "skills/get", "notifications/cancelled", "notifications/progress",
    "notifications/initialized", "roots/list", "no/such/method", "",
]  # fmt: skip
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "odd", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def odd_params(dice: random.Random) -> Any:
    """Return parameters of which some are valid, some missing and some of a wrong type."""
    if dice.random() < 0.2:
        return dice.choice(ODD)
    good: dict[str, Any] = {"name": "up__echo", "arguments": {"text": "hello"}, "uri": "skill://index.json"}
    good |= {"_meta": META, "taskId": "00", "task": {"ttl": 1}}
    names = [*good, "cursor", "requestId", "progressToken", "progress", "ref", "argument", "level"]
    return {name: dice.choice(ODD) if dice.random() < 0.4 else good.get(name, "x") for name in dice.sample(names, dice.randrange(6))}


def odd_message(dice: random.Random) -> Any:
    """Return one JSON message whose members are each valid or invalid at random."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": dice.randrange(10**6), "method": dice.choice(METHODS), "params": odd_params(dice)}
    for part in ("jsonrpc", "id", "method", "params"):
        turn = dice.random()
        if turn < 0.1:
            del message[part]
        elif turn < 0.2:
            message[part] = dice.choice(ODD)
    if dice.random() < 0.1:
        message[dice.choice(["result", "error", "extra"])] = dice.choice(ODD)
    return dice.choice([message, message, message, [message], [message, message], dice.choice(ODD)]) if dice.random() < 0.1 else message


def odd_bodies(seed: int, count: int) -> Iterator[bytes]:
    """`count` bodies, the same for the same seed: whole messages, torn ones, flipped bytes, depth, doubled keys."""
    dice = random.Random(seed)
    for _ in range(count):
        body = json.dumps(odd_message(dice)).encode()
        turn = dice.random()
        if turn < 0.1:
            body = body[: dice.randrange(len(body) + 1)]
        elif turn < 0.2:
            at = dice.randrange(len(body))
            body = body[:at] + bytes([dice.randrange(256)]) + body[at + 1 :]
        elif turn < 0.25:
            body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 3000 + b"]" * 3000 + b"}"
        elif turn < 0.3:
            body = body.replace(b'"method":', b'"method":"ping","method":', 1)
        elif turn < 0.35:
            body = b"\xef\xbb\xbf" + body
        yield body.replace(b"\n", b" ").replace(b"\r", b" ")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("odd")
    with gateway_http(folder, {"mcpServers": {"up": upstream_stdio()}}) as url:
        yield url, folder / "gateway.log"


def odd_headers(dice: random.Random) -> dict[str, str]:
    """Return request headers with or without those of 2026, some with invalid values."""
    headers = dict(ACCEPT)
    if dice.random() < 0.5:
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": dice.choice([*METHODS[:8], "x"])}
        headers |= {"mcp-name": dice.choice(["up__echo", "x"])}
    if dice.random() < 0.1:
        headers["mcp-session-id"] = dice.choice(["x", "0" * 32, "a" * 5000])
    if dice.random() < 0.1:
        headers["content-type"] = dice.choice(["text/plain", "application/json; charset=utf-16", "multipart/form-data"])
    return headers


def put_all_over_http(url: str, log: Path, seed: int, count: int) -> None:
    dice = random.Random(seed)
    statuses: dict[int, int] = {}
    with httpx2.Client(timeout=20) as client:
        for body in odd_bodies(seed, count):
            with client.stream("POST", url, headers=odd_headers(dice), content=body) as answer:
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                assert answer.status_code < 500, (answer.status_code, body[:500])
        honest = client.post(url, headers=ACCEPT, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "honest", "version": "1"}}})  # fmt: skip
    assert honest.status_code == 200
    assert len(statuses) > 2, statuses  # the generator reaches several kinds of answer
    assert "Traceback" not in log.read_text(), log.read_text()[-3000:]


@pytest.mark.attack(32)
@pytest.mark.fault(26)
def test_four_hundred_malformed_bodies_are_refused_one_by_one(served: tuple[str, Path]) -> None:
    put_all_over_http(*served, seed=1, count=400)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.attack(32)
@pytest.mark.fault(26)
@pytest.mark.parametrize("seed", range(2, 12))
def test_ten_thousand_malformed_bodies_are_refused_one_by_one(served: tuple[str, Path], seed: int) -> None:
    put_all_over_http(*served, seed=seed, count=1000)


@pytest.mark.attack(32)
@pytest.mark.fault(26)
def test_malformed_lines_over_stdio_end_nothing(tmp_path: Path) -> None:
    command, arguments = gateway_command(write_config(tmp_path, {"mcpServers": {"up": upstream_stdio()}}))
    hello = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "odd", "version": "1"}}}  # fmt: skip
    lines = [json.dumps(hello).encode(), b'{"jsonrpc":"2.0","method":"notifications/initialized"}', *odd_bodies(1, 400)]
    lines.append(b'{"jsonrpc":"2.0","id":"last","method":"tools/call","params":{"name":"up__echo","arguments":{"text":"still here"}}}')
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen([command, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n".join(lines) + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if answer.get("id") == "last":
                break
        else:
            raise AssertionError(log.read_text()[-3000:])
        process.stdin.close()
        process.wait(20)
    assert "still here" in json.dumps(answer)
    assert "Traceback" not in log.read_text(), log.read_text()[-3000:]


@pytest.mark.attack(26)
def test_repeated_key_sends_the_value_that_was_checked(tmp_path: Path) -> None:
    """The last of two equal keys counts, for the policy and for the server alike."""
    settings = {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": {"tools": {"allow": ["echo"]}}}}
    with gateway_http(tmp_path, settings) as url:
        headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "up__echo"}
        meta = json.dumps(META)

        def call(names: str) -> Any:
            params = f'{{{names},"arguments":{{"text":"first","text":"second"}},"_meta":{meta}}}'
            body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
            return httpx2.post(url, headers=headers, content=body.encode())

        refused = call('"name":"up__echo","name":"up__add"')
        passed = call('"name":"up__add","name":"up__echo"')
    assert refused.status_code == 400  # the header names another tool than the body does
    assert "second" in passed.text
    assert "first" not in passed.text


@pytest.mark.attack(25)
@pytest.mark.parametrize(
    ("name", "value"),
    [("mcp-method", "tools/list"), ("mcp-name", "up__add"), ("mcp-protocol-version", "2025-11-25"), ("mcp-name", ""), ("mcp-method", "")],
)
def test_header_that_contradicts_the_body_is_rejected(served: tuple[str, Path], name: str, value: str) -> None:
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "up__echo", name: value}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "up__echo", "arguments": {"text": "x"}, "_meta": META}}
    answer = httpx2.post(served[0], headers=headers, json=body)
    assert answer.status_code == 400
    assert '"error"' in answer.text


@pytest.mark.attack(25)
@pytest.mark.attack(26)
@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length : 5\r\n",
        b"X-A: b\r\n folded: c\r\nContent-Length: x\r\n",
        b"X-A: b\x00c\r\n",
        b"X A: b\r\n",
    ],
)
def test_ambiguously_framed_envelope_is_rejected(served: tuple[str, Path], head: bytes) -> None:
    from tests.attacks.test_connections import connected, rest

    smuggled = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(served[0].removesuffix("/mcp")) as raw:
        raw.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n0\r\n\r\n" + smuggled)
        raw.settimeout(15)
        answer = rest(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"ok"' not in answer  # the second request was not taken from the body of the first
