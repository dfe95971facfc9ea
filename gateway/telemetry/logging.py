"""The log: one line per event on stderr, with control characters escaped and registered secrets masked.

stdout is never used, because it carries the MCP messages of the stdio transport. The command line configures the log once; all other
modules only call `logging.getLogger(__name__)`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TextIO
from urllib.parse import quote

from gateway.telemetry.secret_forms import MASK, mask_forms

LogLevelName = Literal["debug", "info", "warning", "error"]

MIN_SECRET_LENGTH = 6
"""Minimum length of a secret that is masked, in characters. Masking `true` or `8080` would hide ordinary text and protect nothing."""


class SecretMask:
    """Masks registered secrets, and text that looks like a password or token. Each gateway has one `SecretMask`."""

    def __init__(self) -> None:
        """Start without registered secrets."""
        self._values: tuple[str, ...] = ()

    def register_secret(self, value: str) -> None:
        """Mask `value` from now on, also in its URL-encoded and JSON-escaped forms. Short values are ignored."""
        if len(value) < MIN_SECRET_LENGTH:
            return
        spellings = {value, quote(value, safe=""), quote(value), json.dumps(value)[1:-1], repr(value)[1:-1]}
        self._values = tuple(sorted({*self._values, *spellings}, key=lambda v: (-len(v), v)))

    def mask(self, text: str) -> str:
        """Return `text` with every registered secret, and everything that has the form of a secret, replaced."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        return mask_forms(text)


_HIDDEN = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *(0x61C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
"""Control characters, line separators and text-direction marks, which could forge or hide a line in a terminal."""

_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _HIDDEN} | {9: "\\t", 10: "\\n", 13: "\\r"}


def escape_controls(text: str) -> str:
    """Return `text` on one line, with characters that could forge a line or control a terminal escaped."""
    return text.translate(_ESCAPES)


class _LineFormatter(logging.Formatter):
    """Formats each log record, with its traceback, as one line: `2026-01-31T12:00:00.123Z WARNING gateway.upstream.source message`."""

    def __init__(self, mask: SecretMask) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._mask = mask

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the record's UTC time with milliseconds."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line.

        Secrets are masked before control characters are escaped, so that a secret with a line break is found.
        """
        return escape_controls(self._mask.mask(super().format(record)))


def configure_logging(level: LogLevelName, *, mask: SecretMask | None = None, stream: TextIO | None = None) -> None:
    """Write log lines from `level` up to stderr (or `stream`). A second call replaces the first configuration.

    Other libraries log only from WARNING up (from ERROR if `level` is `error`), because some log request headers at DEBUG. The log of the
    MCP SDK's HTTP client is off, because it contains servers' responses; `gateway.upstream` reports the client's errors.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, _LineFormatter):
            root.removeHandler(handler)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_LineFormatter(mask or SecretMask()))
    root.addHandler(handler)
    root.setLevel(logging.ERROR if level == "error" else logging.WARNING)
    logging.getLogger("gateway").setLevel(level.upper())
    logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)
    logging.captureWarnings(capture=True)
