"""Attacks 21 and 42, large bodies of one key: each is rejected after its first part, or read after the earlier bodies of the key."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.auth.principal import LOCAL, Principal
from gateway.server import usage
from gateway.server.bodies import COUNTED_SCOPE_KEY
from gateway.server.usage import (
    BYTE_SECONDS,
    MAX_WAIT_SECONDS,
    PACE,
    PACED_BYTES,
    PACED_PARTS,
    PART_SECONDS,
    SMALL_BYTES,
    CountedBody,
    Usages,
)
from gateway.wire.json_limits import MAX_PARTS, MAX_VALUES, WINDOW_BYTES, PartCounter, has_too_many_parts
from tests.fakes.crowd import Besieged, Watch, besieged, connections
from tests.fakes.running import upstream_stdio

pytestmark = [pytest.mark.timeout(120), pytest.mark.attack(42)]

MANY: dict[str, Callable[[], bytes]] = {
    "members": lambda: json.dumps({f"k{number}": 1 for number in range(300_000)}).encode(),
    "texts": lambda: b"[" + b'"",' * 1_300_000 + b"0]",
    "texts of commas": lambda: b"[" + b'",",' * 900_000 + b"0]",
    "nested objects": lambda: b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "escapes": lambda: b'{"' + rb"\\\"" * 900_000 + b'":1' + b',"":1' * 60_000 + b"}",
}


@pytest.mark.attack(21)
@pytest.mark.parametrize("kind", MANY)
def test_counting_ends_at_the_limit(kind: str) -> None:
    body = MANY[kind]()
    counted = PartCounter()
    counted.feed(body)
    assert counted.is_over and has_too_many_parts(body)
    assert counted.parts <= MAX_PARTS + WINDOW_BYTES and counted.values <= MAX_VALUES + WINDOW_BYTES


def counts(data: bytes) -> tuple[int, int]:
    """Parts and values, counted character by character."""
    parts = values = 0
    is_inside = is_escaped = False
    for character in data.decode():
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif character == '"':
            is_inside = not is_inside
        elif not is_inside:
            parts += character in ":{["
            values += character == ","
    return parts, values


TEXTS = st.text(alphabet='"\\:{[,]}a\u00e9', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.integers(0, 9), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=10
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.lists(st.integers(1, 7), max_size=40), st.booleans())
@example(["\\", '\\":', {'"': ","}], [1] * 30, False)
def test_parts_are_counted_alike_however_a_body_is_cut(value: Any, sizes: list[int], is_spaced: bool) -> None:
    data, counted = json.dumps(value, separators=None if is_spaced else (",", ":"), ensure_ascii=False).encode(), PartCounter()
    start = 0
    for size in [*sizes, len(data)]:
        counted.feed(data[start : start + size])
        start += size
    assert (counted.parts, counted.values) == counts(data)


def test_parts_in_long_texts_are_counted_across_windows() -> None:
    for shift in range(4):
        data = json.dumps(["x" * (WINDOW_BYTES - 4 - shift) + '\\":,', {"a": "," * WINDOW_BYTES}, [1, 2]]).encode()
        counted = PartCounter()
        counted.feed(data)
        assert (counted.parts, counted.values) == counts(data) == (4, 3)


# -- turns of one caller ---------------------------------------------------------------------------------------------

LARGE, CROWDED = b'"' + b"x" * PACED_BYTES + b'"', b"[" + b"[]," * PACED_PARTS + b"0]"


async def read(usages: Usages, principal: Principal, body: bytes) -> dict[str, Any]:
    """Read a body in two pieces as an application does; its scope."""
    pieces = [body[:100], body[100:]]
    scope: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    counted = CountedBody(receive, scope, usages.of(principal), len(body), is_known=True)
    while (await counted())["more_body"]:
        pass
    counted.release()
    return scope


@pytest.mark.parametrize("body", [LARGE, CROWDED], ids=["bytes", "parts"])
async def test_large_body_waits_for_those_of_its_caller(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PACE", 10_000)
    usages, weak, other = Usages(), Principal("weak"), Principal("other")
    with anyio.fail_after(10):
        assert COUNTED_SCOPE_KEY in await read(usages, weak, body)
    assert usages.of(weak).seconds_of(body) > 0 and usages.of(weak).wait_seconds() > 0
    usages.of(weak).read_large(60)
    with anyio.move_on_after(0.05) as waiting:
        await read(usages, weak, body)
    assert waiting.cancelled_caught
    with anyio.fail_after(10):
        await read(usages, other, body)
        await read(usages, weak, body[: PACED_PARTS // 2])


async def test_caller_with_large_waiting_bodies_gets_no_more() -> None:
    usages = Usages()
    weak = usages.of(Principal("weak"))
    weak.read_large(MAX_WAIT_SECONDS / PACE - 1)
    assert weak.refuse_bytes(PACED_BYTES) is None
    weak.read_large(2)
    refused = weak.refuse_bytes(PACED_BYTES)
    assert refused is not None and refused.status == 429
    assert weak.refuse_bytes(SMALL_BYTES) is None and weak.refuse_call(SMALL_BYTES) is None
    assert usages.of(Principal("other")).refuse_bytes(PACED_BYTES) is None


async def test_local_user_does_not_wait_for_large_bodies() -> None:
    usages = Usages()
    usages.of(LOCAL).read_large(60)
    with anyio.fail_after(10):
        await read(usages, LOCAL, LARGE)
    assert usages.of(LOCAL).seconds_of(LARGE) == 0


async def test_body_with_too_many_parts_is_not_marked_as_counted() -> None:
    usages = Usages()
    assert COUNTED_SCOPE_KEY not in await read(usages, Principal("weak"), b"[" + b"[]," * MAX_PARTS + b"0]")


def arguments(kind: str) -> bytes:
    if kind == "crowded":
        return json.dumps({"text": [{"a": 1}] * 16_000}).encode()
    return json.dumps({"text": "x" * 900_000} if kind == "large" else {f"k{number}": 1 for number in range(60_000)}).encode()


def flood(at: Besieged, raw: socket.socket, kind: str, is_over: threading.Event, answers: list[bytes]) -> None:
    """Send one body after the other on one connection."""
    given = arguments(kind)
    meta = json.dumps({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}).encode()
    params = b'{"name":"up__echo","arguments":' + given + b',"_meta":' + meta + b"}"
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}"
    head = at.head("weak", len(body), mcp_protocol_version="2026-07-28", mcp_method="tools/call", mcp_name="up__echo")
    while not is_over.is_set():
        try:
            raw.sendall(head + body)
            answers.append(next(statuses(raw)))
        except (OSError, StopIteration):
            return


def statuses(raw: socket.socket) -> Iterator[bytes]:
    """Read answers to their end."""
    data = b""
    while chunk := raw.recv(1 << 20):
        data += chunk
        head, end, body = data.partition(b"\r\n\r\n")
        length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if end and (len(body) >= length[0] if length else body.endswith(b"0\r\n\r\n")):
            data = b""
            yield head[9:12]


SIZES = {"crowded": (128_000, 48_000), "large": (900_000, 0), "refused": (700_000, MAX_PARTS)}
"""Minimum bytes and parts of the bodies of each kind."""


@pytest.mark.parametrize("kind", SIZES)
def test_key_with_large_bodies_gets_a_share_of_the_event_loop(tmp_path: Path, kind: str) -> None:
    """The number of bodies that were read is bounded, because each body takes at least `seconds`."""
    size, parts = SIZES[kind]
    seconds = PACE * (size * BYTE_SECONDS + parts * PART_SECONDS)
    is_over = threading.Event()
    answers: list[bytes] = []
    with besieged(tmp_path, {"mcpServers": {"up": upstream_stdio()}}) as at, Watch(at) as honest, connections(at, 8) as raws:
        honest.is_served()
        began = time.monotonic()
        threads = [threading.Thread(target=flood, args=(at, raw, kind, is_over, answers), daemon=True) for raw in raws]
        for thread in threads:
            thread.start()
        while len(answers) < 12:
            honest.is_served(calls=1)
        took = time.monotonic() - began
        read = len(answers)
        is_over.set()
        for raw in raws:
            raw.close()
        for thread in threads:
            thread.join(10)
        honest.is_served()
    assert {*answers[:12]} == {b"400" if kind == "refused" else b"200"}
    assert read <= took / seconds + 1
