"""What OAuth gives a connection, as the connection sees it; `oauth` implements it."""

from __future__ import annotations

from typing import Protocol


class Credentials(Protocol):
    """Where the `Authorization` header of one server comes from."""

    async def header(self) -> str:
        """Its value now. Raises `UpstreamError` where there is none."""
        ...

    async def after(self, status: int, challenge: str, used: str) -> str | None:
        """Another value after the server answered 401 or 403 with `challenge` to the one `used`; `None`: it would not help."""
        ...

    def accepted(self) -> None:
        """The value that `after` gave was taken."""
        ...

    def explain(self) -> str:
        """What a person does when the server refuses the credentials."""
        ...


class SignInOffer(Protocol):
    """A sign-in that a call can begin."""

    async def invite(self) -> tuple[str, str] | None:
        """Who asks for the password, and the address to open; the same while a sign-in is going on. `None`: there is none."""
        ...

    async def finished(self) -> None:
        """Wait until no sign-in is going on."""
        ...


class OwnedCredentials(Credentials, Protocol):
    """Credentials that keep themselves fresh while their source runs."""

    @property
    def sign_in(self) -> SignInOffer | None:
        """How a person signs in from a call; `None` where no person has to."""
        ...

    async def look_again(self) -> None:
        """Notice at once that somebody signed in."""
        ...

    async def run(self) -> None:
        """Until cancelled; never raises otherwise."""
        ...
