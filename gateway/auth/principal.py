"""`Principal`: the authenticated caller. Plain data; transports create it, and the packages below them read it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.policy.scopes import is_admin


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Two principals are the same caller if and only if their `id` is equal."""

    id: str
    """Stable and unique, e.g. `local` or `key:ab12cd`. Never a secret."""
    name: str = ""
    """Name for people; never used for decisions."""
    scopes: tuple[str, ...] | None = field(default=None, compare=False)
    """Scopes of the caller's key (`policy.scopes`); `None` for everything."""

    def unscoped(self) -> Principal:
        """Return the caller without scopes, for calls inside a tool that the caller was allowed to use."""
        return self if self.scopes is None else replace(self, scopes=None)


LOCAL = Principal("local", "local user")
"""The local user, who starts the gateway: the caller over stdio, of a gateway without keys, and on the command line."""


def is_operator(principal: Principal) -> bool:
    """Return whether this principal may decide for others: the local user, or a key with the scope `admin`.

    Pass the original caller (`CallContext.on_behalf_of`): behind the gate a principal has no scopes.
    """
    return principal.id == LOCAL.id or is_admin(principal)
