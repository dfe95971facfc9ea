"""One key's calls, streams, bytes and sessions are bounded. A key at its limit is refused, and all other callers are served."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.crowd import ACCEPT, HELLO, META, Besieged, Watch, besieged, call, connections, is_open, status_of, until
from tests.fakes.running import upstream_stdio

pytestmark = [pytest.mark.timeout(120), pytest.mark.attack(42)]

LIMIT_REACHED = -32010
PATHS = ["auto", pytest.param("off", marks=pytest.mark.faults)]


def config(limits: dict[str, Any], **http: Any) -> dict[str, Any]:
    return {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": {"maxConcurrency": 500}}, "server": {"http": http, "limits": limits}}


def session_of(at: Besieged, caller: str, http: httpx2.Client | None = None, **facts: Any) -> dict[str, str]:
    """Open a 2025 session and return its headers; `facts` are parameters of `initialize`."""
    if http is None:
        with httpx2.Client(timeout=20) as new:
            return session_of(at, caller, new, **facts)
    headers = {**ACCEPT, **at.key_of(caller)}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {**HELLO, **facts}}
    opened = http.post(at.url, json=hello, headers=headers)
    assert opened.status_code == 200, opened.text
    headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    http.post(at.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


def legacy(method: str, number: int = 1, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def raw_post(at: Besieged, raw: socket.socket, body: str, headers: dict[str, str]) -> None:
    raw.sendall(at.head(None, len(body), **headers) + body.encode())


def reply(answer: httpx2.Response) -> Any:
    """Return the JSON-RPC message of a response, either JSON or an event stream."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads(next(line[6:] for line in answer.text.splitlines() if line.startswith("data: {")))
    return answer.json()


@contextmanager
def hanging(at: Besieged, count: int, era: str, name: str = "up__hang") -> Generator[tuple[list[socket.socket], dict[str, str]]]:
    """Open calls of the key `weak` that do not end; yield their connections and the headers for one more call."""
    headers = call(name)[1] if era == "modern" else session_of(at, "weak")
    with connections(at, count) as busy:
        for number, raw in enumerate(busy):
            body = call(name, number)[0] if era == "modern" else legacy("tools/call", number, name=name, arguments={"text": "x"})
            raw_post(at, raw, body, {**headers, **at.key_of("weak")})
        time.sleep(0.5)
        yield busy, {**headers, **at.key_of("weak")}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_key_has_bounded_calls(tmp_path: Path, era: str, path: str) -> None:
    with besieged(tmp_path, config({"callsPerCaller": 5}, directPath=path)) as at, Watch(at) as honest:
        with hanging(at, 5, era) as (busy, headers):
            for name in ("up__hang", "up__echo", "up__echo"):
                body = call(name, 77)[0] if era == "modern" else legacy("tools/call", 77, name=name, arguments={"text": "x"})
                answer = httpx2.post(at.url, content=body, headers={**headers, **({"mcp-name": name} if era == "modern" else {})})
                error = reply(answer)["error"]
                assert error["code"] == LIMIT_REACHED and "server.limits.callsPerCaller" in error["message"]
                if path == "auto":
                    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                    assert reply(answer)["id"] in (77, None)  # the first request for a host is judged by its head
            assert all(map(is_open, busy))
            honest.is_served()
        if era == "modern":  # a 2026 client that disconnects cancels its calls
            body, headers = call()
            until(lambda: httpx2.post(at.url, content=body, headers={**headers, **at.key_of("weak")}).status_code == 200)


@pytest.mark.parametrize("path", PATHS)
def test_calls_of_session_count_after_their_client_left(tmp_path: Path, path: str) -> None:
    """In a 2025 session, calls continue after their client disconnects (2025-11-25, Transports)."""
    with besieged(tmp_path, config({"callsPerCaller": 4}, directPath=path)) as at:
        headers = session_of(at, "weak")
        for number in range(4):
            body = legacy("tools/call", number, name="up__hang", arguments={})
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(at.url, content=body, headers=headers, timeout=0.3)
        body = legacy("tools/call", 9, name="up__echo", arguments={"text": "x"})
        assert reply(httpx2.post(at.url, content=body, headers=headers))["error"]["code"] == LIMIT_REACHED
        for number in range(4):
            told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
            assert httpx2.post(at.url, json=told, headers=headers).status_code == 202
        until(lambda: "result" in reply(httpx2.post(at.url, content=body, headers=headers)))


@pytest.mark.parametrize("path", ["auto", "off"])
def test_ping_is_answered_at_the_bound_of_calls(tmp_path: Path, path: str) -> None:
    with besieged(tmp_path, config({"callsPerCaller": 2}, directPath=path)) as at:
        ping = session_of(at, "weak")
        with hanging(at, 2, "legacy") as (_, headers):
            answers = [reply(httpx2.post(at.url, content=legacy(method), headers=headers)) for method in ("ping", "tools/list")]
            assert answers[0]["result"] == {} and answers[1]["error"]["code"] == LIMIT_REACHED
            for more in ({}, {"_meta": {"progressToken": 1}}):  # the fast path answers only the first of them
                assert reply(httpx2.post(at.url, content=legacy("ping", 3, **more), headers=ping))["result"] == {}


def test_caller_at_its_bound_answers_questions(tmp_path: Path) -> None:
    asking = {"old": upstream_stdio("--legacy")}
    wanted = {"mcpServers": asking, "server": {"limits": {"callsPerCaller": 1}}}
    with besieged(tmp_path, wanted, callers={"weak": ("old",)}) as at:
        headers = {**ACCEPT, **at.key_of("weak")}
        hello: dict[str, Any] = {**HELLO, "capabilities": {"elicitation": {}}}
        opened = httpx2.post(at.url, content=legacy("initialize", 0, **hello), headers=headers)
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        httpx2.post(at.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        body = legacy("tools/call", 5, name="old__ask_name", arguments={})
        with httpx2.stream("POST", at.url, content=body, headers=headers, timeout=20) as run:
            lines = run.iter_lines()
            asked = next(json.loads(line[6:]) for line in lines if line.startswith("data: {") and "elicitation/create" in line)
            more = httpx2.post(at.url, content=legacy("tools/call", 6, name="old__ask_name", arguments={}), headers=headers)
            assert reply(more)["error"]["code"] == LIMIT_REACHED
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"name": "Ada"}}}
            assert httpx2.post(at.url, json=answer, headers=headers).status_code == 202
            assert any("Ada" in line for line in lines)


