"""`ClientProfile`: the name, protocol version and capabilities of a client. `Caller`, `Presence`: interfaces from a call to its client."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast, get_args

from gateway.errors import InputUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue

Era = Literal["legacy", "modern"]
"""The protocol era of a client: `legacy` for MCP 2025-11-25 and older (handshake, sessions), `modern` for 2026-07-28 (stateless)."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
_SEVERITY: dict[str, int] = {level: rank for rank, level in enumerate(get_args(LogLevel))}


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """The name, version, protocol version and capabilities that the client of a call declares.

    Name and version are not verified, so they are shown but never trusted.
    """

    era: Era = "modern"
    protocol_version: str = ""
    name: str = ""
    version: str = ""
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """The client capabilities as MCP sends them (`sampling`, `elicitation`, `roots`, `extensions`, …)."""
    session_id: str | None = None
    """Id of the client's session (MCP 2025-11-25 and older), over HTTP or stdio; `None` for stateless 2026-07-28 requests."""

    def can(self, capability: str) -> bool:
        """Return whether the client declares a capability, given as a dotted path: `sampling`, `elicitation.url`, `sampling.tools`.

        By MCP 2025-11-25, `elicitation: {}` means that the client supports only forms, so it counts as `elicitation.form`.
        """
        if capability == "elicitation.form":
            declared = self.capabilities.get("elicitation")
            return isinstance(declared, Mapping) and ("form" in declared or "url" not in declared)
        node: JsonValue = self.capabilities
        for part in capability.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return False
            node = cast("JsonMapping", node)[part]
        return node is not None and node is not False

    @property
    def takes_input_requests(self) -> bool:
        """Whether the client can receive requests for input: it declares sampling, elicitation or roots."""
        return any(map(self.can, ("sampling", "elicitation", "roots")))


class Presence(Protocol):
    """Protocol: tracks whether the client of a request is connected. Used in 2025 sessions, whose requests survive a lost connection."""

    @property
    def is_here(self) -> bool:
        """Whether the client has an open stream, through which messages reach it."""
        ...

    async def here(self) -> None:
        """Wait until the client has an open stream, through which messages reach it."""
        ...

    def need(self) -> None:
        """Record that the request waits for the client.

        From now on, a lost client ends the request. Each call of `need` needs its own call of `release`.
        """
        ...

    def release(self) -> None:
        """Undo one call of `need`. When all calls of `need` are undone, a lost client no longer ends the request."""
        ...

    def waiting(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context manager for a wait for a person or in a queue. Inside it, a lost client ends the request, as after `need`."""
        ...


class Caller(Protocol):
    """Protocol through which a call sends progress, log messages and requests for input to its caller, until the call returns."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress notification to the caller. The notification is dropped if the caller did not request progress."""
        ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message to the caller. The message is dropped if the caller did not request messages of this level."""
        ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input (an MCP request with `method` and `params`) to the client, and return its result.

        `key` identifies the request inside a durable task (`CallContext.question`), and is ignored elsewhere. `CallContext.ask` enforces
        the deadline.

        Raises:
            InputUnavailable: The client did not declare the capability, or cannot be reached.
        """
        ...


class NoCaller:
    """The `Caller` implementation for calls without a client: it drops all messages and refuses requests for input."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress report."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Drop the log message."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `InputUnavailable`, because the call has no client that could answer."""
        method = str(request.get("method", ""))
        raise InputUnavailable(f"This call has no client that could answer {method!r}.", capability=capability_of(request))


class PassingCaller:
    """Base class of `Caller` implementations that pass progress, log messages and requests for input to another `Caller`.

    A subclass overrides the methods for the messages that it changes.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report on to the wrapped `Caller`."""
        await self._caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Pass a log message on to the wrapped `Caller`."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Pass a request for input on to the wrapped `Caller`, and return the answer."""
        return await self._caller.ask(request, key)


def capability_of(request: JsonMapping) -> str:
    """Return the client capability that a request for input requires: `sampling`, `elicitation.form`, `elicitation.url` or `roots`."""
    match request.get("method"):
        case "sampling/createMessage":
            return "sampling"
        case "roots/list":
            return "roots"
        case _:
            params = cast("JsonMapping", request.get("params") or {})
            return "elicitation.url" if params.get("mode") == "url" else "elicitation.form"


def undeclared(request: JsonMapping) -> InputUnavailable:
    """Return the error for a request for input that cannot be sent because the client does not declare the required capability."""
    capability = capability_of(request)
    return InputUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)


def nested_capability(capability: str) -> JsonObject:
    """Convert a dotted capability to nested objects, for the error field `requiredCapabilities`: `a.b` → `{"a": {"b": {}}}`."""
    nested: JsonObject = {}
    for part in reversed(capability.split(".")):
        nested = {part: nested}
    return nested


def severity(level: str) -> int:
    """Return the rank of a log level, which is higher for a more severe level. Unknown levels have the rank of `info`."""
    return _SEVERITY.get(level, _SEVERITY["info"])
