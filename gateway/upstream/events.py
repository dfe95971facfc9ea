"""`Events`: takes a server-sent event stream apart as it comes. Only the data of events of one name.

An event without data says nothing: a server may begin a stream with one, to give its client a place to resume from (SEP-1699).
"""

from __future__ import annotations

from collections.abc import Sequence

MESSAGE = b"message"
"""The name of an event that has none."""

MAX_ID_BYTES = 1024
"""Of the id of an event that can be named again."""

END_LINES = 8
"""Of data that is cut, held at its beginning and at its end."""

_RETURN = 0x0D
_MOST_DIGITS = 9
_LONGEST_NAME = len(b"event: ")
"""Of a field that counts, and what follows; the rest of a line may be long."""


class Events:
    """One stream."""

    def __init__(self, max_bytes: int, *, name: bytes = MESSAGE, cuts: bool = False) -> None:
        """One event has at most `max_bytes`. With `cuts` the stream goes on after a larger one, of which only the ends are held."""
        self.is_too_large = False
        """An event grew larger; without `cuts` nothing more is taken."""
        self.cut: list[bytes] = []
        """The ends of data that was too large; for who takes them away."""
        self.last_id = b""
        """Of the event that came last, by which the stream can be taken up again; empty where none has one."""
        self.retry_seconds: float | None = None
        """When that may be, where the server says so."""
        self._max_bytes = max_bytes
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = self._held = 0
        """Bytes of the data, and of a line whose end has not come."""
        self._name = name
        self._is_wanted = name == MESSAGE
        self._cuts = cuts
        self._is_cut = False
        self._ended_in_return = False

    @property
    def pending_bytes(self) -> int:
        """Size of the event that has begun to come."""
        return self._size + self._held

    def feed(self, part: bytes) -> list[bytes]:
        """The data of each event that is complete now; linear in what was fed, whatever its lines are."""
        if self._ended_in_return and part.startswith(b"\n"):
            part = part[1:]
            self._ended_in_return = False
        if part:
            self._ended_in_return = part.endswith(b"\r")
        if _RETURN in part:
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        complete: list[bytes] = []
        start = 0
        while (end := part.find(b"\n", start)) >= 0:  # a quarter of what a split takes where lines are long
            line, start = part[start:end], end + 1
            if self._line:
                self._hold(line)
                first, *more = self._line
                self._line, self._held = [], 0
                self._take(first, more)
            elif line:
                self._take(line)
            else:
                if self._is_wanted and (data := b"\n".join(self._data)):
                    (self.cut if self._is_cut else complete).append(data)
                self._data, self._size, self._is_cut, self._is_wanted = [], 0, False, self._name == MESSAGE
        if start < len(part):
            self._hold(part[start:])
            self._held += len(part) - start
        self.is_too_large = self._size + self._held > self._max_bytes
        if self.is_too_large and self._cuts:
            self._is_cut = True
            del self._line[2:-2], self._data[END_LINES:-END_LINES]  # the ends tell whose answer it is
        return complete

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line. The first part has the whole name of the field, so a long value is copied once, when it is complete."""
        if self._line and len(self._line[0]) < _LONGEST_NAME:
            self._line[0] += part
        else:
            self._line.append(part)

    def _take(self, line: bytes, more: Sequence[bytes] = ()) -> None:
        name, _, value = line[:_LONGEST_NAME].partition(b":")
        if name == b"data":
            data = b"".join((line[6 if value.startswith(b" ") else 5 :], *more))
            self._size += len(data) + bool(self._data)
            self._data.append(data)
            return
        line = b"".join((line, *more))
        if name == b"event":
            self._is_wanted = (line[6:].removeprefix(b" ") or MESSAGE) == self._name
        elif name == b"id":
            said = line[3:].removeprefix(b" ")
            self.last_id = said if len(said) <= MAX_ID_BYTES else b""
        elif name == b"retry" and (said := line[6:].strip()).isdigit() and len(said) < _MOST_DIGITS:
            self.retry_seconds = int(said) / 1000