def listen(at: Besieged, caller: str, era: str, http: httpx2.Client | None = None) -> bytes:
    """Return the request of a stream that does not end."""
    if era == "legacy":
        fields = {**session_of(at, caller, http), "accept": "text/event-stream"}
        return at.head(None, 0, **fields).replace(b"POST", b"GET", 1)
    body = legacy("subscriptions/listen", _meta=META, notifications={"toolsListChanged": True})
    fields = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
    return at.head(caller, len(body), **fields) + body.encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_key_has_bounded_streams(tmp_path: Path, era: str, path: str) -> None:
    with besieged(tmp_path, config({"streamsPerCaller": 3}, directPath=path)) as at, Watch(at) as watch:
        with connections(at, 3) as open_streams:
            for raw in open_streams:
                raw.sendall(listen(at, "weak", era))
                assert status_of(raw) == 200
            with connections(at, 2) as (weak, honest):
                weak.sendall(listen(at, "weak", era))
                honest.sendall(listen(at, "honest", era))
                assert status_of(honest) == 200
                told = weak.recv(4096)
                assert told.startswith(b"HTTP/1.1 429 ") and b"server.limits.streamsPerCaller" in told
            watch.is_served()
            assert all(map(is_open, open_streams))

        def is_free() -> bool:
            with connections(at, 1) as (raw,):
                raw.sendall(listen(at, "weak", era))
                return status_of(raw) == 200

        until(is_free)


