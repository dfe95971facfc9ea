"""Payloads of the benchmarks: generated texts and images, and complete `tools/call` messages."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

PROTOCOL = "2026-07-28"
LEGACY = "2025-06-18"
"""Protocol version of all 2025 sessions. Contenders on older SDKs do not support a later version."""

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
"""The `_meta` member of every 2026 request."""

FIRST_NUMBER = 1_000_000_000
"""First request id. All ids have ten digits, so all messages of a load have the same length."""

_NUMBER = "1000000000"
_LINE = 'The quick brown fox said "hello" to the lazy dog, and went on its way.\n'


def prose(size: int) -> str:
    """Return `size` characters of plain text in lines, like the text of files and web pages."""
    return (_LINE * (size // len(_LINE) + 1))[:size]


def image(size: int) -> str:
    """Return `size` characters of base64 of random bytes, like the image data of a result. Its JSON contains no escapes."""
    return base64.b64encode(random.Random(1).randbytes(size * 3 // 4 + 3)).decode()[:size]


class Call:
    """A `tools/call` message that is built once and sent with different ids.

    The argument `text` has `size` characters, which the upstream returns. With `result`, the upstream also generates `result` characters of
    prose, or with `is_image` an image of that size instead of all text.
    """

    def __init__(self, era: str, tool: str, size: int, result: int = 0, *, is_image: bool = False) -> None:
        self.least = max(size, result)
        """Minimum length of a correct response in bytes."""
        arguments: dict[str, Any] = {"text": _NUMBER + prose(size - len(_NUMBER))} | ({"size": result} if result else {})
        arguments |= {"format": "image"} if is_image else {}
        params: dict[str, Any] = {"name": tool, "arguments": arguments} | ({"_meta": META} if era == "modern" else {})
        whole = json.dumps({"jsonrpc": "2.0", "id": int(_NUMBER), "method": "tools/call", "params": params}).encode()
        self._before, self._between, self._after = whole.split(_NUMBER.encode())
        self.length = len(whole)

    def message(self, number: int) -> bytes:
        """Return the message with this id; the text of the call starts with the id too."""
        digits = b"%d" % number
        return b"".join((self._before, digits, self._between, digits, self._after))
