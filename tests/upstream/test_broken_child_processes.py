"""Server processes that send unreadable responses, or that end and leave child processes that hold their streams open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import gateway_http
from tests.interaction.ways import Way, connected

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(sys.platform == "win32", reason="the SDK's client is used there"),
]
MODERN = Way("http", "modern", "up")

SERVER = """
import json, os, subprocess, sys

ERA = "2026" if "modern" in sys.argv else "2025"

def say(message):
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")

def called(number, name, given):
    if name == "odd":
        os.write(1, bytes.fromhex(given["hex"]).replace(b"NUMBER", str(number).encode()) + b"\\n")
    elif name == "leave":  # nothing of it is left but a process that holds its streams
        waits = "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(2, b'up'); signal.pause()"
        child = subprocess.Popen([sys.executable, "-S", "-c", waits], stderr=subprocess.PIPE)
        child.stderr.read(2)
        if given["answers"]:
            say({"id": number, "result": done("last words")})
        os._exit(7)
    else:
        say({"id": number, "result": done(name)})

def done(text):
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}

for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message["method"]
    if number is None:
        continue
    if method == "initialize":
        known = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "up", "version": "1"}, "capabilities": {"tools": {}}}
        say({"id": number, "result": known})
    elif method == "server/discover" and ERA == "2026":
        known = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}
        say({"id": number, "result": {"resultType": "complete", **known}})
    elif method == "tools/list":
        given = {"hex": {"type": "string"}, "answers": {"type": "boolean"}}
        tools = [{"name": name, "inputSchema": {"type": "object", "properties": given}} for name in ("odd", "leave", "fine")]
        say({"id": number, "result": {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}})
    elif method == "tools/call":
        called(number, message["params"]["name"], message["params"].get("arguments") or {})
    else:
        say({"id": number, "error": {"code": -32601, "message": method}})
"""

eras = pytest.mark.parametrize("era", ["modern", "legacy"])


def up(era: str, path: str = "auto") -> dict[str, Any]:
    server = {"command": sys.executable, "args": ["-S", "-c", SERVER, era]}
    return {"mcpServers": {"up": server}, "policies": {"up": {"directPath": path}}}


def text_of(result: Any) -> str:
    return result.content[0].text


UNREADABLE = {
    "no UTF-8": b'{"jsonrpc":"2.0","id":NUMBER,"result":{"content":[{"type":"text","text":"\xe9"}]}}',
    "half a character": b'{"result":{"content":[{"type":"text","text":"\\ud83d"}]},"jsonrpc":"2.0","id":NUMBER}',
    "cut off": b'{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [',
    "no result": b'{"jsonrpc":"2.0","id":NUMBER,"result":null}',
    "an error that is a text": b'{"jsonrpc":"2.0","id":NUMBER,"error":"it broke"}',
    "another protocol": b'{"id":NUMBER,"result":{"content":[]}}',
}
CASES = [(path, what) for path in ("auto", "off") for what in UNREADABLE if (path, what) != ("off", "another protocol")]
"""The case `("off", "another protocol")` is left out: the SDK's request ids are small numbers, which may mean anything in such a line."""


@eras
@pytest.mark.parametrize(("path", "what"), CASES)
@pytest.mark.fault(19)
async def test_unreadable_response_fails_its_own_call_at_once(tmp_path: Path, era: str, path: str, what: str) -> None:
    with gateway_http(tmp_path, up(era, path)) as url:
        async with connected(MODERN, url) as (client, _):
            with anyio.fail_after(20):  # less than the call timeout of 60 s
                odd = await client.call_tool("up__odd", {"hex": UNREADABLE[what].hex()})
            after = await client.call_tool("up__fine", {})
    assert odd.is_error
    assert "something that is not MCP" in text_of(odd)
    assert text_of(after) == "fine"


@eras
async def test_log_line_or_request_with_an_id_of_the_sdk_is_not_a_response(tmp_path: Path, era: str) -> None:
    log = b'{"id":NUMBER,"level":"info"}'
    request = b'{"jsonrpc":"2.0","method":"roots/list","params":[],"id":NUMBER}'
    answer = b'{"jsonrpc":"2.0","id":NUMBER,"result":{"content":[{"type":"text","text":"done"}]}}'
    said = b"\n".join((log, request, answer))
    with gateway_http(tmp_path, up(era, "off")) as url:
        async with connected(MODERN, url) as (client, _):
            assert text_of(await client.call_tool("up__odd", {"hex": said.hex()})) == "done"


@eras
@pytest.mark.fault(23)
async def test_server_exit_is_noticed_while_its_children_hold_its_streams(tmp_path: Path, era: str) -> None:
    with gateway_http(tmp_path, up(era)) as url:
        async with connected(MODERN, url) as (client, _):
            with anyio.fail_after(20):
                died = await client.call_tool("up__leave", {"answers": False})
                while (back := await client.call_tool("up__fine", {})).is_error:
                    await anyio.sleep(0.1)
                last = await client.call_tool("up__leave", {"answers": True})
                while (again := await client.call_tool("up__fine", {})).is_error:
                    await anyio.sleep(0.1)
    assert died.is_error
    assert "may have run" in text_of(died)
    assert [text_of(result) for result in (back, last, again)] == ["fine", "last words", "fine"]
