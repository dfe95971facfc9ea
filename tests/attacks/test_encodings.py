"""The gateway reads only UTF-8 JSON from clients: a body that a proxy could decode differently is rejected on every path."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.wire.json_limits import MAX_PARTS, MAX_VALUES, has_too_many_parts
from tests.attacks.test_envelopes import ACCEPT, META
from tests.fakes.running import ROOT, gateway_command, gateway_http, upstream_stdio, write_config

pytestmark = [pytest.mark.timeout(60), pytest.mark.attack(26)]

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
FOREIGN: dict[str, Callable[[str], bytes]] = {
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16-le": lambda text: text.encode("utf-16-le"),
    "utf-16-be": lambda text: text.encode("utf-16-be"),
    "utf-32": lambda text: text.encode("utf-32"),
    "utf-32-le": lambda text: text.encode("utf-32-le"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "latin-1": lambda text: text.replace("hello", "h\u00e9llo").encode("latin-1"),
    "encoded surrogate": lambda text: text.replace("hello", "h\ud800llo").encode("utf-8", "surrogatepass"),
    "overlong": lambda text: text.encode().replace(b"hello", b"h\xc0\xaello"),
}  # fmt: skip


@pytest.fixture(scope="module", params=["auto", "off"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    config = {"mcpServers": {"up": upstream_stdio()}, "server": {"http": {"directPath": request.param}}}
    with gateway_http(tmp_path_factory.mktemp("encodings"), config) as url:
        yield url


def modern(method: str = "tools/call", **more: Any) -> tuple[str, dict[str, str]]:
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": method}
    params: dict[str, Any] = {"_meta": META, **more}
    if method == "tools/call":
        headers["mcp-name"], params["name"], params["arguments"] = "up__echo", "up__echo", {"text": "hello"}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}), headers


def legacy(method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hello", "version": "1"}}


@pytest.mark.parametrize("encoding", FOREIGN)
def test_body_in_other_encoding_is_refused(endpoint: str, encoding: str) -> None:
    encode = FOREIGN[encoding]
    call, headers = modern()
    asked, listed = modern("tools/list", hint="hello")
    opened = httpx2.post(endpoint, headers=ACCEPT, content=legacy("initialize", HELLO))
    session = {**ACCEPT, "mcp-session-id": opened.headers["mcp-session-id"]}
    run = legacy("tools/call", {"name": "up__echo", "arguments": {"text": "hello"}})
    tries = [(endpoint, call, headers), (endpoint, asked, listed), (endpoint, run, session)]
    for url, text, fields in [*tries, (endpoint, legacy("initialize", HELLO), ACCEPT)]:
        answer = httpx2.post(url, headers=fields, content=encode(text))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700), answer.text
    run_of_agent = httpx2.post(endpoint.replace("/mcp", "/agui/hello"), headers=ACCEPT, content=encode('{"hello": 1}'))
    assert run_of_agent.status_code == 400 and "UTF-8" in run_of_agent.json()["message"]
    assert httpx2.post(endpoint, headers=headers, content=call).status_code == 200
    assert "hello" in httpx2.post(endpoint, headers=session, content=run).text


@pytest.mark.parametrize(
    "parameter", ["charset=utf-16", 'charset="utf-16"', "charset=latin1", "charset=utf-16; charset=utf-8", "charset*=utf-16''x"]
)
def test_other_charset_is_refused(endpoint: str, parameter: str) -> None:
    call, headers = modern()
    fields = {**headers, "content-type": f"application/json; {parameter}"}
    for _ in range(2):  # the second head is one that the connection may know
        assert httpx2.post(endpoint, headers=fields, content=call).status_code == 415
    assert httpx2.post(endpoint, headers={**ACCEPT, "content-type": fields["content-type"]}, content=PING).status_code == 415


@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"', "utf8"])
def test_utf_8_charset_is_accepted(endpoint: str, charset: str) -> None:
    call, headers = modern()
    answer = httpx2.post(endpoint, headers={**headers, "content-type": f"application/json; charset={charset}"}, content=call)
    assert "hello" in answer.text


@pytest.mark.parametrize("is_file", [False, True])
def test_line_in_other_encoding_is_not_run(tmp_path: Path, is_file: bool) -> None:
    command, arguments = gateway_command(write_config(tmp_path, {}))
    hello = legacy("initialize", HELLO)
    foreign = [encode(hello.replace('"id": 1', f'"id": "{name}"')) for name, encode in FOREIGN.items()]
    given = b"\n".join([*foreign, hello.encode(), b""])
    source = tmp_path / "lines"
    source.write_bytes(given)
    with (
        source.open("rb") as lines,
        subprocess.Popen([command, *arguments], cwd=ROOT, stdin=lines if is_file else subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        told, _ = process.communicate(None if is_file else given, timeout=30)
    answers: list[Any] = [json.loads(line) for line in told.splitlines()]
    assert [answer["id"] for answer in answers if "result" in answer] == [1]
    refused = [answer["error"]["code"] for answer in answers if "error" in answer]
    assert set(refused) == {-32700}


KEYS = {f"{number:x}": 0 for number in range(MAX_PARTS + 1)}
MANY: dict[str, dict[str, Any]] = {
    "members": KEYS,
    "objects": {"text": [{}] * (MAX_PARTS + 1)},
    "lists": {"text": [[]] * (MAX_PARTS + 1)},
    "numbers": {"text": "hello", "more": [0] * (MAX_VALUES + 1)},
}
FEW: dict[str, dict[str, Any]] = {
    "text": {"text": '":{[\\\\"' * 100_000},
    "numbers": {"text": "hello", "more": [0] * 60_000},
}


@pytest.mark.attack(21)
@pytest.mark.parametrize("kind", MANY)
def test_message_with_too_many_members_is_refused(endpoint: str, kind: str) -> None:
    many = MANY[kind]
    opened = httpx2.post(endpoint, headers=ACCEPT, content=legacy("initialize", HELLO))
    session = {**ACCEPT, "mcp-session-id": opened.headers["mcp-session-id"]}
    call, headers = modern()
    message = json.loads(call)
    tries = [(legacy("tools/call", {"name": "up__echo", "arguments": many}), session), (legacy("ping", many), session)]
    tries += [(legacy("initialize", {**HELLO, "capabilities": {"experimental": many}}), ACCEPT)]
    tries += [(json.dumps({**message, "params": {**message["params"], **more}}), headers) for more in ({"arguments": many}, many)]
    tries += [(json.dumps({**message, "params": {**message["params"], "_meta": {**META, **many}}}), headers)]
    for text, fields in tries:
        answer = httpx2.post(endpoint, headers=fields, content=text.replace(" ", ""))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602), answer.text
        assert "50000 members" in answer.json()["error"]["message"]
    run = httpx2.post(endpoint.replace("/mcp", "/agui/hello"), headers=ACCEPT, content=json.dumps(many).replace(" ", ""))
    assert run.status_code == 400 and "50000 members" in run.json()["message"]


@pytest.mark.attack(21)
@pytest.mark.parametrize("kind", FEW)
def test_large_text_and_long_number_list_are_not_members(endpoint: str, kind: str) -> None:
    call, headers = modern()
    message = json.loads(call)
    message["params"]["arguments"] = FEW[kind]
    answer = httpx2.post(endpoint, headers=headers, content=json.dumps(message).replace(" ", ""), timeout=30)
    assert answer.status_code == 200 and '"error"' not in answer.text[:200]


def test_members_are_counted_outside_strings_alone() -> None:
    for text in ('"', "\\", '\\"', '"\\', ":", "{", ",", '\\\\"":'):
        assert not has_too_many_parts(json.dumps([text * MAX_VALUES]).encode())
        assert has_too_many_parts(json.dumps([text, *[{text: text}] * (MAX_PARTS // 2)]).encode())


@pytest.mark.parametrize("is_file", [False, True])
def test_line_with_too_many_members_is_not_run(tmp_path: Path, is_file: bool) -> None:
    command, arguments = gateway_command(write_config(tmp_path, {}))
    hello = legacy("initialize", HELLO)
    given = b"\n".join([legacy("initialize", {**HELLO, **KEYS}).replace('"id": 1', '"id": 2').encode(), hello.encode(), b""])
    source = tmp_path / "lines"
    source.write_bytes(given)
    with (
        source.open("rb") as lines,
        subprocess.Popen([command, *arguments], cwd=ROOT, stdin=lines if is_file else subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        told, _ = process.communicate(None if is_file else given, timeout=30)
    answers: list[Any] = [json.loads(line) for line in told.splitlines()]
    assert [answer["id"] for answer in answers if "result" in answer] == [1]
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32602]
