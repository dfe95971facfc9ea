"""Change notifications of one server: list changes and watched resources, in both eras.

A modern server is listened to on one `subscriptions/listen` stream, re-opened when it ends or when the set of
watched resources changes; a legacy one is sent `resources/subscribe` and pushes. Says only *that* something
changed; `source` reads the lists again. A client that stops watching waits for no server: `run` tells it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import cast

import anyio

from gateway.errors import NotFound, UpstreamError, UpstreamRefused, UpstreamTimeout
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import METHOD_NOT_FOUND
from gateway.tools.base import ChangeKind
from gateway.upstream.connection import Connection
from gateway.upstream.session import Session

logger = logging.getLogger(__name__)

RELISTEN_SECONDS = 1.0
"""Wait before a broken listen stream is opened again; doubles up to `MAX_RELISTEN_SECONDS`."""

MAX_RELISTEN_SECONDS = 30.0
"""Longest wait between attempts to listen."""

ACKNOWLEDGED_SECONDS = 10.0
"""Time for a server to acknowledge a listen stream; one that was not understood would tell nothing for ever."""

SUBSCRIBE_SECONDS = 20.0
"""Time for a legacy server to answer `resources/subscribe` or `resources/unsubscribe`."""

_CHANGES: dict[str, ChangeKind] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}


class Watcher:
    """Keeps one server's change notifications flowing; `run` must be going."""

    def __init__(self, server: str, on_change: Callable[[ChangeKind], None]) -> None:
        self._server = server
        self._on_change = on_change
        self.on_update: Callable[[str], None] = lambda _: None
        self._watched: Counter[str] = Counter()
        self._unwanted: dict[str, None] = {}
        """No longer watched, and a legacy server has yet to be told."""
        self._subscribed_on: Session | None = None
        self._relisten = anyio.Event()
        self._acknowledged = anyio.Event()
        self._missed = False
        self._inherits = False

    def inherit(self, former: Watcher) -> None:
        """Take over what is watched of the server's former connection; before `run`."""
        self._watched = Counter(former._watched)
        self._inherits = bool(self._watched)

    @property
    def is_watching(self) -> bool:
        """Whether a client waits for news of a resource, so that the server must not rest."""
        return bool(self._watched)

    def notified(self, method: str, params: JsonMapping) -> None:
        """Take a notification of the server; others are ignored."""
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
        """Count a watch of `uri`; the first one reaches the server.

        Raises:
            NotFound: The server does not offer subscriptions.
            UpstreamError: The server refused or cannot be reached.
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
        except BaseException:  # given up as well: the gate's deadline must not leave it counted
            self._watched.pop(uri, None)
            raise

    def unwatch(self, uri: str) -> None:
        """Undo one watch; the server is told of the last one as soon as it listens."""
        if self._watched[uri] > 1:
            self._watched[uri] -= 1
            return
        if self._watched.pop(uri, 0):
            self._unwanted[uri] = None
            self._relisten.set()

    async def _ask(self, session: Session, method: str, uri: str) -> None:
        """One request about a subscription, with a deadline of its own: it runs inside no call."""
        with anyio.move_on_after(SUBSCRIBE_SECONDS):
            await session.request(method, {"uri": uri})
            return
        raise UpstreamTimeout(f"Server {self._server!r} did not answer {method!r} within {SUBSCRIBE_SECONDS:g} s.", server=self._server)

    async def run(self, connection: Connection) -> None:
        """Follow the server across reconnects until cancelled."""
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
                logger.debug("%s: cannot listen: %s", self._server, error)
            if self._relisten.is_set():
                self._relisten = anyio.Event()
                wait = RELISTEN_SECONDS
                continue
            self._missed = True
            if session is not None:
                session.forget_tools()  # a server that comes back behind the same address may be another one
            if anyio.current_time() - started > MAX_RELISTEN_SECONDS:
                wait = RELISTEN_SECONDS
            await anyio.sleep(wait)
            wait = min(wait * 2, MAX_RELISTEN_SECONDS)

    async def _listen(self, session: Session) -> None:
        """Hold one stream until it breaks or must be re-opened; sleeps likewise where the server has nothing to tell."""
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
                    except UpstreamRefused as error:
                        refused = error.code == METHOD_NOT_FOUND
                    except UpstreamError as error:
                        logger.debug("%s: listen stream ended: %s", self._server, error)
                if refused:
                    await session.closed.wait()
                tasks.cancel_scope.cancel()

            async def expect() -> None:
                with anyio.move_on_after(ACKNOWLEDGED_SECONDS):
                    await self._acknowledged.wait()
                if wanted and not refused and not self._acknowledged.is_set():
                    logger.info("%s: its listen stream was not acknowledged; opening it again", self._server)
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
        """Tell a reconnected legacy server again what is watched."""
        if (self._subscribed_on is not None or self._inherits) and self._subscribed_on is not session:
            self._unwanted.clear()
            for uri in list(self._watched):
                try:
                    await self._ask(session, "resources/subscribe", uri)
                except UpstreamRefused as error:  # gone meanwhile, perhaps; no reason to miss the others
                    logger.info("%s: %r could not be subscribed to again: %s", self._server, uri, error)
        self._subscribed_on = session

    async def _unsubscribe(self, session: Session) -> None:
        """Tell a legacy server what is no longer watched, until its session ends."""
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
                        await self._tell_unwatched(session, uri)

    async def _tell_unwatched(self, session: Session, uri: str) -> None:
        try:
            await self._ask(session, "resources/unsubscribe", uri)
            if uri in self._watched:  # wanted again meanwhile; the two requests may have overtaken each other
                await self._ask(session, "resources/subscribe", uri)
        except UpstreamError as error:
            logger.debug("%s: %r could not be unsubscribed from: %s", self._server, uri, error)


async def _session(connection: Connection) -> Session:
    """The live session, woken if need be."""
    connection.begin_use()
    try:
        return await connection.session()
    finally:
        connection.end_use()
