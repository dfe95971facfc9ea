"""`Head`: the head of an HTTP request, with facts of the gateway that are derived from it.

A connection reuses the object for its next request with the same head, so each fact is derived once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from gateway.wire.http1_messages import LENGTH, RequestHead

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.auth.api_keys import KeyInfo
    from gateway.server.envelopes import KnownClient


VARYING = frozenset({LENGTH, b"mcp-name", b"traceparent", b"tracestate", b"baggage", b"x-request-id"})
"""Header fields that may differ between requests with the same `Head` object: of its facts, only `length` and `named` depend on them."""

_MEDIA_TYPES = frozenset({b"application/json", b"text/event-stream"})


class Head(RequestHead):
    """The head of one HTTP request, or of several requests with the same head on one connection."""

    __slots__ = ("client", "has_accepted_origin", "is_plain", "key", "named")

    def __init__(self, facts: Scope) -> None:
        super().__init__(facts)
        self.has_accepted_origin = False
        """Whether `KeyGate` accepted Host and Origin, and found that the head delimits the body unambiguously."""
        self.key: KeyInfo | None = None
        """The API key in the head, after it was found to be valid. `KeyStore.holds` says whether it is still valid."""
        self.is_plain: bool | None = None
        """Whether the fast path may take the request; `None` if not derived yet."""
        self.client: KnownClient | None = None
        """The client that the last request with this head declared in its body."""
        self.named: str | None = None
        """Tool that the body of the last request with this head named; `None` if the `Mcp-Name` field has changed since then."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is an unlimited stream: the listening GET of 2025, or `subscriptions/listen` of 2026."""
        return self.fields.get(b"mcp-method") == b"subscriptions/listen" or super().is_stream

    @property
    def is_json_post(self) -> bool:
        """Whether the request sends JSON of known length, and its client accepts JSON and event streams."""
        fields = self.fields
        if self.method != "POST" or self.length < 0 or b"transfer-encoding" in fields:
            return False
        return fields.get(b"content-type", b"").lower().startswith(b"application/json") and self.accepted >= _MEDIA_TYPES

    @property
    def accepted(self) -> set[bytes]:
        """The media types in the `Accept` header, without parameters."""
        return {kind.partition(b";")[0].strip().lower() for kind in self.fields.get(b"accept", b"").split(b",")}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a copy of the head for a request that differs only in `values` of `VARYING` fields and in the length of its body.

        The facts that do not depend on these fields are copied.
        """
        other = super().with_values(values, length)
        other.has_accepted_origin, other.key, other.is_plain = self.has_accepted_origin, self.key, self.is_plain
        other.client, other.named = self.client, None
        return other
