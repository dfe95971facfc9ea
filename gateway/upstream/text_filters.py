"""Removes hidden text from requests for input, log messages, progress messages and instructions of a remote server.

Hidden text is text that a person does not see but a model reads, such as zero-width characters and ANSI sequences (`policy.hidden_text`).
With the policy key `hiddenText: allow`, it is kept. With `refuse`, a request for input that has it is refused. Otherwise it is removed.
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
from gateway.upstream.gateway_chain import received_input_request


def readable_input_request(request: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """Return a server's request for input without hidden text, and with only the `_meta` keys that the gateway accepts.

    Hidden text is text that a person does not see but a model reads. With the policy key `hiddenText: allow`, it is kept.

    Raises:
        PolicyDenied: The request has hidden text, and the policy's `hiddenText` is `refuse`.
    """
    if policy.hidden_text == "refuse" and isinstance(verdict := judge_hidden_text(request, "The request"), Reject):
        raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=server)
    return received_input_request(request if policy.hidden_text == "allow" else cast("JsonObject", strip_value(request)))


def readable_input_requests(asks: JsonObject, policy: SourcePolicy, server: str) -> JsonObject:
    """Apply `readable_input_request` to each request for input of an `input_required` result, and return them by key."""
    readable: JsonObject = {}
    for key, ask in asks.items():
        readable[key] = readable_input_request(cast("JsonObject", ask), policy, server) if isinstance(ask, dict) else ask
    return readable


def readable_text(text: str, policy: SourcePolicy) -> str:
    """Return a message of the server without text that people do not see but models read, unless policy allows such text."""
    return text if policy.hidden_text == "allow" else strip_text(text)


def readable_value(value: JsonValue, policy: SourcePolicy) -> JsonValue:
    """Return a JSON value from the server, such as log data, without hidden text in its strings.

    Hidden text is characters that people do not see, but models read. If policy allows it, return the value unchanged.
    """
    return value if policy.hidden_text == "allow" else strip_value(value, keys=True)


def with_readable_progress(ctx: CallContext, policy: SourcePolicy) -> CallContext:
    """Return a copy of `ctx` that removes hidden text (not seen by people, but read by models) from progress messages to the caller.

    Return `ctx` itself if policy allows hidden text.
    """
    if policy.hidden_text == "allow":
        return ctx
    return ctx.with_caller(_ReadableProgress(ctx.ports.caller))


class _ReadableProgress:
    """A `Caller` that removes hidden text from progress messages, and passes all messages to another `Caller`.

    Hidden text is text that a person does not see but a model reads. Log messages and requests for input are passed unchanged, because
    they were filtered before.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report to the caller, without text in its message that a person would not see but a model would read."""
        await self._caller.progress(progress, total, strip_text(message) if message is not None else None)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Pass a log message to the caller unchanged."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Pass a request for input to the caller unchanged, and return the answer."""
        return await self._caller.ask(request, key)
