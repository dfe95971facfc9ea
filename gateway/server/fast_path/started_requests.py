"""`StartedRequest`: base class of requests that were started without the MCP SDK, and are then answered or delegated to the SDK path.

The HTTP server (`wire.http1_server`) and `dispatch` use it to send the response. `plain_calls.StartedCall` is the subclass for tool calls.
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
"""An encoded JSON-RPC message: byte strings that are sent one after the other."""


class StartedRequest(ABC):
    """A request that the fast path has started to serve without the MCP SDK.

    To use it, wait for `settled` and call `answer`. Send the response that `answer` returns, or call `go_on` if it returns `None`, so that
    the SDK path answers the request. Finally call `end`.
    """

    @property
    def is_cancelled(self) -> bool:
        """Whether the work of the request was cancelled."""
        return False

    def cancel(self, msg: object = None) -> None:  # noqa: B027  # a refused request has nothing to cancel
        """Cancel the request. `msg` is ignored: it exists because a stopping HTTP server cancels requests like `asyncio` tasks."""

    def left(self) -> None:
        """Handle a disconnect of the client: cancel the request."""
        self.cancel()

    async def settled(self) -> None:
        """Wait until the response is ready without the MCP SDK, or it is known that the SDK must answer the request."""
        settled = asyncio.Event()
        self.when_settled(settled.set)
        await settled.wait()

    @abstractmethod
    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once, when the response is ready, or it is known that the MCP SDK must answer the request."""

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the `Mcp-Session-Id` header field (`None` outside 2025 sessions) and the encoded response.

        Return `None` instead if the calling code must call `go_on`, which answers the request.
        """
        return None

    @abstractmethod
    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK path, the ASGI application that uses the MCP SDK, answer the request. The arguments are those of an ASGI call."""

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response when it is ready, or let `go_on` send it. Then call `end`. The arguments are those of an ASGI call."""
        try:
            await self.settled()
            answer = self.answer()
            if answer is None:
                await self.go_on(scope, receive, send)
                return
            body = b"".join(answer[1])
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            if answer[0] is not None:
                headers.append(answer[0])
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        finally:
            await self.end()

    async def end(self) -> None:
        """Cancel the work of the request if it still runs, because the request was answered or its client disconnected."""
        self.cancel()

    def forget(self) -> None:  # noqa: B027  # only calls are remembered
        """Remove the request from the records of requests in flight, because it was answered."""


class StartedAnswer(StartedRequest):
    """A listing or `server/discover` request that was started without the MCP SDK; an `asyncio` task produces the response."""

    def __init__(self, app: ASGIApp, work: Coroutine[None, None, bytes | None], principal: Principal, usage: Usage) -> None:
        """Start `work` in a task. `work` returns the encoded response, or `None` if `app` (the SDK path, with the MCP SDK) must answer.

        `usage` counts what the caller has in progress; the request counts as a call in it while the task runs.
        """
        usage.calls += 1
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda _: usage.release_call())
        self._app = app
        self._principal = principal

    @property
    def is_cancelled(self) -> bool:
        """Whether the task of the request was cancelled."""
        return self._task.cancelled()

    def cancel(self, msg: object = None) -> None:
        """Cancel the task of the request. `msg` is ignored."""
        self._task.cancel()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once, when the task of the request has ended."""
        self._task.add_done_callback(lambda _: then())

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return a pair of `None` (no session header) and the encoded response; `None` instead of the pair if the MCP SDK must answer.

        The SDK must answer if the task failed or returned no response.
        """
        if self._task.cancelled() or self._task.exception() is not None:
            return None  # the SDK path finds the same error, and reports it
        body = self._task.result()
        return None if body is None else (None, (body,))

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK path (with the MCP SDK) answer the request. The arguments are those of an ASGI call."""
        scope[PRINCIPAL_SCOPE_KEY] = self._principal
        await self._app(scope, receive, send)


class RefusedRequest(StartedRequest):
    """A request that is refused because a quota of its caller is used up. `answer` returns `None`; `go_on` sends the refusal."""

    def __init__(self, refusal: Refusal, number: JsonValue) -> None:
        """`number` is the JSON-RPC id of the request."""
        self._respond = refusal.to_response(is_rpc=True, number=number)

    def when_settled(self, then: Callable[[], None]) -> None:
        """Schedule `then` on the event loop, because the refusal can be sent at once."""
        asyncio.get_running_loop().call_soon(then)

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal as the response to the request. The arguments are those of an ASGI call."""
        await self._respond(scope, receive, send)
