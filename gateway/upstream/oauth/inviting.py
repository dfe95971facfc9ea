"""`Invitations`: a sign-in that a call begins and a person finishes in the browser, while the gateway runs.

One at a time: whoever needs it meanwhile gets the same address. The address leads back to this machine (RFC 8252), so it is
offered to the local user only; `source` decides that. `signin` does the work.
"""

from __future__ import annotations

import logging

import anyio

from gateway.errors import GatewayError
from gateway.upstream.oauth.signin import Invitation, SignIn

logger = logging.getLogger(__name__)

INVITE_SECONDS = 15.0
"""Time to find out where to sign in."""


class Invitations:
    """`run` must be going."""

    def __init__(self, server: str, sign_in: SignIn) -> None:
        self._server = server
        self._sign_in = sign_in
        self._current: Invitation | None = None
        self._wanted = anyio.Event()
        self._shown = anyio.Event()
        """Set when there is an address, or there will be none."""
        self._over = anyio.Event()

    async def invite(self) -> tuple[str, str] | None:
        """Who asks for the password, and where to go; begins a sign-in where none is going on. `None` where none can be begun."""
        if self._current is None:
            self._wanted.set()
            with anyio.move_on_after(INVITE_SECONDS):
                await self._shown.wait()
        current = self._current
        return (current.issuer, current.url) if current is not None else None

    async def finished(self) -> None:
        """Wait until no sign-in is going on, however it ended."""
        if self._current is not None:
            await self._over.wait()

    async def run(self) -> None:
        """Sign in whenever that is wanted; until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self._sign_in.run(self._show)
                logger.info("%s: a person signed in", self._server)
            except GatewayError as error:
                logger.warning("%s: the sign-in was not completed: %s", self._server, error)
            self._current = None
            self._shown.set()
            self._over.set()
            self._wanted, self._shown, self._over = anyio.Event(), anyio.Event(), anyio.Event()

    def _show(self, invitation: Invitation) -> None:
        self._current = invitation
        self._shown.set()
