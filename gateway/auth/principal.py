"""`Principal`: who is calling. Plain data; made by the transports, read by everything below them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Two callers are the same exactly when `id` is equal."""

    id: str
    """Stable and unique, e.g. `local` or `key:ab12cd`. Never a secret."""
    name: str = ""
    """For people; never used to decide anything."""
    scopes: tuple[str, ...] | None = field(default=None, compare=False)
    """What this caller may use (`policy.scopes`); `None`: everything."""

    def unscoped(self) -> Principal:
        """The same caller inside something that it was let into."""
        return self if self.scopes is None else replace(self, scopes=None)


LOCAL = Principal("local", "local user")
"""Whoever reaches a gateway without keys over loopback or stdio: the user who started it."""
