"""`Callers`: the API keys and the access tokens of a gateway together. It answers who may still act, for requests and for long work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.auth.api_keys import ApiKeys
from gateway.auth.principal import Principal

if TYPE_CHECKING:
    from gateway.auth.access_tokens import AccessTokens


class Callers:
    """Finds the current rights of principals, whatever has authenticated them."""

    def __init__(self, keys: ApiKeys, tokens: AccessTokens | None = None) -> None:
        """`tokens` checks access tokens; `None` if the gateway accepts none."""
        self.keys = keys
        self.tokens = tokens
        self.bind: Callable[[Principal], Principal] | None = None
        """Gives a principal its rights by the configuration; `None` if only scopes limit callers. The package `access` sets it."""

    def current(self, principal: Principal) -> Principal | None:
        """Return `principal` with its current rights, or `None` if its API key or its access tokens are no longer valid.

        The local user is returned unchanged. `AccessTokens.current` has the rule for users.

        Raises:
            StorageError: The API keys cannot be read.
        """
        if principal.id.startswith("user:"):
            found = None if self.tokens is None else self.tokens.current(principal)
        else:
            found = self.keys.current(principal)
        return found if found is None or self.bind is None else self.bind(found)

    def are_required(self) -> bool:
        """Return whether HTTP clients must identify themselves: there is an API key or an issuer, or the keys cannot be read."""
        return self.tokens is not None or self.keys.are_required()
