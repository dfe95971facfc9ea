"""`Head`: the request line and headers of an HTTP request, with facts that the gateway derives from them.

If the next request on a connection has the same head, the connection uses the same object again. So each fact is derived only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from gateway.server.event_ids import is_of_request
from gateway.wire.http1_messages import LENGTH, RequestHead

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.auth.access_tokens import KnownToken
    from gateway.auth.api_keys import KeyInfo
    from gateway.server.envelopes import KnownClient


VARYING = frozenset({LENGTH, b"mcp-name", b"traceparent", b"tracestate", b"baggage", b"x-request-id"})
"""Names of header fields that are ignored when the head of a request is compared with the previous head on its connection.

If all other fields are equal, facts that were derived from the previous head are used again. Of the facts of a `Head`, only `length` and
`named` depend on the fields listed here.
"""

_MEDIA_TYPES = frozenset({b"application/json", b"text/event-stream"})


class Head(RequestHead):
    """The request line and headers of an HTTP request, or of several requests with the same head on one connection.

    The attributes cache facts that the gateway derives from the head.
    """

    __slots__ = ("client", "has_accepted_origin", "is_plain", "key", "named", "token")

    def __init__(self, facts: Scope) -> None:
        super().__init__(facts)
        self.has_accepted_origin = False
        """Whether the Host and Origin headers were accepted, and the length of the body is unambiguous. Set by `KeyGate`."""
        self.key: KeyInfo | None = None
        """The API key in the head, if it was valid at the first request. `ApiKeys.holds` returns whether it still is."""
        self.token: KnownToken | None = None
        """The access token in the head, if it was valid at the first request. `KnownToken.is_usable` returns whether it still is."""
        self.is_plain: bool | None = None
        """Whether the fast path (without the MCP SDK) may serve requests with this head; `None` if this was not decided yet."""
        self.client: KnownClient | None = None
        """The client that the body of the last request with this head declared; `None` if there was no such request."""
        self.named: str | None = None
        """Name of the tool in the body of the last request with this head; `None` if the `Mcp-Name` header has changed since then."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is an unlimited stream: the listening GET of 2025, or `subscriptions/listen` of 2026."""
        return self.fields.get(b"mcp-method") == b"subscriptions/listen" or super().is_stream

    @property
    def is_endless(self) -> bool:
        """Whether only the client ends the response. False for a GET that resumes the response to a request: it ends with the request."""
        return self.is_stream and not is_of_request(self.last_event_id)

    @property
    def is_json_post(self) -> bool:
        """Whether this is a POST with a JSON body of known length, whose client accepts both JSON and `text/event-stream` responses."""
        fields = self.fields
        if self.method != "POST" or self.length < 0 or b"transfer-encoding" in fields:
            return False
        return fields.get(b"content-type", b"").lower().startswith(b"application/json") and self.accepted >= _MEDIA_TYPES

    @property
    def session_id(self) -> str:
        """The `Mcp-Session-Id` of the request; empty if it has none."""
        return self.fields.get(b"mcp-session-id", b"").decode("latin-1")

    @property
    def last_event_id(self) -> str:
        """The `Last-Event-ID` of the request; empty if it has none."""
        return self.fields.get(b"last-event-id", b"").decode("latin-1")

    @property
    def accepted(self) -> set[bytes]:
        """The media types in the `Accept` header, without parameters."""
        return {kind.partition(b";")[0].strip().lower() for kind in self.fields.get(b"accept", b"").split(b",")}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a copy of the head for a request that differs only in some `VARYING` header fields and in the length of its body.

        `values` are the new values of these header fields. The copy has the same derived facts, except facts that depend on these fields.
        """
        other = super().with_values(values, length)
        other.has_accepted_origin, other.key, other.is_plain = self.has_accepted_origin, self.key, self.is_plain
        other.client, other.named, other.token = self.client, None, self.token
        return other
