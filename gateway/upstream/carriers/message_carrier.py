"""`MessageCarrier`: base class of carriers whose channel transmits single JSON-RPC messages. It matches responses to requests by id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import anyio
import anyio.abc

from gateway.errors import OutcomeUnknown, RequestFailure, SessionGone
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import RpcError
from gateway.tools.context import CallContext
from gateway.upstream.carriers.carrier import ACKNOWLEDGE_SECONDS, CANCELLATION, Headers, OutgoingRequest, Progress, Receiver, report
from gateway.upstream.carriers.notification_dispatcher import NotificationDispatcher
from gateway.wire import rpc_envelope
from gateway.wire.jsonrpc import number_of, outcome_of


@dataclass(slots=True)
class _PendingRequest:
    progress: Progress | None
    settled: anyio.Event = field(default_factory=anyio.Event)
    outcome: JsonObject | RpcError | RequestFailure | None = None


class MessageCarrier(ABC):
    """Sends the requests of one session over a channel of JSON-RPC messages, which a subclass implements (`send`, `listen`)."""

    is_single_stream = True
    has_headers = True

    def __init__(self, server: str) -> None:
        self.server = server
        self.is_open = True
        self._last_id = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._dispatcher: NotificationDispatcher | None = None
        self.tasks: anyio.abc.TaskGroup | None = None
        """Task group for tasks that end with the connection; `None` before `serve`."""

    @abstractmethod
    async def send(self, message: JsonObject, headers: Headers, ctx: CallContext | None) -> None:
        """Send one message to the server for the call `ctx` (`None` outside calls). Raises `BrokenResourceError` on a closed channel."""

    async def until_open(self) -> None:  # noqa: B027  # most channels are open from the start
        """Wait until the channel is open, so that messages can be sent, or the carrier is closed."""

    @abstractmethod
    async def listen(self) -> None:
        """Receive messages of the server and pass each to `receive`, until the channel closes."""

    @abstractmethod
    def failure(self, method: str, error: RpcError) -> RequestFailure:
        """Convert a JSON-RPC error, received in response to a request with the method `method`, to a failure of the request."""

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result (`Carrier.request`)."""
        await self.until_open()
        if not self.is_open:
            raise SessionGone(f"The connection to {self.server!r} has ended.", server=self.server)
        self._last_id = number = self._last_id + 1
        meta = request.begin(number)
        params = {**request.params, "_meta": meta} if meta else request.params
        message = rpc_envelope.request(number, request.method, params or None)
        pending = self._pending[number] = _PendingRequest(request.progress)
        try:
            await self._exchange(number, message, request, pending)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._closed() from None
        finally:
            del self._pending[number]
        outcome = pending.outcome
        if isinstance(outcome, dict):
            return outcome
        if isinstance(outcome, RpcError):
            raise self.failure(request.method, outcome)
        raise outcome or self._closed()

    async def _exchange(self, number: int, message: JsonObject, request: OutgoingRequest, pending: _PendingRequest) -> None:
        try:
            await self.send(message, request.headers, request.ctx)
            await pending.settled.wait()
        except anyio.get_cancelled_exc_class():
            if request.method != "initialize":  # the specification forbids to cancel `initialize`
                with anyio.CancelScope(shield=True), anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                    await self.notify(CANCELLATION, {"requestId": number, "reason": "caller cancelled"}, ())
            raise

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to the server (`Carrier.notify`). Raises nothing if it cannot be sent."""
        try:
            await self.send(rpc_envelope.notification(method, params), headers, None)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the pending requests fail because of the closed channel

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's requests and notifications to `receiver` until the connection ends (`Carrier.serve`)."""
        try:
            async with anyio.create_task_group() as self.tasks:
                self._dispatcher = NotificationDispatcher(receiver, self.tasks, self.send_answer)
                task_status.started()
                await self.listen()
                self.tasks.cancel_scope.cancel()
        finally:
            self.close()

    @abstractmethod
    async def send_answer(self, message: bytes) -> None:
        """Send the JSON of a response to a request of the server. Raises nothing if it cannot be sent."""

    def receive(self, message: JsonObject) -> None:
        """Process a message of the server: a response ends its pending request; a request or notification goes to the `Receiver`.

        Progress on a pending request goes to `OutgoingRequest.progress` instead.
        """
        if "method" not in message:
            number = message.get("id", -1)
            self.settle(number_of(number), outcome_of(message, number))
        elif not self._reports_progress(message) and self._dispatcher is not None:
            self._dispatcher.dispatch(message, self.call_of_message())

    def call_of_message(self) -> CallContext | None:
        """Return the call to which the last received message belongs; `None` if the channel does not show it."""
        return None

    def settle(self, number: int, outcome: JsonObject | RpcError | RequestFailure | None) -> None:
        """End the pending request with the id `number`, with a result or a failure. An outcome for an unknown id is dropped."""
        if (pending := self._pending.get(number)) is not None and outcome is not None:
            pending.outcome = outcome
            pending.settled.set()

    def _reports_progress(self, message: JsonObject) -> bool:
        if message["method"] != "notifications/progress":
            return False
        params: JsonMapping = message.get("params") or {}
        pending = self._pending.get(number_of(params.get("progressToken")))
        if pending is None or pending.progress is None:
            return False
        report(params, pending.progress)
        return True

    def close(self) -> None:
        """Fail all pending requests, and accept no further requests."""
        self.is_open = False
        for pending in self._pending.values():
            pending.settled.set()

    def _closed(self) -> OutcomeUnknown:
        return OutcomeUnknown("the connection closed", server=self.server)
