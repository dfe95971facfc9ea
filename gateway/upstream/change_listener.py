"""`ChangeListener`: subscribes to one remote server's notifications about changed lists and updated resources, and dispatches them.

With an MCP 2026 server, it holds one `subscriptions/listen` stream open, and opens it again when it ends or when the set of watched
resources changes. With an MCP 2025 server, it sends `resources/subscribe` and `resources/unsubscribe`. Its owner (`source`) reads the
changed lists. `run` unsubscribes in the background, so that no client waits for it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import cast

import anyio

from gateway.errors import NotFound, Rejected, UpstreamError, UpstreamTimeout
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import METHOD_NOT_FOUND
from gateway.tools.base import ChangeKind
from gateway.upstream.connection import Connection
from gateway.upstream.server_session import Session

logger = logging.getLogger(__name__)

RELISTEN_SECONDS = 1.0
"""Seconds before a broken `subscriptions/listen` stream is opened again. Doubles after each failure, up to `MAX_RELISTEN_SECONDS`."""

MAX_RELISTEN_SECONDS = 30.0
"""Longest wait between two attempts to open the `subscriptions/listen` stream."""

ACKNOWLEDGED_SECONDS = 10.0
"""Timeout for `notifications/subscriptions/acknowledged`, by which a server confirms a `subscriptions/listen` request.

