"""`stop_signals`: receives the signals that ask a gateway to stop, on POSIX systems and on Windows.

Decided: on Windows, a signal handler writes to a socket that the event loop reads. Because: on Windows asyncio's event loops do not
implement `add_signal_handler`, which anyio's signal receiver needs. Instead of: polling a flag, which delays the stop and keeps an idle
gateway busy. Revisit when: anyio receives signals on Windows.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Generator[AsyncIterator[int]]:
    """Receive SIGINT and SIGTERM (on Windows SIGINT, SIGBREAK and SIGTERM), and yield an iterator of the numbers of received signals.

    While the context is entered, these signals do not end the process. Only for the main thread of the process.
    """
    if sys.platform == "win32":
        with handled_signals(signal.SIGINT, signal.SIGBREAK, signal.SIGTERM) as received:
            yield received
        return
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        yield received


@contextmanager
def handled_signals(*numbers: int) -> Generator[AsyncIterator[int]]:
    """Receive the signals `numbers` with handlers of Python's module `signal`, which every system has. Use `stop_signals` instead."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)

        def handle(number: int, frame: FrameType | None) -> None:
            try:
                sender.send(bytes([number]))
            except BlockingIOError:
                pass  # thousands of signals are unread already

        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield _read_numbers(receiver)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _read_numbers(receiver: socket.socket) -> AsyncIterator[int]:
    import anyio

    while True:
        await anyio.wait_readable(receiver)
        for number in receiver.recv(1024):
            yield number
