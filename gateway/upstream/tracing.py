"""One request to a server within a span of our own, called by `Session` if instrumentation is on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from gateway.errors import UpstreamRefused
from gateway.json_types import JsonMapping, JsonObject
from gateway.telemetry.operations import traced


async def request_in_span(
    method: str,
    wire: JsonObject,
    deliver: Callable[[JsonObject], Awaitable[JsonObject]],
    *,
    protocol_version: str,
    is_pipe: bool,
    is_probing: bool,
) -> JsonObject:
    """Send a request with the span's trace context in its `_meta`.

    `is_probing`: the request finds out the server's era. A refusal, or no answer in time, says 2025 and is not an error.
    """

    async def send(carrier: dict[str, str]) -> JsonObject:
        meta = {**cast("JsonMapping", wire.get("_meta") or {}), **carrier}
        return await deliver({**wire, "_meta": meta} if meta else wire)

    return await traced(
        method,
        wire,
        send,
        protocol_version=protocol_version,
        transport="pipe" if is_pipe else "tcp",
        code_of=lambda error: error.code if isinstance(error, UpstreamRefused) else None,
        is_expected=lambda error: is_probing and (isinstance(error, UpstreamRefused) or not isinstance(error, Exception)),
    )
