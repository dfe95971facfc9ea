"""`Asked`: a plain question over HTTP that is answered without the SDK (`plain`), as `direct` hands it to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from gateway.server.clients import PRINCIPAL_SCOPE_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.auth.principal import Principal
    from gateway.server.usage import Usage


class Asked:
    """A question under way: its answer, or the longer path for it."""

    def __init__(self, app: ASGIApp, work: Coroutine[None, None, bytes | None], principal: Principal, usage: Usage) -> None:
        """`work` makes the message, or leaves it to `app`; `principal` asks, and `usage` counts it as a call. Begins."""
        usage.calls += 1
        self.task = asyncio.get_running_loop().create_task(work)
        self.task.add_done_callback(lambda _: usage.release_call())
        self._app = app
        self._principal = principal

    @property
    def is_cancelled(self) -> bool:
        """Whether it was ended before its time."""
        return self.task.cancelled()

    def cancel(self, msg: object = None) -> None:
        """End it before its time."""
        self.task.cancel()

    def left(self) -> None:
        """Nobody wants to know any more."""
        self.cancel()

    async def settled(self) -> None:
        """Wait until there is something to do: to answer, or to go on."""
        await asyncio.wait([self.task])

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called at that time."""
        self.task.add_done_callback(lambda _: then())

    def answer(self) -> tuple[bytes, tuple[bytes]] | None:
        """No session, and the JSON of the answer."""
        if self.task.cancelled() or self.task.exception() is not None:
            return None  # what went wrong is found again, and said, by the longer path
        body = self.task.result()
        return None if body is None else (b"", (body,))

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The longer path."""
        scope[PRINCIPAL_SCOPE_KEY] = self._principal
        await self._app(scope, receive, send)

    async def end(self) -> None:
        """Nobody waits for it any more."""
        self.cancel()

    def forget(self) -> None:
        """It is over."""
