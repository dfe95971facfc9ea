"""`StartedRequest`: a request that the fast path started, which it then answers or delegates to the SDK path.

The HTTP server (`wire.http1_server`) and `dispatch` have a `StartedRequest` for each
such request. `in_flight.StartedCall` is the kind for tool calls.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from gateway.auth.principal import Principal
from gateway.json_types import JsonValue
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.http_responses import Refusal
from gateway.server.usage import Usage
from gateway.wire.http1_interfaces import Field

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

Body = Sequence[bytes | memoryview]
"""An encoded JSON-RPC message in parts."""


class StartedRequest(ABC):
    """A request that the fast path started. Wait for `settled`, then send what `answer` returns, or call `go_on`; at last call `end`."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return False

    def cancel(self, msg: object = None) -> None:  # noqa: B027  # a refused request has nothing to cancel
        """Cancel the request. A stopping HTTP server passes `msg`, as to a task; it is ignored."""

    def left(self) -> None:
        """Handle a disconnect of the client: cancel the request."""
        self.cancel()

    async def settled(self) -> None:
        """Wait until the request can be answered, or must be delegated."""
        settled = asyncio.Event()
        self.when_settled(settled.set)
        await settled.wait()

    @abstractmethod
    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called once, when the request can be answered or must be delegated."""

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the header field of the 2025 session, if there is one, and the response; `None` if the request must be delegated."""
        return None

    @abstractmethod
    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate the request to the SDK path, the ASGI application behind the fast path."""

    async def end(self) -> None:
        """Cancel the request if it still runs, because it was answered or nobody waits for an answer."""
        self.cancel()

    def forget(self) -> None:  # noqa: B027  # only calls are remembered
        """Remove the request from the requests in flight, because it was answered."""


class StartedAnswer(StartedRequest):
    """A listing or `server/discover` request, which is answered in a task."""

    def __init__(self, app: ASGIApp, work: Coroutine[None, None, bytes | None], principal: Principal, usage: Usage) -> None:
        """Start `work`, which returns the response, or `None` if `app` must answer. Meanwhile the request counts for `usage` as a call."""
        usage.calls += 1
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda _: usage.release_call())
        self._app = app
        self._principal = principal

    @property
    def is_cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self._task.cancelled()

    def cancel(self, msg: object = None) -> None:
        """Cancel the request."""
        self._task.cancel()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called once, when the task ended."""
        self._task.add_done_callback(lambda _: then())

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the response without a header field; `None` if the SDK path must answer."""
        if self._task.cancelled() or self._task.exception() is not None:
            return None  # the SDK path finds the same error, and reports it
        body = self._task.result()
        return None if body is None else (None, (body,))

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate the request to the SDK path."""
        scope[PRINCIPAL_SCOPE_KEY] = self._principal
        await self._app(scope, receive, send)


class RefusedRequest(StartedRequest):
    """A request that a quota refuses: `answer` returns `None`, and `go_on` sends the refusal instead of delegating the request."""

    def __init__(self, refusal: Refusal, number: JsonValue) -> None:
        """`number` is the JSON-RPC id of the request."""
        self._respond = refusal.to_response(is_rpc=True, number=number)

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(then)

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which was refused at its start: send the refusal as the response."""
        await self._respond(scope, receive, send)
