"""Removes hidden text from a server's texts that are neither definitions nor results: requests for input, log lines, progress,
instructions.

Applies `hiddenText` of one source. Only requests for input can be refused; from all other texts hidden text is removed in both modes.
"""

from __future__ import annotations

from typing import cast

from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_text, strip_value
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, LogLevel
from gateway.upstream.gateway_chain import received_ask


def readable_ask(request: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """Return a server's request for input without hidden text, and with only the `_meta` that the gateway accepts.

    Raises:
        PolicyDenied: The request has hidden text, and policy refuses that.
    """
    if policy.hidden_text == "refuse" and isinstance(verdict := judge_hidden_text(request, "The request"), Reject):
        raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=server)
    return received_ask(request if policy.hidden_text == "allow" else cast("JsonObject", strip_value(request)))


def readable_asks(asks: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """Return the requests for input of a result, by key, each as `readable_ask` returns it."""
    readable: JsonObject = {}
    for key, ask in asks.items():
        readable[key] = readable_ask(cast("JsonObject", ask), policy, server) if isinstance(ask, dict) else ask
    return readable


def readable_text(text: str, policy: SourcePolicy) -> str:
    """Return a message of the server without hidden text, unless policy allows it."""
    return text if policy.hidden_text == "allow" else strip_text(text)


def readable_value(value: JsonValue, policy: SourcePolicy) -> JsonValue:
    """Return a JSON value from the server, such as log data, without hidden text in its strings, unless policy allows it."""
    return value if policy.hidden_text == "allow" else strip_value(value, keys=True)


def with_readable_progress(ctx: CallContext, policy: SourcePolicy) -> CallContext:
    """Return `ctx` with a caller that receives progress messages without hidden text."""
    if policy.hidden_text == "allow":
        return ctx
    return ctx.with_caller(_ReadableProgress(ctx.ports.caller))


class _ReadableProgress:
    """A caller that removes hidden text from progress messages. Log messages and requests for input are filtered elsewhere."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report on without hidden text."""
        await self._caller.progress(progress, total, strip_text(message) if message is not None else None)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Pass a log message on unchanged."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Pass a request for input on unchanged."""
        return await self._caller.ask(request, key)
