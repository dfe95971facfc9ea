"""Waits for calls of the fast path."""

from __future__ import annotations

import anyio

from gateway.server.in_flight import InFlightCall


async def settled(call: InFlightCall) -> None:
    """Wait until the call has ended or was handed over."""
    event = anyio.Event()
    call.when_settled(event.set)
    await event.wait()
