"""Protocols of the credentials of one server, which its connection and carriers use. `oauth` implements them."""

from __future__ import annotations

from typing import Protocol


class Credentials(Protocol):
    """Provides the `Authorization` header of one server."""

    async def header(self) -> str:
        """Return the current header value. Raises `UpstreamError` if there are no credentials."""
        ...

    async def after(self, status: int, challenge: str, used: str) -> str | None:
        """Return a new header value after a 401 or 403 with `challenge` to the value `used`; `None` if a new value cannot help."""
        ...

    def accepted(self) -> None:
        """Note that the server accepted the header value that `after` returned."""
        ...

    def explain(self) -> str:
        """Return what a person can do if the server rejects the credentials."""
        ...


class SignInOffer(Protocol):
    """A sign-in in the browser that a call can begin, and a person finishes."""

    async def invite(self) -> tuple[str, str] | None:
        """Return the issuer and the URL to open, the same ones while a sign-in is in progress; `None` if it cannot begin."""
        ...

    async def finished(self) -> None:
        """Wait until no sign-in is in progress."""
        ...


class OwnedCredentials(Credentials, Protocol):
    """Credentials that are renewed in the background while `run` is running."""

    @property
    def sign_in(self) -> SignInOffer | None:
        """The sign-in that a call can offer; `None` if none is needed."""
        ...

    async def reload_tokens(self) -> None:
        """Read the token store again, because somebody signed in."""
        ...

    async def run(self) -> None:
        """Renew the credentials until cancelled. No error is raised."""
        ...
