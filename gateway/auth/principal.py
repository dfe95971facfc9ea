"""`Principal`: an authenticated caller of the gateway: the local user, the holder of an API key, or a user with an access token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.policy.caller_rights import Rights, is_admin
from gateway.policy.scopes import ScopeRights


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller of the gateway. Two principals are the same caller if and only if their `id` is equal."""

    id: str
    """Stable and unique identifier: `local`, `key:` and an id, or `user:` and a digest of issuer, subject and client. Not a secret."""
    name: str = ""
    """Name of the caller for people. Only roles use it for decisions: they may name an API key by its name."""
    scopes: tuple[str, ...] | None = field(default=None, compare=False)
    """Scopes of the caller's API key or access token, which limit its calls (`policy.scopes`); `None`: every tool, resource and prompt."""
    kind: Literal["local", "key", "user"] = field(default="key", compare=False)
    """How the caller was authenticated: as the local user, by an API key, or by an access token of an OAuth authorization server."""
    issuer: str = field(default="", compare=False)
    """Issuer of the access token (an https URL); empty without an access token, as the following fields are."""
    subject: str = field(default="", compare=False)
    """The user at the issuer (`sub`)."""
    client: str = field(default="", compare=False)
    """The OAuth client that the access token was issued to (`client_id`)."""
    groups: tuple[str, ...] = field(default=(), compare=False)
    """Groups of the user, as the access token names them, sorted."""
    tenant: str = field(default="", compare=False)
    """Tenant of the user, as the access token names it."""
    expires_at: float | None = field(default=None, compare=False)
    """Time at which the access token expires, in seconds since the epoch; `None` without an access token."""
    owner: str = field(default="", compare=False)
    """Identifier of the person, whatever client they use: `user:` and a digest of issuer and subject. Else it equals `id`.

    Credentials and budgets belong to the owner; sessions, tasks and other handles belong to the `id`.
    """
    rights: Rights | None = field(default=None, compare=False, repr=False)
    """What the caller may use, by its scopes and the section `access` of the configuration; `None`: everything.

    `access.principal_rights.Access.bind` sets it. Without that, the scopes alone are the rights.
    """

    def __post_init__(self) -> None:
        if not self.owner:
            object.__setattr__(self, "owner", self.id)
        if self.rights is None and self.scopes is not None:
            object.__setattr__(self, "rights", ScopeRights(self.scopes))

    def unscoped(self) -> Principal:
        """Return the same caller without rights and scopes, for calls that a tool makes: rights limit only calls of the caller itself."""
        return self if self.rights is None else replace(self, scopes=None, rights=None)


LOCAL = Principal("local", "local user", kind="local")
"""The local user: the principal of calls over stdio, of commands, and of HTTP requests while the gateway has no API keys."""


def is_operator(principal: Principal) -> bool:
    """Return whether `principal` is an administrator: the local user, or an API key with the scope `admin`.

    Inside a tool, pass the original caller (`CallContext.on_behalf_of`). The principal in the context of a tool's call no longer has the
    scopes of the API key (`Principal.unscoped`), so this function would return false for every key.
    """
    return principal.id == LOCAL.id or is_admin(principal)
