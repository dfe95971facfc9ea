"""`Principal`: an authenticated caller, which is the local user or an API key. The server creates it for each request."""

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
    """Scopes of the caller's key (`policy.scopes`); `None` allows everything."""

    def unscoped(self) -> Principal:
        """Return the same caller with `scopes=None`: a tool that the caller may use makes its inner calls with all rights."""
        return self if self.scopes is None else replace(self, scopes=None)


LOCAL = Principal("local", "local user")
"""The local user: the principal of calls over stdio, of commands, and of HTTP requests while the gateway has no API keys."""


def is_operator(principal: Principal) -> bool:
    """Return whether this principal is an administrator: the local user, or a key with the scope `admin`.

    Inside a tool, ask this of `CallContext.on_behalf_of`, the caller of the outermost call: the principal of inner calls is `unscoped` and
    no longer shows the scopes of the key.
    """
    return principal.id == LOCAL.id or is_admin(principal)
