"""`WireCaller`: sends the messages of a call or read to its client, with the MCP SDK; implements `Caller`.

Progress and log messages are sent on the request's stream. Requests for input are sent to a 2025 client as JSON-RPC requests; a 2026 client
receives them in results (`parked`).
"""

from __future__ import annotations

import secrets
from typing import Any, cast

import anyio.abc
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    ElicitCompleteNotification,
    ElicitCompleteNotificationParams,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    RequestId,
    methods,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.errors import InputUnavailable, InputWithdrawn, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.protocol import CONNECTION_CLOSED
from gateway.server.clients import RequestContext, is_modern, legacy_profile, presence_of, scope_of_request
from gateway.server.detached_caller import wants_level
from gateway.server.replica_routes import REPLICA_SCOPE_KEY, question_id
from gateway.server.sdk_path.notification_rates import ThrottledLog, ThrottledProgress
from gateway.tools.ports import LogLevel, Presence, capability_of, undeclared


class _RelayedRequest(BaseModel):
    """A JSON-RPC request that the gateway sends to a client. Its parameters are not validated by the MCP SDK's models."""

    method: str
    params: dict[str, Any] | None = None


class _RawResult(BaseModel):
    """A client's JSON-RPC result, whose fields are kept as they are, without validation by the MCP SDK's models."""

    model_config = ConfigDict(extra="allow")


class WireCaller:
    """Sends progress, log messages and requests for input of one request to its client, with the MCP SDK; implements `Caller`."""

    def __init__(self, ctx: RequestContext, tasks: anyio.abc.TaskGroup | None = None) -> None:
        """`ctx` is the SDK's context of the request. Delayed progress is sent in the task group `tasks`; with `None`, progress is dropped.

        If the request may send progress or log messages, its handler must call `finish` before it returns the result.
        """
        self._ctx = ctx
        self._session: ServerSession = ctx.session
        self._progress = None if tasks is None else ThrottledProgress(self._session.report_progress, tasks)
        self._logs = ThrottledLog(self._send_log)
        self._request_id: RequestId | None = ctx.request_id
        self.log_level: LogLevel | None = None
        self._is_modern = is_modern(ctx)
        self._opened: list[str] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress notification at a bounded rate, if the client sent a progress token with its request."""
        if self._progress is not None:
            await self._progress.report(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message (`notifications/message`) at a bounded rate.

        The message is dropped if its level is below the client's log level, or if a 2026 client declared no log level.
        """
        if wants_level(self.log_level, level):
            await self._logs.log(level, data, logger)

    async def finish(self) -> None:
        """Send the last progress report if the rate limit delayed it, and a message with the number of dropped log messages, if any.

        Call this before the result of the request is sent.
        """
        if self._progress is not None:
            await self._progress.finish()
        await self._logs.finish()

    async def _send_log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        params = LoggingMessageNotificationParams(level=level, data=data, logger=logger)
        await self._session.send_notification(LoggingMessageNotification(params=params), related_request_id=self._request_id)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input to a 2025 client, and return its answer.

        Raises:
            InputUnavailable: The client cannot be asked: it did not declare the capability, has no stream open, or is a 2026 client.
            InputWithdrawn: The client's connection ended before the answer.
            ToolFailed: The client answered with an error or an invalid result.
        """
        capability = capability_of(request)
        if self._is_modern or not legacy_profile(self._ctx, None).can(capability):  # a capable 2026 client is asked in results (`parked`)
            raise undeclared(request)
        related = ServerMessageMetadata(related_request_id=self._request_id) if self._session.can_send_request else None
        params, minted = _for_legacy(request)
        relayed = _RelayedRequest(method=request["method"], params=params)
        try:
            answer = await self._send(relayed, related)
        except NoBackChannelError:
            text = "The client has no open stream for requests from the gateway."
            raise InputUnavailable(text, capability=capability) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise InputWithdrawn("The client's connection ended before it answered, so the call was ended.") from None
            raise ToolFailed(f"The client refused {request['method']}: {error.message}") from None
        except ValidationError:
            raise ToolFailed(f"The client's answer to {request['method']} is not valid.") from None
        result: JsonObject = answer.model_dump(mode="json", by_alias=True)
        if minted and result.get("action") == "accept":
            self._opened.append(minted)
        return result

    async def _send(self, request: _RelayedRequest, related: ServerMessageMetadata | None) -> _RawResult:
        """Send a request to the client and return its result.

        If the gateway has replicas, the JSON-RPC id names this replica, because the client may send its answer to any of them.
        """
        scope = scope_of_request(self._ctx)
        replica = "" if scope is None else scope.get(REPLICA_SCOPE_KEY, "")
        if not replica:
            return await self._session.send_request(request, _RawResult, metadata=related)  # pyright: ignore[reportArgumentType]  # sent as it is, without an SDK model
        session = cast("Any", self._session)  # the SDK's public method does not take an id
        channel = session._request_outbound if related is not None else session._connection.outbound
        number = question_id(replica, secrets.token_urlsafe(9))
        sent = request.model_dump(mode="json", exclude_none=True)  # as the public method sends it
        return _RawResult.model_validate(await channel.send_raw_request(sent["method"], sent.get("params"), {"request_id": number}))

    @property
    def presence(self) -> Presence | None:
        """Object that reports whether the client of the request is reachable, in a 2025 session over HTTP; `None` for other requests."""
        return presence_of(self._ctx)

    @property
    def has_more(self) -> bool:
        """Whether `close` has notifications to send, because the client has opened URLs that requests for input named."""
        return bool(self._opened)

    async def close(self) -> None:
        """Notify a 2025 client that requests for input whose URLs it opened are complete (`notifications/elicitation/complete`).

        These are the requests to which the gateway added the `elicitationId`.
        """
        for elicitation_id in self._opened:
            notification = ElicitCompleteNotification(params=ElicitCompleteNotificationParams(elicitation_id=elicitation_id))
            await self._session.send_notification(notification, related_request_id=self._request_id)
        self._opened.clear()


def _for_legacy(request: JsonObject) -> tuple[JsonObject | None, str]:
    """Convert the parameters of a request for input to the form that 2025 clients require. Return them, and the added `elicitationId`.

    The 2025 protocol requires an `elicitationId` in a request to open a URL, and 2026 servers do not send it. If no id was added, the
    second value is empty.
    """
    if "params" not in request:
        return None, ""
    params: JsonObject = dict(request["params"])
    if params.get("mode") != "url" or params.get("elicitationId"):
        return params, ""
    params["elicitationId"] = secrets.token_urlsafe(16)
    return params, str(params["elicitationId"])


def is_sdk_result(result: JsonObject, version: str) -> bool:
    """Whether the MCP SDK's models accept a `tools/call` result in protocol version `version`. The SDK does not send other results."""
    try:
        return "content" in methods.serialize_server_result("tools/call", version, result)
    except ValidationError:
        return False
