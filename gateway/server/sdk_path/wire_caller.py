"""`WireCaller`: the way back to a client over the SDK session of one request.

Progress and logs ride the request's own stream; asks go over a legacy client's back-channel. A modern client has
none: asks of its calls are parked by `parked` instead.
"""

from __future__ import annotations

import secrets
from typing import Any

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

from gateway.errors import AskUnavailable, AskWithdrawn, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.protocol import CONNECTION_CLOSED
from gateway.server.clients import RequestContext, is_modern, legacy_profile, presence_of
from gateway.server.detached_caller import wants_level
from gateway.server.sdk_path.notification_rates import ThrottledLog, ThrottledProgress
from gateway.tools.ports import LogLevel, Presence, capability_of, undeclared


class _RelayedRequest(BaseModel):
    """A server-to-client request sent on exactly as it came."""

    method: str
    params: dict[str, Any] | None = None


class _RawResult(BaseModel):
    """A client's result kept exactly as it came."""

    model_config = ConfigDict(extra="allow")


class WireCaller:
    """Implements `Caller` for one request."""

    def __init__(self, ctx: RequestContext, tasks: anyio.abc.TaskGroup | None = None) -> None:
        """`tasks` runs what sends delayed progress, and the handler calls `finish`; without it progress is dropped."""
        self._ctx = ctx
        self._session: ServerSession = ctx.session
        self._progress = None if tasks is None else ThrottledProgress(self._session.report_progress, tasks)
        self._logs = ThrottledLog(self._send_log)
        self._request_id: RequestId | None = ctx.request_id
        self.log_level: LogLevel | None = None
        self._is_modern = is_modern(ctx)
        self._opened: list[str] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send `notifications/progress` where the client gave a token, at a bounded rate."""
        if self._progress is not None:
            await self._progress.report(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send `notifications/message` where the client asked for that level, at a bounded rate."""
        if wants_level(self.log_level, level):
            await self._logs.log(level, data, logger)

    async def finish(self) -> None:
        """Send the progress and the count of log messages that the rate limits held back. Call it before the result is sent."""
        if self._progress is not None:
            await self._progress.finish()
        await self._logs.finish()

    async def _send_log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        params = LoggingMessageNotificationParams(level=level, data=data, logger=logger)
        await self._session.send_notification(LoggingMessageNotification(params=params), related_request_id=self._request_id)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send the request to a legacy client and wait for its answer."""
        capability = capability_of(request)
        if self._is_modern or not legacy_profile(self._ctx, None).can(capability):  # a modern one that can is asked in results (`parked`)
            raise undeclared(request)
        related = ServerMessageMetadata(related_request_id=self._request_id) if self._session.can_send_request else None
        params, minted = _for_legacy(request)
        relayed = _RelayedRequest(method=request["method"], params=params)
        try:
            answer = await self._session.send_request(relayed, _RawResult, metadata=related)  # pyright: ignore[reportArgumentType]  # dumped unmodelled on purpose
        except NoBackChannelError:
            text = "The client keeps no channel open on which it could be asked."
            raise AskUnavailable(text, capability=capability) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise AskWithdrawn("The client's connection ended before it answered, so this did not go on.") from None
            raise ToolFailed(f"The client refused {request['method']}: {error.message}") from None
        except ValidationError:
            raise ToolFailed(f"The client's answer to {request['method']} is not valid.") from None
        result: JsonObject = answer.model_dump(mode="json", by_alias=True)
        if minted and result.get("action") == "accept":
            self._opened.append(minted)
        return result

    @property
    def presence(self) -> Presence | None:
        """Of the client, if the request is one of a 2025 session over HTTP."""
        return presence_of(self._ctx)

    @property
    def has_more(self) -> bool:
        """As `CloseableCaller.has_more`: URLs were opened."""
        return bool(self._opened)

    async def close(self) -> None:
        """The request is served: tell the client which URLs it opened are done with."""
        for elicitation_id in self._opened:
            notification = ElicitCompleteNotification(params=ElicitCompleteNotificationParams(elicitation_id=elicitation_id))
            await self._session.send_notification(notification, related_request_id=self._request_id)
        self._opened.clear()


def _for_legacy(request: JsonObject) -> tuple[JsonObject | None, str]:
    """The parameters of an ask as a 2025 client takes them, and the id made for a URL of a 2026 server, which has none."""
    if "params" not in request:
        return None, ""
    params: JsonObject = dict(request["params"])
    if params.get("mode") != "url" or params.get("elicitationId"):
        return params, ""
    params["elicitationId"] = secrets.token_urlsafe(16)
    return params, str(params["elicitationId"])


def is_call_result(result: JsonObject, version: str) -> bool:
    """Whether a version has this as what a call led to: the SDK would send an error, or of a 2026 result no more than its type."""
    try:
        return "content" in methods.serialize_server_result("tools/call", version, result)
    except ValidationError:
        return False