@pytest.mark.faults
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_thousand_streams_of_one_key_delay_no_other_client(tmp_path: Path, era: str) -> None:
    with besieged(tmp_path, config({"streamsPerCaller": 700})) as at, Watch(at) as honest, Watch(at, is_kept=False) as fresh:
        honest.is_served()
        before = at.resident()
        with httpx2.Client(timeout=20) as http:
            requests = [listen(at, "weak", era, http) for _ in range(1000)]
        with connections(at, 1000, source="127.0.0.2") as flood:
            for raw, request in zip(flood, requests, strict=True):
                raw.sendall(request)
            found = [status_of(raw) for raw in flood]
            assert (found.count(200), found.count(429)) == (700, 300)
            honest.is_served(calls=20)
            fresh.is_served(calls=20)
        assert at.resident() - before < 150 << 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_chunked", [pytest.param(False, marks=pytest.mark.faults), True])
def test_key_has_bounded_bytes_of_requests(tmp_path: Path, path: str, is_chunked: bool) -> None:
    limits = {"requestBytesPerCaller": 1_000_000}
    with besieged(tmp_path, config(limits, directPath=path, maxRequestBytes=300_000)) as at, Watch(at) as honest:
        body, headers = call("up__hang", text="x" * 200_000)
        with connections(at, 8) as busy:
            for raw in busy:
                head = at.head("weak", len(body), **headers)
                sent = body.encode()
                if is_chunked:
                    head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
                    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent)
                raw.sendall(head + sent)
                time.sleep(0.2)
            refused = [raw for raw in busy if (raw.settimeout(0.2) or True) and not _waits(raw)]
            assert len(refused) == 4
            honest.is_served()
        again, fields = call(text="x" * 200_000)
        until(lambda: httpx2.post(at.url, content=again, headers={**fields, **at.key_of("weak")}).status_code == 200)


def ping(at: Besieged, headers: dict[str, str]) -> int:
    """Send a ping in a session and return the status of the response."""
    return httpx2.post(at.url, content=legacy("ping"), headers=headers, timeout=20).status_code


def listen_in(raw: socket.socket, at: Besieged, headers: dict[str, str]) -> None:
    raw.sendall(at.head(None, 0, **{**headers, "accept": "text/event-stream"}).replace(b"POST", b"GET", 1))
    assert status_of(raw) == 200


@pytest.mark.parametrize("path", PATHS)
def test_key_has_bounded_sessions(tmp_path: Path, path: str) -> None:
    with besieged(tmp_path, config({"sessionsPerCaller": 3}, directPath=path)) as at, ExitStack() as stack:
        honest = session_of(at, "honest")
        listening, oldest, used = (session_of(at, "weak") for _ in range(3))
        raw, busy = stack.enter_context(connections(at, 2))
        listen_in(raw, at, listening)
        assert ping(at, used) == 200
        newest = session_of(at, "weak")
        assert [ping(at, session) for session in (oldest, used, listening, newest, honest)] == [404, 200, 200, 200, 200]
        raw_post(at, busy, legacy("tools/call", 7, name="up__hang", arguments={}), used)
        more = stack.enter_context(connections(at, 1))[0]
        listen_in(more, at, newest)
        time.sleep(0.3)
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        refused = httpx2.post(at.url, json=hello, headers={**ACCEPT, **at.key_of("weak")})
        assert refused.status_code == 429 and "server.limits.sessionsPerCaller" in refused.text
        assert all(map(is_open, (raw, busy, more)))
        assert "session ended reason=evicted" in at.log.read_text()


def test_caller_with_more_sessions_makes_room_for_one_with_fewer(tmp_path: Path) -> None:
    with besieged(tmp_path, config({"sessions": 6, "sessionsPerCaller": 6})) as at:
        honest = session_of(at, "honest")
        weak = [session_of(at, "weak") for _ in range(5)]
        later = session_of(at, "honest")
        assert [ping(at, session) for session in (honest, later, weak[0], weak[1])] == [200, 200, 404, 200]
        session_of(at, "weak")
        assert [ping(at, session) for session in (honest, later)] == [200, 200]


