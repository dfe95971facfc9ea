"""Prepares each call of an `MCPTool`: adds the program's values to the arguments, and answers the server's sampling requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from gateway.errors import InputUnavailable, ToolFailed
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.metadata import judge_meta
from gateway.tools.context import CallContext
from gateway.tools.ports import NoCaller


class SamplingCaller(NoCaller):
    """The object (`Caller`) that gets the server's messages during a call of an `MCPTool`: answers sampling, and passes progress on."""

    def __init__(self, answer: Callable[[JsonObject, CallContext], Awaitable[JsonObject]], outer: CallContext) -> None:
        """`answer` returns the answer to a sampling request. It receives the request and `outer`, the context of the program's call."""
        self._answer = answer
        self._outer = outer

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report of the server to the caller of the program's call (`outer`)."""
        await self._outer.ports.caller.progress(progress, total, message)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Return the answer to a sampling request. Raises `InputUnavailable` for any other request for input."""
        if request.get("method") == "sampling/createMessage":
            return await self._answer(request, self._outer)
        raise InputUnavailable(f"A program's MCP tool does not answer {str(request.get('method'))!r}.", capability="")


def with_host_values(guarded: GuardedTool, arguments: JsonObject, ctx: CallContext) -> tuple[JsonObject, CallContext]:
    """Add the values that the program passed to the run (`function_invocation_kwargs`) to a call's arguments and context, and return both.

    Only values for arguments that the tool accepts are added, and the model's arguments take precedence. A value `_meta` of the program is
    added to the request's `_meta`; `_meta` among the model's arguments is never sent.

    Raises:
        ToolFailed: The program's `_meta` is malformed, or a value to be sent is not JSON.
    """
    host: JsonObject = ctx.run.invocation.kwargs if ctx.run.invocation is not None else {}
    if (meta := host.get("_meta")) is not None:
        if isinstance(verdict := judge_meta(meta), Reject):
            raise ToolFailed(verdict.reason)
        _check_json("_meta", meta)
        ctx = ctx.with_meta({**ctx.facts.meta, **meta})
    taken = {name: value for name, value in host.items() if name in guarded.rules.arguments.accepted and name not in arguments}
    for name, value in taken.items():
        _check_json(name, value)
    return {**taken, **arguments}, ctx


def _check_json(name: str, value: JsonValue) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"The program's value for {name!r} cannot be sent, because it is not JSON: {error}") from None


def with_properties(schema: JsonObject) -> JsonObject:
    """Return a JSON Schema with `properties` added if it is an object schema without them, because agent-framework expects the keyword."""
    return {**schema, "properties": {}} if schema.get("type") == "object" and "properties" not in schema else schema
