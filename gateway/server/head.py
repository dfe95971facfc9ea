"""`Head`: what an HTTP request says before its body, and what was found out about that on the way to its answer.

A connection gives the same one to its next request that says the same, so that what follows from a head alone is found out once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.server.envelopes import Introduced


MAX_DIGITS = 11
"""Of the length of a body; a longer number is not read."""


class Head:
    """Of one request, or of many on one connection."""

    __slots__ = ("facts", "fields", "has_place", "introduced", "is_plain", "is_single", "length", "method", "path")

    def __init__(self, facts: Scope) -> None:
        """`facts` is the ASGI scope of such a request, for nobody to change (`scope`)."""
        headers: list[tuple[bytes, bytes]] = facts["headers"]
        self.facts = facts
        self.method: str = facts["method"]
        self.path: str = facts["path"]
        self.fields = dict(headers)
        """By name, the last of each."""
        self.is_single = len(self.fields) == len(headers)
        """No field is there twice."""
        length = self.fields.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() and len(length) <= MAX_DIGITS else -1
        """Of the body; -1 where it is not told, or beyond all measure."""
        self.has_place = False
        """Host and Origin were accepted, and the length can be read in one way (`KeyGate`)."""
        self.is_plain: bool | None = None
        """The direct path may take it; `None`: not found out yet."""
        self.introduced: Introduced | None = None
        """What the last body that agreed with this head said of its client."""

    def scope(self) -> Scope:
        """The ASGI scope of one request."""
        facts = self.facts
        return {**facts, "headers": [*facts["headers"]], "state": facts["state"].copy()}

    def of_length(self, length: bytes) -> Head:
        """Of a request that says the same, but for the length of its body; both are such that `is_plain` does not hang on the length."""
        headers: list[tuple[bytes, bytes]] = self.facts["headers"]
        other = Head({**self.facts, "headers": [(name, length if name == b"content-length" else value) for name, value in headers]})
        other.has_place, other.is_plain, other.introduced = self.has_place, self.is_plain, self.introduced
        return other