def test_administrator_opens_session_when_all_others_are_in_use(tmp_path: Path) -> None:
    with besieged(tmp_path, config({"sessions": 2, "sessionsPerCaller": 2})) as at, connections(at, 2) as streams:
        for raw, caller in zip(streams, ("weak", "honest"), strict=True):
            listen_in(raw, at, session_of(at, caller))
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        refused = httpx2.post(at.url, json=hello, headers={**ACCEPT, **at.key_of("honest")})
        assert refused.status_code == 503 and "server.limits.sessions" in refused.text
        assert ping(at, session_of(at, "boss")) == 200


@pytest.mark.faults
def test_ten_thousand_sessions_of_one_key_cost_no_other_client(tmp_path: Path) -> None:
    with besieged(tmp_path, config({})) as at, Watch(at) as watch:
        honest = session_of(at, "honest")
        before = at.resident()
        hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}).encode()
        request = at.head("weak", len(hello), **ACCEPT) + hello
        with connections(at, 8, source="127.0.0.2") as flood:
            for _ in range(1250):
                for raw in flood:
                    raw.sendall(request)
                for raw in flood:
                    assert status_of(raw) == 200
        watch.is_served(calls=20)
        assert ping(at, honest) == 200 and ping(at, session_of(at, "honest")) == 200
        assert at.resident() - before < 60 << 20


def _waits(raw: socket.socket) -> bool:
    """Return whether no response has arrived; a response must be a 429 that names the setting."""
    try:
        told = raw.recv(4096)
    except TimeoutError:
        return True
    assert told.startswith(b"HTTP/1.1 429 ") and b"server.limits.requestBytesPerCaller" in told, told
    return False


BIG = 3_900_000
"""Size of a result that is larger than the kernel's send buffer."""


def big(at: Besieged, form: str = "modern", caller: str = "weak") -> bytes:
    """Return a call with a large result: in a 2025 session, or in 2026 with a JSON or event stream response."""
    given: dict[str, Any] = {"name": "up__big", "arguments": {"bytes": BIG, "reports": int(form == "stream")}}
    if form == "legacy":
        body, headers = legacy("tools/call", **given), session_of(at, caller)
    else:
        meta = {**META, "progressToken": "p"} if form == "stream" else META
        body, headers = legacy("tools/call", **given, _meta=meta), call("up__big")[1]
    return at.head(caller, len(body), **headers) + body.encode()


def refused_for_unread(at: Besieged, caller: str = "weak") -> bool:
    """Return whether a small call of the caller is refused because the caller has not read earlier responses."""
    body, headers = call()
    answer = httpx2.post(at.url, content=body, headers={**headers, **at.key_of(caller)}, timeout=20)
    if answer.status_code == 200:
        return False
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "server.limits.unreadBytesPerCaller" in answer.json()["error"]["message"]
    return True


