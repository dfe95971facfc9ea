"""`Head`: what an HTTP request says before its body, and what was found out about that on the way to its answer.

A connection gives the same one to its next request that says the same, so that what follows from a head alone is found out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.tools.repeat import LENGTH

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.auth.keys import KeyInfo
    from gateway.server.envelopes import Introduced


MAX_DIGITS = 11
"""Of the length of a body; a longer number is not read."""

VARYING = frozenset({LENGTH, b"mcp-name", b"traceparent", b"tracestate", b"baggage", b"x-request-id"})
"""Fields on whose values nothing hangs that is remembered of a head, but for its `length` and whom it has `named`."""


SURPLUS_SCOPE_KEY = "moongate.surplus"
"""ASGI scope key of a request on a connection that is one too many: only health checks and administrators are served there."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a head says of its caller, before the body has come."""

    owner: str | None
    """The id of the principal; `None` while only the address counts."""
    is_local: bool
    """Whether all callers are this one, the local user."""
    waits: bool
    """Whether nothing begins before the body is whole, if it is short."""


class Head:
    """Of one request, or of many on one connection."""

    __slots__ = ("_facts", "fields", "has_place", "introduced", "is_plain", "is_single", "key", "length", "method", "named", "path")

    def __init__(self, facts: Scope) -> None:
        """`facts` is the ASGI scope of such a request, for nobody to change (`scope`)."""
        headers: list[tuple[bytes, bytes]] = facts["headers"]
        self._facts = facts
        self.method: str = facts["method"]
        self.path: str = facts["path"]
        self.fields = dict(headers)
        """By name, the last of each."""
        self.is_single = len(self.fields) == len(headers)
        """No field is there twice."""
        length = self.fields.get(LENGTH, b"")
        self.length = int(length) if length.isdigit() and len(length) <= MAX_DIGITS else -1
        """Of the body; -1 where it is not told, or beyond all measure."""
        self.has_place = False
        """Host and Origin were accepted, and the length can be read in one way (`KeyGate`)."""
        self.key: KeyInfo | None = None
        """What its credentials opened last: still to be asked for (`KeyStore.holds`)."""
        self.is_plain: bool | None = None
        """The direct path may take it; `None`: not found out yet."""
        self.introduced: Introduced | None = None
        """What the last body that agreed with this head said of its client."""
        self.named: str | None = None
        """The tool that body named; `None` where the field may say another."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream without an end of its own: the listening GET of 2025, `subscriptions/listen` of 2026."""
        fields = self.fields
        if fields.get(b"mcp-method") == b"subscriptions/listen":
            return True
        return self.method == "GET" and b"text/event-stream" in fields.get(b"accept", b"")

    @property
    def version(self) -> str:
        """Of HTTP."""
        return self._facts["http_version"]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All fields, as they came; a new list."""
        return [*self.fields.items()] if self.is_single else [*self._facts["headers"]]

    def scope(self) -> Scope:
        """The ASGI scope of one request."""
        return {**self._facts, "headers": self.headers, "state": self._facts["state"].copy()}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Head:
        """Of a request that says the same, but for these fields, of those that vary; no field of this one is there twice."""
        other = object.__new__(Head)
        other._facts, other.method, other.path, other.is_single = self._facts, self.method, self.path, True
        other.fields, other.length = {**self.fields, **values}, length
        other.has_place, other.key, other.is_plain = self.has_place, self.key, self.is_plain
        other.introduced, other.named = self.introduced, None
        return other
