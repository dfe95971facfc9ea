"""Interfaces of the credentials with which the gateway authenticates to one remote server. `upstream.oauth` implements them.

The connection to the server and its carriers (one class per transport) use them.
"""

from __future__ import annotations

from typing import Protocol


class Credentials(Protocol):
    """Provides the `Authorization` header for requests to one remote server."""

    async def header(self) -> str:
        """Return the current value of the `Authorization` header. Raises `UpstreamError` if the gateway has no credentials."""
        ...

    async def after(self, status: int, challenge: str, used: str) -> str | None:
        """Return a new header value after the server rejected the value `used`; `None` if a new value cannot help.

        `status` is 401 or 403, and `challenge` the `WWW-Authenticate` header of the response. Raises `UpstreamError` if a person must act
        first, or if new credentials cannot be obtained now.
        """
        ...

    def accepted(self) -> None:
        """Record that the server accepted the header value that `after` returned."""
        ...

    def explain(self) -> str:
        """Return a text that says what a person can do if the server rejects the credentials."""
        ...


class SignInOffer(Protocol):
    """A sign-in at the authorization server of one remote server, which a call can begin and a person finishes in the browser."""

    async def invite(self) -> tuple[str, str] | None:
        """Begin a sign-in unless one is in progress. Return the issuer that signs the person in, and the URL that the person must open.

        Return `None` if no sign-in can begin.
        """
        ...

    async def finished(self) -> None:
        """Wait until no sign-in is in progress."""
        ...


class OwnedCredentials(Credentials, Protocol):
    """Credentials of one server that are renewed in the background, while requests use them and `run` is running."""

    @property
    def sign_in(self) -> SignInOffer | None:
        """The sign-in that a call can offer to a person; `None` if credentials of this kind need no person."""
        ...

    async def reload_tokens(self) -> None:
        """Read the stored tokens again, because a person signed in, possibly with another process of the gateway."""
        ...

    async def run(self) -> None:
        """Renew the credentials shortly before they expire, when a request uses them, until cancelled. Raises no errors."""
        ...
