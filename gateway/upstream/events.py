"""`Events`: takes a server-sent event stream apart as it comes. Only the data of `message` events; nothing is resumed."""

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
        self._size = 0
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
            if line:
                self._take(line)
            else:
                if self._data and self._is_message:
                    complete.append(b"\n".join(self._data))
                self._data, self._size, self._is_message = [], 0, True
        if rest:
            self._line.append(rest)
        self._size += len(rest)
        self.is_too_large = self._size > self._max_bytes
        return complete

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._is_message = value in (b"message", b"")
