"""What stands in for a server's answer where there is none: the JSON-RPC codes of our own, and the words that go with them.

Whatever carries a request (the short cuts, the SDK's transport) says so in the same way, and `session` translates.
"""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

from gateway.errors import UpstreamLost
from gateway.protocol import PARSE_ERROR, RpcError

NOT_SENT = -31001
"""JSON-RPC code of our own stand-in answer: the request never reached the server."""

LOST = -31002
"""JSON-RPC code of our own stand-in answer: the connection broke after the request went out."""

UNAUTHORIZED = -31003
"""JSON-RPC code of our own stand-in answer: the server wants (other) credentials."""

FORBIDDEN = -31004
"""JSON-RPC code of our own stand-in answer: the credentials do not suffice for this request."""

SESSION_GONE = -31010
"""JSON-RPC code of our own stand-in answer: the server does not know the session, so it did not take the request."""

BUSY = -31011
"""JSON-RPC code of our own stand-in answer: the server turned the request away (429, 503); `data` is the seconds to wait."""

TOO_LARGE = -31012
"""JSON-RPC code of our own stand-in answer: the server answered, with more than is taken."""

NOT_MCP = -31013
"""JSON-RPC code of our own stand-in answer: whatever answers `initialize` at the URL does not speak MCP."""

DEFAULT_RETRY_SECONDS = 1.0
"""Wait after 429 or 503 without a usable `Retry-After`."""

MAX_RETRY_SECONDS = 300.0
"""Longest wait a server may ask for; after it one call tries again."""


ACKNOWLEDGE_SECONDS = 5.0
"""Time for a 2025 server to take what has no answer: a notification, an answer of ours, the end of a session. The SDK sends those one
after the other and everything else after them, so one that is never taken would hold up every call of the session."""

MAX_MESSAGE_BYTES = 67_108_864
"""One message from a server: larger lines, events and bodies are cut off (64 MiB)."""

MAX_IN_PASSING = 64
"""Cancellations and answers of ours on their way to one server, for which nothing waits; further ones wait for each other."""

RESUME_ATTEMPTS = 4
"""Of a stream that is taken up again (`Last-Event-ID`), which may be one call's."""

NO_SESSION = "the server no longer knows our session"

CHECK_URL = "check the URL; MCP endpoints often end in /mcp or /sse"

MAX_SHOWN_URL = 200
"""Characters of another program's URL in an error text."""


class TooLarge(UpstreamLost):
    """The body of an answer is larger than is taken."""


class Crowded(UpstreamLost):
    """A large answer was not read, because too many others were being worked on."""


def crowded(seconds: float) -> str:
    """The error text for `Crowded`."""
    return (
        f"the answer is large and waited {seconds:g} s for other large answers to be done; the call may have run. "
        "Ask for less of it, try later, or have the operator raise `server.largeResultBytes`"
    )


def turned_away(server: str, status: int, retry_after: str) -> RpcError | None:
    """What stands in for an answer to a request that was not taken: for want of credentials, or because there are too many."""
    if status in (401, 403):
        fix = f"set or fix its credentials under `headers`, or `policies.{server}.auth`"
        return RpcError(UNAUTHORIZED if status == 401 else FORBIDDEN, f"Server {server!r} answered {status}; {fix}.")
    if status in (429, 503):
        seconds = _retry_after(retry_after)
        return RpcError(BUSY, f"it answered {status} and wants to be left alone for {seconds:g} s", seconds)
    return None


def not_mcp(url: str, status: int, content_type: str, location: str) -> RpcError | None:
    """Return what stands in for an HTTP answer to `initialize` that is not MCP, by its status and the headers of these names."""
    kind = content_type.partition(";")[0].strip().lower()
    if status == 421:
        fix = "have it accept this name (`server.http.allowedHosts` of a Moongate), or use a name that it accepts"
        return RpcError(NOT_MCP, f"it does not accept the host name {urlsplit(url).netloc!r} (421); {fix}")
    if 300 <= status < 400:
        return _redirected(url, status, location)
    if kind in ("application/json", "text/event-stream"):
        return None
    if kind == "text/html":
        return RpcError(NOT_MCP, f"it answered {status} with an HTML page, which is not MCP; {CHECK_URL}")
    if status in (404, 405, 410):
        return RpcError(NOT_MCP, no_endpoint(status))
    if status in (200, 201):
        return RpcError(NOT_MCP, f"it answered with {kind or 'no content type'}, which is not MCP; {CHECK_URL}")
    return None


def no_endpoint(status: int) -> str:
    """Return the error text for a status that says that there is no MCP endpoint."""
    return f"it answered {status}, so there is no MCP endpoint at this URL; {CHECK_URL}"


def connect_problem(error: Exception) -> str:
    """Return the first line of the text of an error that kept a connection from being made, in plain words where OpenSSL's are not."""
    text = str(error).strip()
    if "WRONG_VERSION_NUMBER" in text:
        return "it does not speak TLS; if it is reached without TLS, write http:// instead of https://"
    return text.splitlines()[0][:200] if text else type(error).__name__


def _redirected(url: str, status: int, location: str) -> RpcError | None:
    """Return what stands in for a redirect, or `None` if the SDK follows it: with the same method, and within the origin."""
    where = ""
    try:
        asked, parts = urlsplit(url), urlsplit(urljoin(url, location))
    except ValueError:
        pass  # not a URL
    else:
        if location and status in (307, 308) and asked.hostname == parts.hostname and asked.port == parts.port:
            return None
        # The query may hold a secret, and so may the part before the host name.
        where = f" to {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:MAX_SHOWN_URL] if location else ""
    return RpcError(NOT_MCP, f"it answered {status}, a redirect{where}, which is not followed; {CHECK_URL}")


def is_session_gone(status: int, body: bytes) -> bool:
    """Whether an answer within a 2025 session says that it was not taken, as the session is unknown."""
    return status == 404 or (status == 400 and b"sessionid" in body.lower().replace(b" ", b""))  # as servers of the TypeScript SDK say


def no_answer() -> RpcError:
    """What stands in for a message that is no answer to the request, in the words of the SDK's transport for what is no message at all."""
    return RpcError(PARSE_ERROR, "Failed to parse JSON response: it answers no request of ours")


def too_large(limit: int) -> str:
    """What is said of an answer over `limit` bytes."""
    return f"the answer is larger than {limit} bytes, which is more than is taken; ask for less of it"


def _retry_after(value: str) -> float:
    """Seconds to wait by a `Retry-After` header, which is a number or a date."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            seconds = DEFAULT_RETRY_SECONDS
    return min(max(seconds, DEFAULT_RETRY_SECONDS), MAX_RETRY_SECONDS) if math.isfinite(seconds) else DEFAULT_RETRY_SECONDS
