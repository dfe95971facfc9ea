"""Texts of a server that are neither definition nor result: asks, log lines, progress, instructions, error messages.

Applies `hiddenText` of one source to them. What is refused is an ask; a log line or message has nobody to be refused
to, so hidden text is taken out of it in both modes.
"""

from __future__ import annotations

import dataclasses
from typing import cast

from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_text, strip_value
from gateway.tools.context import CallContext, Caller, LogLevel
from gateway.upstream.hop import received_ask


def readable_ask(request: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """A server's request for input, without hidden text and with the `_meta` that the gateway takes.

    Raises:
        PolicyDenied: It has hidden text, and policy refuses that.
    """
    if policy.hidden_text == "refuse" and isinstance(verdict := judge_hidden_text(request, "The request"), Reject):
        raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=server)
    return received_ask(request if policy.hidden_text == "allow" else cast("JsonObject", strip_value(request)))


def readable_asks(asks: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """As `readable_ask`, of each request for input in a result, by key."""
    readable: JsonObject = {}
    for key, ask in asks.items():
        readable[key] = readable_ask(cast("JsonObject", ask), policy, server) if isinstance(ask, dict) else ask
    return readable


def readable_text(text: str, policy: SourcePolicy) -> str:
    """A message of the server, without hidden text unless that is allowed."""
    return text if policy.hidden_text == "allow" else strip_text(text)


def readable_value(value: JsonValue, policy: SourcePolicy) -> JsonValue:
    """A logged value, likewise."""
    return value if policy.hidden_text == "allow" else strip_value(value, keys=True)


def hearing_readably(ctx: CallContext, policy: SourcePolicy) -> CallContext:
    """`ctx`, whose caller wants progress, with one that hears its messages without hidden text."""
    if policy.hidden_text == "allow":
        return ctx
    return dataclasses.replace(ctx, caller=_ReadableProgress(ctx.caller))


class _ReadableProgress:
    """A caller behind a filter for progress messages; logs and asks are cleaned where they arrive."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Passed on."""
        await self._caller.progress(progress, total, strip_text(message) if message is not None else None)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Passed on."""
        return await self._caller.ask(request, key)
