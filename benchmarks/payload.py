"""What is sent through the contenders: texts, and whole `tools/call` messages."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

PROTOCOL = "2026-07-28"
LEGACY = "2025-06-18"
"""Spoken with every contender of the handshake era; those on older SDKs know no later one."""

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
"""Of every 2026 request."""

FIRST_NUMBER = 1_000_000_000
"""Ids begin here, so that all have as many digits."""

_NUMBER = "1000000000"
_LINE = 'The quick brown fox said "hello" to the lazy dog, and went on its way.\n'


def prose(size: int) -> str:
    """So many characters of plain text in lines, as files and pages have."""
    return (_LINE * (size // len(_LINE) + 1))[:size]


def image(size: int) -> str:
    """So many characters of an image as results have them, in base64: no escapes in its JSON."""
    return base64.b64encode(random.Random(1).randbytes(size * 3 // 4 + 3)).decode()[:size]


class Call:
    """One kind of `tools/call`: `size` characters go there and come back, or with `result` so many only come back."""

    def __init__(self, era: str, tool: str, size: int, result: int = 0, *, is_image: bool = False) -> None:
        self.least = max(size, result)
        """Bytes that an answer has at least."""
        arguments: dict[str, Any] = {"text": _NUMBER + prose(size - len(_NUMBER))} | ({"size": result} if result else {})
        arguments |= {"format": "image"} if is_image else {}
        params: dict[str, Any] = {"name": tool, "arguments": arguments} | ({"_meta": META} if era == "modern" else {})
        whole = json.dumps({"jsonrpc": "2.0", "id": int(_NUMBER), "method": "tools/call", "params": params}).encode()
        self._before, self._between, self._after = whole.split(_NUMBER.encode())
        self.length = len(whole)

    def message(self, number: int) -> bytes:
        """The one with this id, which is also in its text."""
        digits = b"%d" % number
        return b"".join((self._before, digits, self._between, digits, self._after))
