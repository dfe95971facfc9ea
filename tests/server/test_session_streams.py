"""The stream of a 2025 session on the fast path sends its messages in order, and closes after the message that it is sending."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.server.fast_path.fast_session import Stream

pytestmark = pytest.mark.timeout(60)


async def test_stream_ends_after_the_message_being_sent() -> None:
    sent: list[Any] = []
    reads = anyio.Event()

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message)

    stream = Stream(send)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.write, b"a")
            await anyio.wait_all_tasks_blocked()
            await stream.write(b"b")
            tasks.start_soon(stream.close)
            await anyio.wait_all_tasks_blocked()
            reads.set()
    assert [(message["body"], message.get("more_body", False)) for message in sent] == [(b"a", True), (b"b", True), (b"", False)]