If the confirmation does not arrive in time, the stream is opened again.
"""

SUBSCRIBE_SECONDS = 20.0
"""Timeout of `resources/subscribe` and `resources/unsubscribe`."""

_CHANGES: dict[str, ChangeKind] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}


class ChangeListener:
    """Keeps the gateway subscribed to the change notifications of one server. `run` must be running."""

    def __init__(self, server: str, on_change: Callable[[ChangeKind], None]) -> None:
        self._server = server
        self._on_change = on_change
        self.on_update: Callable[[str], None] = lambda _: None
        self._watched: Counter[str] = Counter()
        self._unwanted: dict[str, None] = {}
        """URIs that no client watches any more, for which `resources/unsubscribe` has not been sent yet to an MCP 2025 server."""
        self._subscribed_on: Session | None = None
        self._relisten = anyio.Event()
        self._acknowledged = anyio.Event()
        self._missed = False
        self._inherits = False

    def inherit(self, former: ChangeListener) -> None:
        """Take over the watched resources of `former`, the same server's listener before its configuration changed. Call before `run`."""
        self._watched = Counter(former._watched)
        self._inherits = bool(self._watched)

    @property
    def is_watching(self) -> bool:
        """Whether a client watches a resource, so that the connection must stay open."""
        return bool(self._watched)

    def notified(self, method: str, params: JsonMapping) -> None:
        """Process a notification about a changed list, an updated resource or an acknowledged subscription; ignore all other methods."""
        kind = _CHANGES.get(method)
        if kind is not None:
            self._on_change(kind)
        elif method == "notifications/resources/updated" and isinstance(uri := params.get("uri"), str):
            self.on_update(uri)
        elif method == "notifications/subscriptions/acknowledged":
            self._acknowledged.set()
            if self._missed:
                self._missed = False
                for change in _CHANGES.values():
                    self._on_change(change)

    async def watch(self, uri: str, connection: Connection) -> None:
        """Count one more client that watches the resource `uri`. For the first client, subscribe to the resource at the server.

        Raises:
            NotFound: The server does not support subscriptions.
            UpstreamError: The server rejected the request, or cannot be reached.
        """
        session = await _session(connection)
        resources = cast("JsonMapping", session.negotiated.capabilities.get("resources") or {})
        if not resources.get("subscribe"):
            raise NotFound("resource subscription", uri, f"Server {self._server!r} does not offer resource subscriptions.")
        self._watched[uri] += 1
        if self._watched[uri] > 1:
            return
        if session.is_modern:
            self._relisten.set()
            return
        try:
            await self._ask(session, "resources/subscribe", uri)
        except BaseException:  # also if the call is cancelled by its deadline: otherwise `uri` would stay counted
            self._watched.pop(uri, None)
            raise

    def unwatch(self, uri: str) -> None:
        """Count one client fewer that watches the resource `uri`. After the last client, `run` unsubscribes from the resource."""
        if self._watched[uri] > 1:
            self._watched[uri] -= 1
            return
        if self._watched.pop(uri, 0):
            self._unwanted[uri] = None
            self._relisten.set()

    async def _ask(self, session: Session, method: str, uri: str) -> None:
        """Send `resources/subscribe` or `resources/unsubscribe`, with the timeout `SUBSCRIBE_SECONDS`, because no call's deadline applies.

        Raises:
            UpstreamError: The request failed, or timed out.
        """
        with anyio.move_on_after(SUBSCRIBE_SECONDS):
            await session.request(method, {"uri": uri})
            return
        raise UpstreamTimeout(f"Server {self._server!r} did not answer {method!r} within {SUBSCRIBE_SECONDS:g} s.", server=self._server)

    async def run(self, connection: Connection) -> None:
        """Keep the subscriptions at the server up to date until cancelled, and renew them after each reconnect."""
        wait = RELISTEN_SECONDS
        while True:
            started = anyio.current_time()
            session = None
            try:
                session = await connection.live()
                if session.is_modern:
                    await self._listen(session)
                else:
                    await self._resubscribe(session)
                    await self._unsubscribe(session)
            except UpstreamError as error:
                logger.debug("listen stream not opened server=%s reason=%s", self._server, error)
            if self._relisten.is_set():
                self._relisten = anyio.Event()
                wait = RELISTEN_SECONDS
                continue
            self._missed = True
            if session is not None:
                session.forget_tools()  # another server may have taken over the address
            if anyio.current_time() - started > MAX_RELISTEN_SECONDS:
                wait = RELISTEN_SECONDS
            await anyio.sleep(wait)
            wait = min(wait * 2, MAX_RELISTEN_SECONDS)

    async def _listen(self, session: Session) -> None:
        """Hold one `subscriptions/listen` stream open until it breaks or the watched resources change.

        If there is nothing to subscribe to, or the server does not support the method, wait for the end of the session instead.
        """
        self._unwanted.clear()
        self._acknowledged = anyio.Event()
        wanted = self._filter(session.negotiated.capabilities)
        refused = not wanted
        async with anyio.create_task_group() as tasks:

            async def hold() -> None:
                nonlocal refused
                if wanted:
                    try:
                        await session.listen(wanted)
                    except Rejected as error:
                        refused = error.code == METHOD_NOT_FOUND
                    except UpstreamError as error:
                        logger.debug("listen stream ended server=%s reason=%s", self._server, error)
                if refused:
                    await session.closed.wait()
                tasks.cancel_scope.cancel()

            async def expect() -> None:
                with anyio.move_on_after(ACKNOWLEDGED_SECONDS):
                    await self._acknowledged.wait()
                if wanted and not refused and not self._acknowledged.is_set():
                    logger.info("listen stream not acknowledged, opening it again server=%s", self._server)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(hold)
            tasks.start_soon(expect)
            await self._relisten.wait()
            tasks.cancel_scope.cancel()

    def _filter(self, capabilities: JsonMapping) -> JsonObject:
        wanted: JsonObject = {}
        for capability, key in (("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged")):
            if cast("JsonMapping", capabilities.get(capability) or {}).get("listChanged"):
                wanted[key] = True
        if self._watched:
            wanted["resourceSubscriptions"] = sorted(self._watched)
        return wanted

    async def _resubscribe(self, session: Session) -> None:
        """Subscribe to the watched resources again after an MCP 2025 server reconnected."""
        if (self._subscribed_on is not None or self._inherits) and self._subscribed_on is not session:
            self._unwanted.clear()
            for uri in list(self._watched):
                try:
                    await self._ask(session, "resources/subscribe", uri)
                except Rejected as error:  # the resource may be gone; the others are still subscribed
                    logger.info("resource not subscribed to again server=%s uri=%r reason=%s", self._server, uri, error)
        self._subscribed_on = session

    async def _unsubscribe(self, session: Session) -> None:
        """Unsubscribe from each resource that no client watches any more, until the session with the MCP 2025 server ends."""
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await session.closed.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            while True:
                await self._relisten.wait()
                self._relisten = anyio.Event()
                while self._unwanted:
                    uri = next(iter(self._unwanted))
                    del self._unwanted[uri]
                    if uri not in self._watched:
                        await self._unsubscribe_from(session, uri)

    async def _unsubscribe_from(self, session: Session, uri: str) -> None:
        try:
            await self._ask(session, "resources/unsubscribe", uri)
            if uri in self._watched:  # a client watches it again, and the server may have received the two requests in either order
                await self._ask(session, "resources/subscribe", uri)
        except UpstreamError as error:
            logger.debug("resource not unsubscribed from server=%s uri=%r reason=%s", self._server, uri, error)


async def _session(connection: Connection) -> Session:
    """Return the live session of the connection. If no session is open, open one first."""
    connection.begin_use()
    try:
        return await connection.session()
    finally:
        connection.end_use()
