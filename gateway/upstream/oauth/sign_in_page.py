"""`SignInPage`: lets a call to a remote server begin an OAuth sign-in, which a person finishes in the browser while the gateway runs.

One sign-in per server runs at a time, and further calls get the same URL. The browser is redirected to the gateway's machine (RFC 8252), so
`upstream.source` offers the sign-in only to the local user. The module `sign_in` carries out the sign-in.
"""

from __future__ import annotations

import logging

import anyio

from gateway.errors import GatewayError
from gateway.upstream.oauth.sign_in import Invitation, SignIn

logger = logging.getLogger(__name__)

INVITE_SECONDS = 15.0
"""Longest time that a call waits for the URL of the sign-in page (discovery and client registration), which may still come later."""


class SignInPage:
    """Runs the sign-ins to one server, each at the request of a call (interface `SignInOffer`). `run` must be running."""

    def __init__(self, server: str, sign_in: SignIn) -> None:
        self._server = server
        self._sign_in = sign_in
        self._current: Invitation | None = None
        self._wanted = anyio.Event()
        self._shown = anyio.Event()
        """Set when the URL of the sign-in page is known, or when the sign-in has ended without one."""
        self._over = anyio.Event()

    async def invite(self) -> tuple[str, str] | None:
        """Begin a sign-in unless one is in progress. Return the issuer that signs the person in, and the URL that the person must open.

        Return `None` if no sign-in can begin.
        """
        if self._current is None:
            self._wanted.set()
            with anyio.move_on_after(INVITE_SECONDS):
                await self._shown.wait()
        current = self._current
        return (current.issuer, current.url) if current is not None else None

    async def finished(self) -> None:
        """Wait until the sign-in in progress has ended, successfully or not. Return at once if no sign-in is in progress."""
        if self._current is not None:
            await self._over.wait()

    async def run(self) -> None:
        """Run a sign-in each time `invite` requests a sign-in, until cancelled. A failure is logged."""
        while True:
            await self._wanted.wait()
            try:
                await self._sign_in.run(self._show)
                logger.info("person signed in server=%s", self._server)
            except GatewayError as error:
                logger.warning("sign-in not completed server=%s reason=%s", self._server, error)
            self._current = None
            self._shown.set()
            self._over.set()
            self._wanted, self._shown, self._over = anyio.Event(), anyio.Event(), anyio.Event()

    def _show(self, invitation: Invitation) -> None:
        self._current = invitation
        self._shown.set()
