"""Converts HTTP responses of a server to failures of requests: refused, overloaded, not MCP, session unknown.

The carriers for streamable HTTP and HTTP+SSE use these functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

from gateway.errors import Busy, Forbidden, Malformed, NotSent, RequestFailure, SessionGone, Unauthorized
from gateway.wire.jsonrpc import decode_object

DEFAULT_RETRY_SECONDS = 1.0
"""Seconds for which a server that answered 429 or 503 gets no calls, if the response has no valid `Retry-After` header.

It is also the shortest wait that this header can request."""

MAX_RETRY_SECONDS = 300.0
"""Longest wait in seconds that a server can request with the header `Retry-After`. After the wait, one call tries the server again."""

NEVER_MISSING = frozenset({"initialize", "tools/list", "tools/call", "resources/read", "prompts/get", "subscriptions/listen"})
"""Methods that are sent only to servers that support them. HTTP status 404 for one of these requests, without a JSON-RPC error, is
therefore not read as "method not found"."""

CHECK_URL = "check the URL; MCP endpoints often end in /mcp or /sse"

DEFAULT_PORTS = {"http": 80, "https": 443}

MAX_SHOWN_URL = 200
"""Maximum characters of a redirect's URL in an error message."""


def refusal(server: str, status: int, retry_after: str) -> RequestFailure | None:
    """Return the failure of a request that the server refused to process: credentials (401, 403) or overload (429, 503); else `None`.

    `retry_after` is the value of the `Retry-After` header, or empty.
    """
    if status in (401, 403):
        fix = f"set its credentials under mcpServers.{server}.headers (\"Authorization\": \"Bearer ${{TOKEN}}\"), or policies.{server}.auth"
        return (Unauthorized if status == 401 else Forbidden)(f"Server {server!r} answered {status}; {fix}.", server=server)
    if status in (429, 503):
        seconds = _retry_after(retry_after)
        text = f"it answered {status} and accepts no requests for {seconds:g} s"
        return Busy(text, server=server, retry_after_seconds=seconds)
    return None


def post_failure(server: str, method: str, url: str, status: int, headers: Mapping[str, str]) -> RequestFailure | None:
    """Return the failure of a POST of `method` to `url` if the status and headers of the response alone show a failure, else `None`.

    The server refused the request, or answered with a redirect that is not followed, or its response to `initialize` is not MCP.
    """
    failure = refusal(server, status, headers.get("retry-after", ""))
    failure = failure or redirect_failure(server, method, url, status, headers.get("location", ""))
    if failure is not None or method != "initialize":
        return failure
    reason = _not_mcp(url, status, headers.get("content-type", "").partition(";")[0].strip().lower())
    return None if reason is None else NotSent(reason, server=server)


def _not_mcp(url: str, status: int, kind: str) -> str | None:
    if status == 421:
        fix = "have it accept this name (`server.http.allowedHosts` of a Moongate), or use a name that it accepts"
        return f"it does not accept the host name {urlsplit(url).netloc!r} (421); {fix}"
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
    """Return the error message for an HTTP status which means that there is no MCP endpoint at the URL."""
    return f"it answered {status}, so there is no MCP endpoint at this URL; {CHECK_URL}"


def redirect_failure(server: str, method: str, url: str, status: int, location: str) -> RequestFailure | None:
    """Return the failure of a request to `url` if its response is a redirect that the SDK does not follow, else `None`.

    After 307 and 308, the server has not processed the request (RFC 9110 §15.4.8). The MCP SDK follows these redirects if they stay at the
    server's origin. After another redirect, a call may have run.
    """
    if not 300 <= status < 400:  # not a redirect
        return None
    is_unprocessed, where = status in (307, 308), ""
    try:
        following = urljoin(url, location)
        parts = urlsplit(following)
        if location and is_unprocessed and stays_at_origin(url, following):
            return None
    except ValueError:
        pass  # the location is not a URL
    else:
        # Query and user name are left out, because they may contain secrets.
        where = f" to {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:MAX_SHOWN_URL] if location else ""
    text = f"it answered {status}, a redirect{where}, which is not followed; {CHECK_URL}"
    return (NotSent if is_unprocessed or method == "initialize" else Malformed)(text, server=server)


def stays_at_origin(url: str, following: str) -> bool:
    """Return whether a redirect from `url` to `following` stays at the server's origin (scheme, host, port) and adds no user name.

    A change from http to https on the default ports is allowed.

    Raises:
        ValueError: One of them is not a URL.
    """
    old, new = urlsplit(url), urlsplit(following)
    before, after = [(part.scheme, part.port or DEFAULT_PORTS.get(part.scheme)) for part in (old, new)]
    is_upgrade = before == ("http", 80) and after == ("https", 443)
    adds_user = new.netloc.rpartition("@")[0] not in ("", old.netloc.rpartition("@")[0])
    return old.hostname == new.hostname and not adds_user and (is_upgrade or before == after)


def is_session_gone(status: int, body: bytes) -> bool:
    """Return whether a response in an MCP 2025 session means that the server does not know the session and did not process the request.

    `status` and `body` are those of the HTTP response. The specification requires status 404, which is always read in this way.
    Many servers that use the TypeScript SDK send 400 with a text about the session id and without a request id. A 400 with a request id is
    the response to that request, whatever its text.

    Decided: after status 400, the text decides. Because: a firewall before the server sends 400 for unrelated reasons, which a caller can
    provoke, and a new session would end the server's state for all callers. Revisit when: such servers send 404.
    """
    if status != 400 or b"sessionid" not in body.lower().replace(b" ", b""):
        return status == 404
    message = decode_object(body)
    return not isinstance(message.get("id"), int) if message is not None else not body.lstrip().startswith(b"{")


def session_gone(server: str) -> SessionGone:
    """Return the failure of a request in a session that the server does not know any more."""
    return SessionGone(f"Server {server!r} no longer has the session of this connection.", server=server)


def _retry_after(value: str) -> float:
    """Parse a `Retry-After` header (a number of seconds or a date), and return the seconds to wait, within the limits of this module."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            seconds = DEFAULT_RETRY_SECONDS
    return min(max(seconds, DEFAULT_RETRY_SECONDS), MAX_RETRY_SECONDS) if math.isfinite(seconds) else DEFAULT_RETRY_SECONDS
