"""What is fed with anything at all: the readers of what peers and files say. Each target may raise its documented error and no other.

    python -m tests.faults.fuzz NAME SECONDS FOLDER

feeds one target with atheris, guided by coverage; it ends with the first failure and leaves what did it in the folder.

`test_fuzz` does it for each in `make faults`, which installs atheris where it can, and feeds all of them by hypothesis in every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any, cast

import anyio

IS_MAIN = __name__ == "__main__"
atheris: Any = import_module("atheris") if IS_MAIN else None
with atheris.instrument_imports(include=["gateway"]) if IS_MAIN else nullcontext():
    from gateway.config import jsonc
    from gateway.errors import GatewayError, UpstreamLost
    from gateway.json_types import JsonObject
    from gateway.policy.hidden_text import strip_text
    from gateway.policy.scopes import judge_scope, scope_problem
    from gateway.skills.parser import parse_skill
    from gateway.upstream.events import Events
    from gateway.upstream.pipe import ChildLog, Pipe
    from gateway.upstream.pool import Line, Pool
    from gateway.workflows.loader import parse_workflow

MAX_BYTES = 4096
"""Of a line, a body and an event: small, so that inputs get beyond it."""


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape" if data[:1] == b"!" else "replace")


def events(data: bytes) -> None:
    """However a stream of events is cut, the events are the same."""
    whole, pieces = Events(MAX_BYTES), Events(MAX_BYTES)
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
        parse_workflow(data.decode())


def configuration(data: bytes) -> None:
    """A configuration is read, or its fault is named."""
    with suppress(GatewayError, UnicodeDecodeError):
        jsonc.parse(data.decode())


def hidden(data: bytes) -> None:
    """What is stripped has nothing left to strip."""
    text = strip_text(text_of(data))
    assert strip_text(text) == text


def scopes(data: bytes) -> None:
    """A scope is one or is told not to be; judging by it never fails."""
    text = text_of(data)
    scope_problem(text)
    judge_scope([text], "tools", "docs", "search")


class Far:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def write(self, data: bytes) -> None:
        """Gone."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def answer(data: bytes) -> None:
    """The answer of a server over HTTP ends the wait for it, whatever its head and body are."""

    async def main() -> None:
        pool = Pool("up", "127.0.0.1", 9, tls=None, max_body_bytes=MAX_BYTES)
        line = Line(pool)
        line.connection_made(cast("Any", Far()))
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with suppress(UpstreamLost), anyio.fail_after(5):
                    await line.begin(b"")

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
    """What a child writes becomes messages, or is skipped."""

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

        await pipe.hand_on_forever(take)
        assert len(heard) <= data.count(b"\n")
        assert call.done()
        pipe.forget(1, call)

    anyio.run(main)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (events, skill, workflow, configuration, hidden, scopes, answer, lines)
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
    "lines": [b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 5000 + b'"}\nnoise\n'],
}


def main() -> None:
    """Fuzz one target until its time is over."""
    name, seconds, folder = sys.argv[1:]
    options = [f"-artifact_prefix={folder}/", f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-timeout=10", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()


if IS_MAIN:
    main()
