"""`Together`: what connections write in one turn of the loop goes out together at its end.

A peer on the same machine wakes for every message that it is sent while it waits, which costs more than the message. Sent one right
after the other, many are read in one turn of its own.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Holding(Protocol):
    """A connection that holds back what it is to send."""

    loop: asyncio.AbstractEventLoop
    """The one it lives in; to ask for that takes a system call, where Python (3.11) looks whether the process was forked."""

    def flush(self) -> None:
        """Send it, unless that was done before or the connection is over."""
        ...


class Together:
    """Of one loop."""

    def __init__(self) -> None:
        self._held: list[Holding] = []

    def add(self, connection: Holding) -> None:
        """Flush it at the end of this turn."""
        if not self._held:
            connection.loop.call_soon(self._flush)
        self._held.append(connection)

    def _flush(self) -> None:
        held, self._held = self._held, []
        for connection in held:
            connection.flush()
