"""Fuzz targets: functions that parse input from peers and files. Each target may raise only its documented error.

    python -m tests.faults.fuzz NAME SECONDS FOLDER

fuzzes one target with atheris, which starts with the target's seeds and is guided by coverage. The run ends with the first failure
and writes the failing input to the folder.

`test_fuzz` runs each target with hypothesis in every test run, and with atheris in `make faults` if atheris can be installed.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # a connection has its asyncio loop
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from pydantic_core import from_json
from uvicorn.server import ServerState

from tests.fakes.told import Told, sdk_path

IS_MAIN = __name__ == "__main__"
atheris: Any = import_module("atheris") if IS_MAIN else None
with atheris.instrument_imports(include=["gateway"]) if IS_MAIN else nullcontext():
    from gateway.config import jsonc
    from gateway.config.models import ServerSettings
    from gateway.egress.tcp import connector
    from gateway.errors import GatewayError, OutcomeUnknown
    from gateway.json_types import JsonObject
    from gateway.policy.hidden_text import strip_text
    from gateway.policy.scopes import judge_scope, scope_problem
    from gateway.server.http_protocol import http_protocol
    from gateway.skills.parser import parse_skill
    from gateway.upstream.pipe import ChildLog, Pipe
    from gateway.wire.http1_client import ClientConnection, ConnectionPool
    from gateway.wire.long_text import LONG_BYTES, decode_parts, encode_around
    from gateway.wire.sse import SseParser
    from tests.workflows.scripted import workflow_of

MAX_BYTES = 4096
"""Maximum size of a line, a body and an event, small enough that generated inputs exceed it."""


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape" if data[:1] == b"!" else "replace")


def events(data: bytes) -> None:
    """An event stream gives the same events, however its bytes are split into chunks."""
    whole, pieces = SseParser(MAX_BYTES), SseParser(MAX_BYTES)
    size = 1 + data[0] % 7 if data else 1
    at_once = whole.feed(data)
    in_parts = [event for start in range(0, len(data), size) for event in pieces.feed(data[start : start + size])]
    assert at_once == in_parts or whole.is_too_large or pieces.is_too_large or data.endswith(b"\r")


def skill(data: bytes) -> None:
    """A `SKILL.md` is read or refused, never a crash."""
    document = parse_skill(data, directory="a-skill")
    assert document.diagnostics or document.name


def workflow(data: bytes) -> None:
    """A workflow file is read, or every fault of it is named."""
    with suppress(GatewayError, UnicodeDecodeError):
        workflow_of(data.decode())


def configuration(data: bytes) -> None:
    """A configuration is read, or its fault is named."""
    with suppress(GatewayError, UnicodeDecodeError):
        jsonc.parse(data.decode())


def hidden(data: bytes) -> None:
    """A stripped text has nothing left to strip."""
    text = strip_text(text_of(data))
    assert strip_text(text) == text


def scopes(data: bytes) -> None:
    """A text is a scope or is rejected; judging by a scope never fails."""
    text = text_of(data)
    scope_problem(text)
    judge_scope([text], "tools", "docs", "search")


class Far:
    """A transport that is not connected to a peer and records the written bytes."""

    def __init__(self) -> None:
        self.is_closed = False
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.written.extend(parts)

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def answer(data: bytes) -> None:
    """Any bytes from an HTTP server, well formed or not, end the wait for its response."""

    async def main() -> None:
        pool = ConnectionPool("up", connector("127.0.0.1", 9, None), max_body_bytes=MAX_BYTES)
        line = ClientConnection(pool, asyncio.get_running_loop())
        line.connection_made(cast("Any", Far()))
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with suppress(OutcomeUnknown), anyio.fail_after(5):
                    await line.send(b"", "caller")

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            middle = len(data) // 2
            for part in (data[:middle], data[middle:]):
                if part:
                    line.data_received(part)
            line.eof_received()
            line.connection_lost(None)
        pool.close()

    anyio.run(main)


def lines(data: bytes) -> None:
    """The pipe turns a child's output into messages and skips unparsable lines."""

    async def main() -> None:
        heard: list[JsonObject] = []
        pipe = Pipe("up", ChildLog(), MAX_BYTES)
        call = pipe.expect(1)
        size = 1 + len(data) // 50
        for start in range(0, len(data), size):
            pipe.pipe_data_received(1, data[start : start + size])
        pipe.pipe_connection_lost(1, None)

        async def take(message: JsonObject) -> None:
            heard.append(message)

        await pipe.pass_on_forever(take)
        assert len(heard) <= data.count(b"\n")
        assert call.done()
        pipe.forget(1, call)

    anyio.run(main)


