"""`OwnerCarrier`: sends the requests of a session to the gateway that runs the server's process, for stdio servers with `single: true`.

The other gateway answers each request with a stream of JSON objects: progress, log messages and requests for input of the server, and at
last the result or the failure. `failure_to_json` and `failure_from_json` are used by both sides.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Protocol, cast

import anyio
import anyio.abc
from pydantic_core import to_json

from gateway.errors import (
    Busy,
    Malformed,
    NotSent,
    OutcomeUnknown,
    PolicyDenied,
    Rejected,
    RequestFailure,
    SessionGone,
    TooLarge,
    UpstreamError,
)
from gateway.json_types import JsonMapping, JsonObject, members_of
from gateway.protocol import INTERNAL_ERROR, RpcError
from gateway.upstream.carriers.carrier import Headers, OutgoingRequest, Receiver, report

if TYPE_CHECKING:
    from gateway.tools.context import CallContext

CONNECT_SECONDS = 5.0
"""Timeout in seconds for opening the stream of the server's own messages."""

SETTLE_SECONDS = 1.0
"""Seconds for which responses are still received after the server's own messages have ended, because the server was handed over."""

ANSWER_ATTEMPTS = 3
"""Attempts to send the answer to a request for input, because the connection may break while the request still runs."""

ANSWER_PAUSE_SECONDS = 0.5
"""Seconds between two attempts to send an answer."""

_KINDS: tuple[type[RequestFailure], ...] = (SessionGone, Malformed, OutcomeUnknown, TooLarge, NotSent)


class OwnerChannel(Protocol):
    """The connection to the other gateways, which `server.replicas` implements. All messages are signed."""

    id: str
    """Id of this gateway."""

    @property
    def is_listening(self) -> bool:
        """Whether other gateways can reach this gateway."""
        ...

    async def find(self, replica: str) -> bool:
        """Return whether the gateway with this id runs."""
        ...

    def ask_owner(self, replica: str, server: str, body: bytes) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
        """Context manager: send a message about `server` to a gateway, and yield the JSON objects of its response.

        Raises:
            NotSent: The gateway cannot be reached, or refused the message.
            OutcomeUnknown: The connection broke after the message was sent.
            TooLarge: An object is too large.
        """
        ...


