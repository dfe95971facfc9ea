"""`ServerMessages`: processes the requests and notifications that a server sends, and finds the calls to which they belong.

`Session` (`server_session`) uses one object per session.
"""

from __future__ import annotations

import logging
from typing import Protocol

import anyio

from gateway.errors import GatewayError, InputUnavailable, ModelError
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, RpcError
from gateway.tools.context import CallContext
from gateway.tools.ports import nested_capability
from gateway.upstream.serial_queue import SETTLE_SECONDS

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0
"""Seconds between the end of a call and the rejection of its open requests for input.

A server that gets the rejection before the cancellation of the call may carry on with the call.
"""

MAX_OPEN_REQUESTS = 1_000
"""Maximum number of requests that a server has open on one session. Further requests are rejected."""

MAX_PENDING_NOTIFICATIONS = 1_000
"""Number of notifications on one session that may wait for slow callers. Above it, log messages are dropped; other notifications wait."""


class SessionHooks(Protocol):
    """The interface that receives the requests and notifications of the server of one session. Each method call runs in its own task."""

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Return the result of a server's request (such as `sampling/createMessage`). May raise `GatewayError`.

        `ctx` is the call to which the request belongs, `None` if that is unknown.
        """
        ...

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Process a notification of the server. `ctx` is the call to which it belongs, `None` if that is unknown."""
        ...


class ServerMessages:
    """Processes the requests and notifications that the server of one session sends, and finds the calls to which they belong.

    The methods `answer_request` and `receive_notification` are those of the interface `Receiver` (`carriers.carrier`).
    """

    def __init__(self, server: str, hooks: SessionHooks) -> None:
        self._server = server
        self._hooks = hooks
        self._running: dict[int, CallContext] = {}
        """The running calls, by the key passed to `begin_call`. A message of the server that names no call may belong to any of them."""
        self._open: dict[anyio.CancelScope, set[int]] = {}
        """The server's requests that are being answered: cancel scope of the request → keys of the calls to which it may belong."""
        self._withdrawn: set[anyio.CancelScope] = set()
        """Cancel scopes of the server's requests that will be rejected, because their calls have ended."""
        self._answering = self._notifying = 0

    def begin_call(self, key: int, ctx: CallContext) -> None:
        """Register a running call. Messages of the server that do not name a call may belong to it."""
        self._running[key] = ctx

    def end_call(self, key: int, method: str) -> None:
        """Unregister a call that has ended, and cancel the server's open requests that cannot belong to another running call.

        If `method` is `tasks/get`, which polls a task, no request is cancelled, because the server's requests belong to the task.
        """
        self._running.pop(key, None)
        for scope, calls in list(self._open.items()) if self._open else ():
            calls.discard(key)
            if not calls and method != "tasks/get":
                scope.cancel()
                self._withdrawn.add(scope)
                del self._open[scope]

    @property
    def settle_seconds(self) -> float:
        """Seconds until open requests for input of ended calls are rejected and the server could react; 0 if no such request is open."""
        return CANCEL_SECONDS + SETTLE_SECONDS if self._withdrawn else 0

    async def answer_request(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Return the result of a server's request: `ping`, or a request for input, which `SessionHooks` answers. Raises `RpcError`.

        `ctx` is the call to which the request belongs, `None` if the request does not name it.
        """
        if method == "ping":
            return {}
        if method not in ("sampling/createMessage", "elicitation/create", "roots/list"):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        if self._answering >= MAX_OPEN_REQUESTS:
            raise RpcError(INTERNAL_ERROR, f"{MAX_OPEN_REQUESTS} requests wait for their answers already; wait for some of them.")
        scope, calls = anyio.CancelScope(), {key for key, call in self._running.items() if ctx is None or call is ctx}
        if calls:
            self._open[scope] = calls
        self._answering += 1
        try:
            with scope:
                return await self._answer(method, params, ctx or self._only_caller())
            await anyio.sleep(CANCEL_SECONDS)
        finally:
            self._answering -= 1
            self._open.pop(scope, None)
            self._withdrawn.discard(scope)
        raise RpcError(INVALID_REQUEST, "The call that this request belongs to has ended.")

    async def _answer(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        try:
            return await self._hooks.answer({"method": method, "params": dict(params)}, ctx)
        except ModelError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from None
        except InputUnavailable as error:
            # Servers relay unexpected errors to their client, so our caller can see which capability its client would have to declare.
            data = {"requiredCapabilities": nested_capability(error.capability)} if error.capability else None
            raise RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY if data else INVALID_REQUEST, str(error), data) from None
        except GatewayError as error:
            raise RpcError(INVALID_REQUEST, str(error)) from None
        except Exception:  # like the SDK's dispatcher: a bug in the gateway then fails only this request
            logger.exception("request not answered server=%s method=%s", self._server, method)
            raise RpcError(INTERNAL_ERROR, "Internal server error") from None

    async def receive_notification(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Pass a notification of the server to `SessionHooks`. Drop a log message if `MAX_PENDING_NOTIFICATIONS` notifications wait.

        Progress and cancellation are ignored here, because the carriers, which receive the messages, process them.
        """
        if method in ("notifications/progress", "notifications/cancelled"):
            return
        if self._notifying >= MAX_PENDING_NOTIFICATIONS and method == "notifications/message":
            logger.debug("log message dropped because earlier ones still wait server=%s", self._server)
            return
        self._notifying += 1
        try:
            await self._hooks.notified(method, params, ctx or self._only_caller())
        except Exception:  # like the SDK's dispatcher: a failure of the caller must not end the connection to the server
            logger.exception("notification not processed server=%s method=%s", self._server, method)
        finally:
            self._notifying -= 1

    def _only_caller(self) -> CallContext | None:
        """Return the call to which a message of the server that names no call is attributed.

        This is the only running call. If several calls run, it is the latest call if all of them belong to one client session, else `None`.
        """
        calls = list(self._running.values())
        if len(calls) <= 1:
            return calls[0] if calls else None
        owners = {c.facts.client.session_id for c in calls}
        return calls[-1] if len(owners) == 1 and None not in owners else None
