"""`Watches`: the resource subscriptions of 2025 sessions. It subscribes at the sources, and ends the subscriptions with their sessions."""

from __future__ import annotations

import logging
from collections.abc import Collection

from gateway.catalog import Catalog
from gateway.errors import GatewayError
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.server.clients import LegacySession
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

MAX_WATCHED = 1_000
"""Maximum number of resources to whose updates a 2025 session, or one listen stream of a 2026 client, may subscribe."""


class Watches:
    """Adds and removes the resources that 2025 sessions watch."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def add(self, session: LegacySession, uri: str, ctx: CallContext) -> bool:
        """Let a session watch a resource, if the policies allow it. Return false if it watches the resource already.

        Raises:
            RpcError: The session watches `MAX_WATCHED` resources.
            GatewayError: The resource is unknown, or the caller may not read it.
        """
        if session.watched[uri]:
            return False
        if len(session.watched) >= MAX_WATCHED:
            raise RpcError(INVALID_PARAMS, f"A client may watch at most {MAX_WATCHED} resources.")
        session.watched[uri] = 1
        try:
            await self._catalog.watch(uri, ctx)
        except BaseException:  # also if the request was cancelled: a repeated request must try again
            del session.watched[uri]
            raise
        return True

    async def remove(self, session: LegacySession, uri: str) -> bool:
        """End the watch of a resource. Return false if the session does not watch it."""
        if not session.watched.pop(uri, 0):
            return False
        await self._unwatch(uri)
        return True

    async def match(self, session: LegacySession, uris: Collection[str], ctx: CallContext) -> None:
        """Let a session watch exactly the resources `uris`, as the client requested at another replica. Log what cannot be watched."""
        for uri in [uri for uri, count in session.watched.items() if count and uri not in uris]:
            await self.remove(session, uri)
        for uri in uris:
            try:
                await self.add(session, uri, ctx)
            except (GatewayError, RpcError) as error:
                logger.warning("resource of a continued session not watched uri=%r error=%s", uri, error)

    async def release(self, session: LegacySession) -> None:
        """Stop watching all resources of a session, because the session ended."""
        for uri in list(session.watched):
            await self._unwatch(uri)
        session.watched.clear()

    async def _unwatch(self, uri: str) -> None:
        try:
            await self._catalog.unwatch(uri)
        except GatewayError:
            return  # the source was removed or no longer has the resource, so there is no subscription to undo
