"""What an ASGI scope says of a request's target (RFC 9112, 3.2)."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import httptools


def target_of(url: bytes, root: str) -> tuple[dict[str, Any], bytes | None]:
    """Path and query for the scope, and the host if the target names one (a proxy's form). Raises `httptools.HttpParserError`."""
    raw_path, _, query = url.partition(b"?")
    authority: bytes | None = None
    if not raw_path.startswith(b"/"):
        parts: Any = httptools.parse_url(url)  # its own types do not say what may be missing
        if parts.host is not None:
            shown = b"[%s]" % parts.host if b":" in parts.host else parts.host
            authority = shown if parts.port is None else b"%s:%d" % (shown, parts.port)
        raw_path = parts.path or (raw_path if parts.host is None else b"/")
    path = raw_path.decode("ascii")
    target = {
        "path": root + (unquote(path) if "%" in path else path),
        "raw_path": root.encode("ascii") + raw_path,
        "query_string": query,
    }
    return target, authority
