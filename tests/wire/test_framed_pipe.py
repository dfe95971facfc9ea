"""`FramedPipe` on real child processes: the end of a child whose output this process does not read at once."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a pipe is a protocol of its loop
import sys

import anyio

from gateway.wire.framed_pipe import FINAL_OUTPUT_SECONDS, FramedPipe
from gateway.wire.message_sizes import Claim

SCRIPT = """
import sys, time
print("first", flush=True)
time.sleep(0.3)
for n in range(100):
    print(n)
"""


class Paused(FramedPipe):
    """Has no room after its first line, until `room` is set."""

    def __init__(self) -> None:
        super().__init__("test", 1_000)
        self.lines = list[bytes]()
        self.room = False
        self.is_over = anyio.Event()

    def line_received(self, line: bytes) -> None:
        self.lines.append(line)

    def large_line_received(self, parts: list[bytes], claim: Claim) -> None:
        raise AssertionError(parts)

    def oversized_line_received(self, ends: bytes) -> None:
        raise AssertionError(ends)

    def stderr_line_received(self, line: bytes) -> None:
        pass

    def has_room(self) -> bool:
        return self.room or not self.lines

    def output_ended(self) -> None:
        self.is_over.set()


async def test_last_lines_of_ended_child_wait_for_room() -> None:
    pipe = Paused()
    with anyio.fail_after(20):
        transport, _ = await asyncio.get_running_loop().subprocess_exec(lambda: pipe, sys.executable, "-S", "-c", SCRIPT)
        await pipe.ended.wait()
        await anyio.sleep(2 * FINAL_OUTPUT_SECONDS)
        assert pipe.lines == [b"first"]
        pipe.room = True
        pipe.read_on()
        await pipe.is_over.wait()
        transport.close()
    assert pipe.lines == [b"first", *(b"%d" % n for n in range(100))]