KNOWN = b"POST /mcp HTTP/1.1\r\nHost: x\r\nMCP-Name: a\r\nTraceparent: 00-1-2\r\nContent-Length: 4\r\nX-After: 17\r\n\r\n[17]"
"""An earlier request on a connection, whose head the connection has cached."""


async def _said(before: bytes, data: bytes) -> bytes:
    """Return the bytes that a connection writes in response to `data` after it received `before`."""
    settings: Any = SimpleNamespace(loaded=True, loaded_app=sdk_path, root_path="", limit_concurrency=None, timeout_keep_alive=5)
    connection, far = http_protocol(ServerSettings(), Told)(settings, ServerState(), {}), Far()
    connection.connection_made(cast("Any", far))
    for part in (before, data):
        far.written.clear()
        connection.data_received(part)
        await anyio.wait_all_tasks_blocked()
    connection.connection_lost(None)
    await anyio.wait_all_tasks_blocked()
    return b"".join(far.written)


def requests(data: bytes) -> None:
    """A connection with a cached head responds to a request as a new connection does."""

    async def main() -> None:
        assert await _said(KNOWN, data) == await _said(b"", data)

    anyio.run(main)


def results(data: bytes) -> None:
    """`decode_parts`, which extracts a long text, gives the same message as a JSON parser, and the text can be written back unchanged."""
    data = data.replace(b"~", rb"\\\"a" * (LONG_BYTES // 5 + 1))
    try:
        whole = from_json(data)
    except ValueError:
        whole = None
    try:
        message, parts, long_text = decode_parts([data])
    except ValueError:
        assert whole is None
        return
    assert repr(message) == repr(whole) and b"".join(parts) == data
    if long_text is not None:
        assert from_json(b"".join(encode_around(message, long_text))) == message


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (events, skill, workflow, configuration, hidden, scopes, answer, lines, requests, results)
}

SEEDS: dict[str, list[bytes]] = {
    "events": [b"event: message\ndata: {}\n\n", b"data: a\r\ndata: b\r\n\r\n: c\n"],
    "skill": [b"---\nname: a-skill\ndescription: Does.\nmetadata:\n  a: b\n---\nBody\n"],
    "workflow": [b"name: a\ndescription: b\nexecutors:\n  one: {tool: up/x, arguments: {a: '{{b}}'}}\nstart: one\noutput: one\n"],
    "configuration": [b'{"mcpServers": {"a": {"command": "b", /* c */ "args": ["d",],}}} // e'],
    "hidden": ["a\u202eb\U000e0041 \x1b[31mred".encode()],
    "scopes": [b"tools:docs/search_*", b"[docs", b"docs/[!a-"],
    "answer": [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
    "requests": [
        KNOWN,
        KNOWN.replace(b"4", b"6").replace(b"17]", b"1717]") + KNOWN,
        KNOWN.replace(b"4", b"44"),
        KNOWN.replace(b"X-", b" "),
        KNOWN.replace(b"00-1-2", b"00-34-5").replace(b": a", b": other"),
    ],
    "results": [b'{"id":1,"result":{"content":[{"type":"text","text":"a\\n~"}],"isError":false}}', b'{"~":"~","a":["\\u00e9~"]}'],
    "lines": [b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 5000 + b'"}\nnoise\n'],
}


def main() -> None:
    """Fuzz one target until its time budget is used."""
    name, seconds, folder = sys.argv[1:]
    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-artifact_prefix={folder}/", f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-timeout=10", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if IS_MAIN:
    main()
