"""`HttpCarriers`: chooses the carrier of each request to a server over streamable HTTP: one without the SDK if it can, else the SDK's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.abc

from gateway.errors import Malformed, OutcomeUnknown
from gateway.json_types import JsonMapping, JsonObject
from gateway.upstream.carriers.carrier import Headers, OutgoingRequest, Receiver
from gateway.upstream.carriers.http_carrier import HttpCarrier, NeedsSdk
from gateway.upstream.carriers.sdk_carrier import SdkCarrier, Streams

logger = logging.getLogger(__name__)

OnSession = Callable[[Mapping[str, str]], None]
"""Called when a 2025 session is up, with the headers that identify it."""


class HttpCarriers:
    """Sends the requests of one session. HTTP has no connection that ends, so it stays open until the SDK's streams end."""

    is_single_stream = False
    has_headers = True

    def __init__(self, carrier: HttpCarrier, open_streams: Callable[[OnSession], AbstractAsyncContextManager[Streams]]) -> None:
        """No side effects."""
        self.direct = carrier
        """Carries requests of 2026."""
        self.in_session: HttpCarrier | None = None
        """Carries requests of a 2025 session that is up."""
        self._sdk = SdkCarrier(carrier.server, lambda: open_streams(self._join))
        self._is_direct = True
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        """As `Carrier.is_open`."""
        return self._sdk.is_open

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """As `Carrier.request`."""
        carrier = self.direct if request.is_modern else self.in_session
        if carrier is None or not self._is_direct or (request.progress is not None and not request.is_modern):
            # A 2025 server may send progress on its standalone stream, which the SDK reads.
            return await self._sdk.request(request)
        try:
            return await carrier.request(request)
        except NeedsSdk:
            pass
        except Malformed:
            raise
        except OutcomeUnknown:
            if request.method != "server/discover":
                raise
            # Harmless to repeat, and the SDK's client reads responses that the direct one does not.
        logger.info("requests need the SDK path for this session server=%s", carrier.server)
        self._is_direct = False
        return await self._sdk.request(request)

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """As `Carrier.notify`."""
        if self._sdk.is_used:
            await self._sdk.notify(method, params, headers)

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """As `Carrier.serve`."""
        self.direct.receiver = receiver
        async with anyio.create_task_group() as self._tasks:
            await self._sdk.serve(receiver, task_status=task_status)
            self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        """As `Carrier.close`."""
        self.direct.close()
        self._sdk.close()

    def _join(self, session: Mapping[str, str]) -> None:
        """Send the requests of a 2025 session without the SDK from now on."""
        from gateway.upstream.carriers.http_session_carrier import HttpSessionCarrier

        if self.direct.receiver is not None and self._tasks is not None:
            self.in_session = HttpSessionCarrier(self.direct, session, self.direct.receiver, self._tasks, self._leave)

    def _leave(self) -> None:
        self.in_session = None
