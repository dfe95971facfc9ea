"""`WriteBatch`: connections write what they send in one turn of the event loop together, at the end of the turn.

A peer on the same machine wakes up for every message that arrives while it waits, which costs more CPU than the message. It reads messages
that arrive together in one turn of its own event loop.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class BufferedConnection(Protocol):
    """A connection that buffers bytes until `flush`."""

    loop: asyncio.AbstractEventLoop
    """The connection's event loop; `asyncio.get_running_loop` takes a system call in Python 3.11."""

    def flush(self) -> None:
        """Write the buffered bytes, if there are any and the connection is open."""
        ...


class WriteBatch:
    """Connections of one event loop that flush at the end of the turn."""

    def __init__(self) -> None:
        self._connections: list[BufferedConnection] = []

    def add(self, connection: BufferedConnection) -> None:
        """Flush the connection at the end of this turn."""
        if not self._connections:
            connection.loop.call_soon(self._flush)
        self._connections.append(connection)

    def _flush(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.flush()