class OwnerCarrier:
    """The `Carrier` to the gateway `owner`, which runs the process of `server`. `connect` comes first, and `aclose` last."""

    is_single_stream = False
    has_headers = False

    def __init__(self, server: str, owner: str, channel: OwnerChannel) -> None:
        self.channel = channel
        self._server = server
        self._owner = owner
        self._stack = AsyncExitStack()
        self._messages: AsyncIterator[JsonObject] | None = None
        self._ended = anyio.Event()

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._messages is not None and not self._ended.is_set()

    async def connect(self) -> bool:
        """Open the stream of the server's own messages. Return false if the other gateway cannot be reached or does not run the server."""
        try:
            with anyio.move_on_after(CONNECT_SECONDS):
                messages = await self._stack.enter_async_context(self._ask({"kind": "messages"}))
                async for first in messages:
                    self._messages = messages if "open" in first else None
                    break
        except RequestFailure:
            pass
        if self._messages is None:
            await self.aclose()
        return self._messages is not None

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    def close(self) -> None:
        """Fail all pending requests."""
        self._ended.set()

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result (`Carrier.request`). After a lost connection, raise `OutcomeUnknown`."""
        meta: JsonObject = dict(request.meta or {})
        message: JsonObject = {"kind": "request", "method": request.method, "params": dict(request.params), "meta": meta}
        message["wantsProgress"] = request.progress is not None
        if request.ctx is not None:
            message["call"] = call_to_json(request.ctx)
        result: JsonObject | None = None
        failure: UpstreamError | PolicyDenied | None = None
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await self._ended.wait()
                await anyio.sleep(SETTLE_SECONDS)
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            try:
                result = await self._exchange(message, request)
            except (UpstreamError, PolicyDenied) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if result is None:
            raise OutcomeUnknown("the gateway that runs the server is gone", server=self._server)
        return result

    async def _exchange(self, message: JsonObject, request: OutgoingRequest) -> JsonObject:
        """Send a request, process the events of its response, and return the result. Raises the failures of `request`."""
        last: JsonObject = {}
        async with self._ask(message) as events, anyio.create_task_group() as questions:
            with contextlib.suppress(OutcomeUnknown):  # then `last` is not the last event of a complete response
                async for last in events:
                    if "progress" in last and request.progress is not None:
                        report(members_of(last["progress"]), request.progress)
                    elif "notification" in last and self._receiver is not None:
                        said = members_of(last["notification"])
                        await self._receiver.receive_notification(str(said["method"]), members_of(said.get("params")), request.ctx)
                    elif "ask" in last:
                        questions.start_soon(self._answer, last, request.ctx)
            questions.cancel_scope.cancel()
        if "failure" in last:
            raise failure_from_json(members_of(last["failure"]), self._server)
        if "result" not in last:
            raise OutcomeUnknown("the response ended early", server=self._server)
        return cast("JsonObject", last["result"])

    async def _answer(self, event: JsonObject, ctx: CallContext | None) -> None:
        asked = members_of(event["request"])
        answer: JsonObject = {"kind": "answer", "ask": event["ask"]}
        try:
            if self._receiver is None:
                raise RpcError(INTERNAL_ERROR, "The connection to the server is not ready.")
            answer["result"] = await self._receiver.answer_request(str(asked["method"]), members_of(asked.get("params")), ctx)
        except RpcError as error:
            answer["error"] = {"code": error.code, "message": error.message, "data": error.data}
        for _ in range(ANSWER_ATTEMPTS):  # the owner ignores a second copy of an answer; if the owner is gone, the request fails, too
            with contextlib.suppress(RequestFailure):
                async with self._ask(answer):
                    return
            await anyio.sleep(ANSWER_PAUSE_SECONDS)

    def _ask(self, message: JsonObject) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
        return self.channel.ask_owner(self._owner, self._server, to_json({"server": self._server, **message}))

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send nothing: the gateway that runs the process has carried out the handshake (`Carrier.notify`)."""

    _receiver: Receiver | None = None

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's own notifications to `receiver` until the connection ends (`Carrier.serve`)."""
        self._receiver = receiver
        task_status.started()
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await self._ended.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            try:
                async for event in self._messages or _no_messages():
                    if "notification" in event:
                        said = members_of(event["notification"])
                        await receiver.receive_notification(str(said["method"]), members_of(said.get("params")), None)
            except RequestFailure:
                pass
            tasks.cancel_scope.cancel()


async def _no_messages() -> AsyncIterator[JsonObject]:
    for nothing in ():
        yield nothing


def call_to_json(ctx: CallContext) -> JsonObject:
    """Return the facts of a call that the gateway which runs the server needs: the client, its session and its wishes."""
    facts, client = ctx.facts, ctx.facts.client
    return {
        "principal": facts.principal.id,
        "session": client.session_id,
        "era": client.era,
        "capabilities": dict(client.capabilities),
        "askSeconds": facts.ask_timeout_seconds,
        "logLevel": facts.log_level,
        "name": client.name,
    }


def failure_to_json(error: UpstreamError | PolicyDenied) -> JsonObject:
    """Return a failure of a request as JSON."""
    made: JsonObject = {"kind": type(error).__name__, "text": str(error)}
    if isinstance(error, Rejected):
        made |= {"code": error.code, "data": error.data}
    elif isinstance(error, Busy):
        made["seconds"] = error.retry_after_seconds
    elif isinstance(error, PolicyDenied):
        made |= {"rule": error.rule, "subject": error.subject}
    return made


def failure_from_json(failure: JsonMapping, server: str) -> UpstreamError | PolicyDenied:
    """Return the failure that `failure_to_json` has encoded. An unknown kind means that the call may have run."""
    kind, text = failure.get("kind"), str(failure.get("text"))
    if kind == "Rejected":
        return Rejected(text, server=server, code=int(cast("int", failure.get("code"))), data=failure.get("data"))
    if kind == "Busy":
        return Busy(text, server=server, retry_after_seconds=float(cast("float", failure.get("seconds"))))
    if kind == "PolicyDenied":
        return PolicyDenied(text, rule=str(failure.get("rule")), subject=str(failure.get("subject")))
    if kind in ("Unreachable", "NotReadyInTime", "Unauthorized"):
        return NotSent(text, server=server)
    return next((made(text, server=server) for made in _KINDS if made.__name__ == kind), OutcomeUnknown(text, server=server))
