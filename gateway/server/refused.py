"""`Refused`: a plain request that a quota does not let begin, as `direct` hands it to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.json_types import JsonValue
from gateway.server.answers import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Refused:
    """Implements `app.exchange.Begun` with a refusal as its longer path."""

    is_cancelled = False

    def __init__(self, refusal: Refusal, number: JsonValue) -> None:
        """`number` is the id of the request."""
        self._answer = refusal.to_answer(is_rpc=True, number=number)

    def cancel(self, msg: object = None) -> None:
        """Nothing was begun."""

    def left(self) -> None:
        """Nothing was begun."""

    async def settled(self) -> None:
        """It is settled."""

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called soon."""
        asyncio.get_running_loop().call_soon(then)

    def answer(self) -> None:
        """Return `None`: the refusal is the longer path."""

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal."""
        await self._answer(scope, receive, send)

    async def end(self) -> None:
        """Nothing was begun."""

    def forget(self) -> None:
        """Nothing was begun."""
