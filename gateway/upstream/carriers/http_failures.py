"""The failures that HTTP responses stand for: refused, overloaded, not MCP, session unknown. Used by the HTTP and SSE carriers."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

from gateway.errors import Busy, Forbidden, NotSent, RequestFailure, SessionGone, Unauthorized
from gateway.wire.jsonrpc import decode_object

DEFAULT_RETRY_SECONDS = 1.0
"""Wait after a 429 or 503 response without a usable `Retry-After`."""

MAX_RETRY_SECONDS = 300.0
"""Longest wait that a server may request; after it, one call tries the server again."""

NEVER_MISSING = frozenset({"initialize", "tools/list", "tools/call", "resources/read", "prompts/get", "subscriptions/listen"})
"""Methods for which a 404 without a JSON-RPC error cannot mean "method not found", because they are only sent to servers that have them."""

CHECK_URL = "check the URL; MCP endpoints often end in /mcp or /sse"

MAX_SHOWN_URL = 200
"""Maximum characters of a URL from a server that an error text shows."""


def refusal(server: str, status: int, retry_after: str) -> RequestFailure | None:
    """Return the failure of a request that the server did not process: missing credentials (401, 403) or overload (429, 503)."""
    if status in (401, 403):
        fix = f"set or fix its credentials under `headers`, or `policies.{server}.auth`"
        return (Unauthorized if status == 401 else Forbidden)(f"Server {server!r} answered {status}; {fix}.", server=server)
    if status in (429, 503):
        seconds = _retry_after(retry_after)
        text = f"it answered {status} and wants to be left alone for {seconds:g} s"
        return Busy(text, server=server, retry_after_seconds=seconds)
    return None


def not_mcp(server: str, url: str, status: int, content_type: str, location: str) -> NotSent | None:
    """Return the failure for a response to `initialize` that is not MCP, judged by its status, `Content-Type` and `Location`."""
    reason = _not_mcp(url, status, content_type.partition(";")[0].strip().lower(), location)
    return None if reason is None else NotSent(reason, server=server)


def _not_mcp(url: str, status: int, kind: str, location: str) -> str | None:
    if status == 421:
        fix = "have it accept this name (`server.http.allowedHosts` of a Moongate), or use a name that it accepts"
        return f"it does not accept the host name {urlsplit(url).netloc!r} (421); {fix}"
    if 300 <= status < 400:
        return _not_followed(url, status, location)
    if kind in ("application/json", "text/event-stream"):
        return None
    if kind == "text/html":
        return f"it answered {status} with an HTML page, which is not MCP; {CHECK_URL}"
    if status in (404, 405, 410):
        return no_endpoint(status)
    if status in (200, 201):
        return f"it answered with {kind or 'no content type'}, which is not MCP; {CHECK_URL}"
    return None


def no_endpoint(status: int) -> str:
    """Return the error text for a status that means that there is no MCP endpoint at the URL."""
    return f"it answered {status}, so there is no MCP endpoint at this URL; {CHECK_URL}"


def _not_followed(url: str, status: int, location: str) -> str | None:
    """Return the error text for a redirect, or `None` if the SDK follows it: same method, within the server's origin."""
    where = ""
    try:
        asked, parts = urlsplit(url), urlsplit(urljoin(url, location))
    except ValueError:
        pass  # the location is not a URL
    else:
        if location and status in (307, 308) and asked.hostname == parts.hostname and asked.port == parts.port:
            return None
        # The query may hold a secret, and so may the part before the host name.
        where = f" to {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:MAX_SHOWN_URL] if location else ""
    return f"it answered {status}, a redirect{where}, which is not followed; {CHECK_URL}"


def is_session_gone(status: int, body: bytes) -> bool:
    """Return whether a response within a 2025 session means that the server does not know the session and dropped the request.

    Servers of the TypeScript SDK send 400, a text about the session id, and no id of a request. An error with the id of a request is the
    server's answer to that request, whatever its text.
    """
    if status != 400 or b"sessionid" not in body.lower().replace(b" ", b""):
        return status == 404
    message = decode_object(body)
    return not isinstance(message.get("id"), int) if message is not None else not body.lstrip().startswith(b"{")


def session_gone(server: str) -> SessionGone:
    """Return the failure of a request whose session the server has ended."""
    return SessionGone(f"Server {server!r} no longer knows our session.", server=server)


def _retry_after(value: str) -> float:
    """Return the seconds to wait by a `Retry-After` header, which holds a number or a date."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            seconds = DEFAULT_RETRY_SECONDS
    return min(max(seconds, DEFAULT_RETRY_SECONDS), MAX_RETRY_SECONDS) if math.isfinite(seconds) else DEFAULT_RETRY_SECONDS
