"""`Principal`: who is calling. Plain data; made by the transports, read by everything below them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.policy.scopes import is_admin


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
"""The user who started the gateway: every caller over stdio, every caller of a gateway without keys, and the command line."""


def is_operator(principal: Principal) -> bool:
    """Whether this principal may decide for others: the local user, or a key with the scope `admin`.

    Pass the caller as it came in (`CallContext.on_behalf_of`): behind the gate a principal has no scopes.
    """
    return principal.id == LOCAL.id or is_admin(principal)