def came_whole(raw: socket.socket) -> bool:
    """Read a response, part of which `status_of` may have read; return whether it was complete before the connection ended."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    left = BIG - 65_536
    with suppress(ConnectionError):
        while left > 0 and (part := raw.recv(1 << 20)):
            left -= len(part)
    return left <= 0


@pytest.mark.parametrize(
    ("form", "path"),
    [("modern", "auto"), ("legacy", "auto"), ("stream", "auto"), pytest.param("modern", "off", marks=pytest.mark.faults)],
)
def test_key_has_bounded_bytes_of_unread_answers(tmp_path: Path, form: str, path: str) -> None:
    limits = {"unreadBytesPerCaller": 4 * BIG, "callsPerCaller": 10}
    with besieged(tmp_path, config(limits, directPath=path)) as at, Watch(at) as honest:
        honest.is_served()
        before = at.resident()
        with connections(at, 40, window=4096) as flood:
            request, found = big(at, form), list[int]()
            for raw in flood:
                raw.sendall(request)
                found.append(status_of(raw))
            assert found[:4] == [200] * 4 and 3 <= found.count(200) <= 9, found
            assert found.count(200) + found.count(429) == 40, found
            assert refused_for_unread(at)
            honest.is_served()
            assert at.resident() - before < 90 << 20
        until(lambda: not refused_for_unread(at))
        honest.is_served()


def test_responses_in_progress_are_cut_beyond_twice_the_bound(tmp_path: Path) -> None:
    with besieged(tmp_path, config({"unreadBytesPerCaller": 2 * BIG})) as at, Watch(at) as honest:
        honest.is_served()
        with connections(at, 24, window=4096) as flood:
            request = big(at)
            for raw in flood:
                raw.sendall(request)
            answered = [raw for raw in flood if status_of(raw) == 200]
            assert len(answered) > 6, "too few calls were in progress at once"
            honest.is_served()
            assert refused_for_unread(at)
            whole = [came_whole(raw) for raw in answered]
            assert 2 <= whole.count(True) <= 4 and not whole[0], whole
        assert "unread answer cut" in at.log.read_text()
        until(lambda: not refused_for_unread(at))


def test_caller_with_most_unread_bytes_is_cut_at_twice_the_total(tmp_path: Path) -> None:
    limits = {"unreadBytes": BIG + BIG // 3, "unreadBytesPerCaller": 3 * BIG}
    with besieged(tmp_path, config(limits)) as at, connections(at, 3, window=4096) as flood:
        for raw, caller in zip(flood, ("honest", "weak", "weak"), strict=True):
            raw.sendall(big(at, caller=caller))
            assert status_of(raw) == 200
        until(lambda: "server.limits.unreadBytes " in at.log.read_text())
        assert [came_whole(raw) for raw in flood] == [True, False, True]


def test_large_answer_is_served_whatever_the_bound(tmp_path: Path) -> None:
    with besieged(tmp_path, config({"unreadBytesPerCaller": 65_536})) as at, connections(at, 1, window=4096) as (raw,):
        raw.sendall(big(at))
        assert status_of(raw) == 200
        until(lambda: refused_for_unread(at))
        assert came_whole(raw)
        until(lambda: not refused_for_unread(at))


def test_answer_that_waits_behind_an_unread_one_counts(tmp_path: Path) -> None:
    with besieged(tmp_path, config({"unreadBytesPerCaller": BIG + BIG // 2})) as at, connections(at, 2, window=4096) as (raw, stream):
        raw.sendall(2 * big(at))
        until(lambda: refused_for_unread(at))
        assert not refused_for_unread(at, "honest")
        stream.sendall(listen(at, "weak", "modern"))
        assert status_of(stream) == 429


def test_unread_answers_of_local_user_are_bounded_by_the_total(tmp_path: Path) -> None:
    limits = {"unreadBytes": 2 * BIG, "unreadBytesPerCaller": 65_536}
    with besieged(tmp_path, config(limits), callers={}) as at, connections(at, 2, window=4096) as (first, second):
        request = big(at)
        first.sendall(request)
        assert status_of(first) == 200
        assert not refused_for_unread(at)
        second.sendall(request)
        until(lambda: refused_for_unread(at))
        assert httpx2.get(f"{at.origin}/health").status_code == 200


def test_local_user_has_the_whole(tmp_path: Path) -> None:
    """Without API keys all callers count as one caller, so a share per caller would limit all of them together."""
    with besieged(tmp_path, config({}, maxConnections=200), callers={}) as at, ExitStack() as stack:
        busy, headers = stack.enter_context(connections(at, 150)), call("up__hang")[1]
        for number, raw in enumerate(busy):
            raw_post(at, raw, call("up__hang", number)[0], headers)
        body, fields = call()
        assert httpx2.post(at.url, content=body, headers=fields).status_code == 200
        assert all(map(is_open, busy))
