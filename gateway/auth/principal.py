"""`Principal`: an authenticated caller of the gateway: the local user, or the holder of an API key. Each request has one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.policy.scopes import is_admin


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller of the gateway. Two principals are the same caller if and only if their `id` is equal."""

    id: str
    """Stable and unique identifier, such as `local` or `key:ab12cd`. It is not a secret."""
    name: str = ""
    """Name of the caller for people. It is never used for decisions."""
    scopes: tuple[str, ...] | None = field(default=None, compare=False)
    """Scopes of the caller's API key, which limit its calls (`policy.scopes`); `None` allows every tool, resource and prompt."""

    def unscoped(self) -> Principal:
        """Return the same caller with `scopes=None`, for calls that a tool makes: scopes limit only the calls of the caller itself."""
        return self if self.scopes is None else replace(self, scopes=None)


LOCAL = Principal("local", "local user")
"""The local user: the principal of calls over stdio, of commands, and of HTTP requests while the gateway has no API keys."""


def is_operator(principal: Principal) -> bool:
    """Return whether `principal` is an administrator: the local user, or an API key with the scope `admin`.

    Inside a tool, pass the original caller (`CallContext.on_behalf_of`). The principal in the context of a tool's call no longer has the
    scopes of the API key (`Principal.unscoped`), so this function would return false for every key.
    """
    return principal.id == LOCAL.id or is_admin(principal)
