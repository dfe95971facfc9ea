"""`Events`: takes a server-sent event stream apart as it comes. Only the data of `message` events; nothing is resumed.

An event without data says nothing: a server may begin a stream with one, to give its client a place to resume from (SEP-1699).
"""

from __future__ import annotations


class Events:
    """One stream."""

    def __init__(self, max_bytes: int) -> None:
        """One event has at most `max_bytes`."""
        self.is_too_large = False
        """An event grew larger; nothing more is taken."""
        self._max_bytes = max_bytes
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = self._line_size = 0
        """Of the data of this event, and of the line that is not whole."""
        self._is_message = True
        self._ended_in_return = False

    def feed(self, part: bytes) -> list[bytes]:
        """The data of each event that is complete now; linear in what was fed, whatever its lines are."""
        if self._ended_in_return and part.startswith(b"\n"):
            part = part[1:]
            self._ended_in_return = False
        if part:
            self._ended_in_return = part.endswith(b"\r")
        *lines, rest = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        complete: list[bytes] = []
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._line.clear()
                self._line_size = 0
            if line:
                self._take(line)
            else:
                if self._size and self._is_message:
                    complete.append(b"\n".join(self._data))
                self._data, self._size, self._is_message = [], 0, True
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
        self.is_too_large = self._size + self._line_size > self._max_bytes
        return complete

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + bool(self._data)
            self._data.append(value)
        elif name == b"event":
            self._is_message = value in (b"message", b"")
