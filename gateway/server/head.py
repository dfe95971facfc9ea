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
"""Fields on which no cached fact depends, except `length` and `named`."""


class Head(RequestHead):
    """The head of one request, or of several equal requests on one connection."""

    __slots__ = ("client", "has_place", "is_plain", "key", "named")

    def __init__(self, facts: Scope) -> None:
        super().__init__(facts)
        self.has_place = False
        """Whether Host and Origin were accepted and the framing is unambiguous (`KeyGate`)."""
        self.key: KeyInfo | None = None
        """The API key of the credentials. `KeyStore.holds` says whether it is still valid."""
        self.is_plain: bool | None = None
        """Whether the fast path may take the request; `None` if not derived yet."""
        self.client: KnownClient | None = None
        """The client that the last request with this head declared in its body."""
        self.named: str | None = None
        """Tool that the body of that request named; `None` if `mcp-name` may name another one."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is an unlimited stream: the listening GET of 2025, or `subscriptions/listen` of 2026."""
        return self.fields.get(b"mcp-method") == b"subscriptions/listen" or super().is_stream

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """As `RequestHead.with_values`, for values of `VARYING` fields."""
        other = super().with_values(values, length)
        other.has_place, other.key, other.is_plain = self.has_place, self.key, self.is_plain
        other.client, other.named = self.client, None
        return other
