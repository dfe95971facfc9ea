"""The MCP server behind the gateways of the harness: returns the text of each call after a delay, and counts the calls of each text.

    python -m benchmarks.fleet.echo_server PORT DELAY_SECONDS [WRONG_EVERY]

`GET /effects` returns how often each text was called, as JSON: the side effects of calls. With `WRONG_EVERY` n, each n-th call returns the
text of the call before it; a test uses this to prove that the harness notices a wrong answer.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # asyncio.Protocol has no anyio equivalent
import json
import sys
from typing import Any

from benchmarks.machine import run_loop
from benchmarks.upstream import KINDS, Answers, Served


class CountedAnswers(Answers):
    """Answers of the server, with the number of calls of each text."""

    def __init__(self, wrong_every: int) -> None:
        super().__init__(2, 60_000, KINDS["both"])
        self.effects: dict[str, int] = {}
        self._wrong_every = wrong_every
        self._calls = 0
        self._last = ""

    def _called(self, arguments: dict[str, Any]) -> bytes:
        text: str = arguments["text"]
        self.effects[text] = self.effects.get(text, 0) + 1
        self._calls += 1
        last, self._last = self._last, text
        is_wrong = self._wrong_every and self._calls % self._wrong_every == 0 and last
        return super()._called({"text": last} if is_wrong else arguments)


class DelayedServed(Served):
    """A connection that answers tool calls after a delay, so that calls are in flight when a replica is killed."""

    def __init__(self, answers: CountedAnswers, delay: float) -> None:
        super().__init__(answers)
        self._counted = answers
        self._delay = delay

    def on_message_complete(self) -> None:
        if self._url == b"/effects":
            self._body = []
            self._write(200, json.dumps(self._counted.effects).encode())
            return
        super().on_message_complete()

    def _asked(self, method: bytes, body: bytes) -> None:
        if method != b"POST" or b'"tools/call"' not in body:
            super()._asked(method, body)
            return
        asyncio.get_running_loop().call_later(self._delay, self._write, 200, self._counted.to(body))


async def serve(port: int, delay: float, wrong_every: int) -> None:
    """Serve on a port of this machine until the process is stopped."""
    answers = CountedAnswers(wrong_every)
    await asyncio.get_running_loop().create_server(lambda: DelayedServed(answers, delay), "127.0.0.1", port, backlog=1024)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(serve(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
