"""Functions for request heads, used by `http1_server`: build parts of the ASGI scope, check the framing, remove an offer to upgrade."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

Headers = list[tuple[bytes, bytes]]


def target_of(url: bytes, root: str) -> tuple[dict[str, Any], bytes | None]:
    """Return the ASGI scope entries for path and query of a request target, and host and port if it is a whole URL (RFC 9112, 3.2).

    The second value is `None` for any other target. `root` is the path prefix under which the application is mounted.

    Raises:
        httptools.HttpParserError: The target is not a URL.
    """
    raw_path, _, query = url.partition(b"?")
    authority: bytes | None = None
    if not raw_path.startswith(b"/"):
        parts: Any = httptools.parse_url(url)  # httptools' types do not say which parts may be missing
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


def base_scope(transport: asyncio.Transport, root: str) -> dict[str, Any]:
    """Return the ASGI scope entries that are equal in all requests of a connection. `root` is the application's path prefix."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "root_path": root,
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "https" if is_ssl(transport) else "http",
    }


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the bytes of a request head without its offer to upgrade the protocol.

    A `Connection` field that contains `close` is unchanged; the value of any other `Connection` field becomes `keep-alive`.
    """
    kept = [(name, value) for name, value in headers if name not in (b"upgrade", b"http2-settings")]
    kept = [(name, b"keep-alive" if name == b"connection" and b"close" not in value.lower() else value) for name, value in kept]
    return b"\r\n".join([b"%s %s HTTP/%s" % (method, url, version.encode()), *(b"%s: %s" % field for field in kept), b"\r\n"])


def check_framing(version: str, fields: Mapping[bytes, bytes], headers: Headers) -> None:
    """Raise `ValueError` if a request head has an unsupported HTTP version or transfer coding, or a repeated `Host`.

    In HTTP/1.1, a missing `Host` is an error, too.
    """
    hosts = b"host" in fields if len(fields) == len(headers) else [name for name, _ in headers].count(b"host")
    if version not in ("1.1", "1.0") or hosts > 1 or (version == "1.1" and not hosts):
        raise ValueError("version or host")
    if b"transfer-encoding" in fields and [value.lower() for name, value in headers if name == b"transfer-encoding"] != [b"chunked"]:
        raise ValueError("unsupported transfer coding")
