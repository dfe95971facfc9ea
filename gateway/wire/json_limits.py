"""Limits on the structure of JSON text, enforced before the text is parsed. Used by the server for messages of clients.

Each member of an object and each element of a list costs microseconds on the event loop (in the SDK's pydantic models, copies of the
message, and policy rules), so their number is limited.
"""

from __future__ import annotations

import codecs

MAX_PARTS = 50_000
"""Maximum number of parts (object members, objects and lists) of one message. Processing this many takes about 50 ms with the MCP SDK."""

MAX_VALUES = 100_000
"""Maximum number of values (object members and list elements) in one message. Processing this many numbers takes about 50 ms."""

WINDOW_BYTES = 65_536
"""Number of bytes of JSON text that `PartCounter` examines between two checks of the limits, in less than a millisecond."""

_OTHER = bytes(code for code in range(256) if code not in b'":{[,')


def has_too_many_parts(data: bytes) -> bool:
    """Return whether JSON text has more than `MAX_PARTS` members, objects and lists, or more than `MAX_VALUES` members and elements.

    Members and elements are counted by the commas between them, so a text with many objects or lists may have more of them than
    `MAX_VALUES`. A text of at most `MAX_PARTS` bytes needs only a comparison of its length.
    """
    if len(data) <= MAX_PARTS or (structure_of(data) <= MAX_PARTS and data.count(b",") < MAX_VALUES):
        return False
    counted = PartCounter()
    counted.feed(data)
    return counted.is_over


def structure_of(data: bytes) -> int:
    """Return an upper bound for the number of members, objects and lists in JSON text: it counts `:`, `{` and `[`, also inside strings."""
    return data.count(b":") + data.count(b"{") + data.count(b"[")


class PartCounter:
    """Counts the parts (object members, objects, lists) of JSON text that arrives in pieces, and its values (members, list elements).

    Values are counted by the commas between them.
    """

    __slots__ = ("_is_escaped", "_is_inside", "parts", "values")

    def __init__(self) -> None:
        self.parts = self.values = 0
        self._is_escaped = self._is_inside = False
        """Whether the last piece ended with a backslash that escapes the next character, and whether it ended inside a string."""

    @property
    def is_over(self) -> bool:
        """Whether a limit is exceeded: `MAX_PARTS` by object members, objects and lists, or `MAX_VALUES` by members and list elements."""
        return self.parts > MAX_PARTS or self.values >= MAX_VALUES

    def feed(self, data: bytes) -> None:
        """Count the next piece of the text. Counting stops when a limit is exceeded."""
        for start in range(0, len(data), WINDOW_BYTES):
            if self.is_over:
                return
            self._count(data[start : start + WINDOW_BYTES])

    def _count(self, piece: bytes) -> None:
        if self._is_escaped:
            piece = piece[1:]
        self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        unescaped = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        bare = unescaped.translate(None, _OTHER).replace(b'""', b"")  # each quote left opens or closes a string
        between = bare.split(b'"')
        outside = b"".join(between[1::2] if self._is_inside else between[::2])
        if len(between) % 2 == 0:
            self._is_inside = not self._is_inside
        self.parts += structure_of(outside)
        self.values += outside.count(b",")


def is_utf8_text(data: bytes) -> bool:
    """Return whether `data` is UTF-8 without a byte order mark and without NUL bytes, which occur in every UTF-16 message."""
    if data.startswith(codecs.BOM_UTF8) or b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
