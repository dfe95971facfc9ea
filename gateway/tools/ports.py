"""`ClientProfile`: what a client declares. `Caller` and `Presence`: interfaces through which a call reaches its client."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast, get_args

from gateway.errors import AskUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue

Era = Literal["legacy", "modern"]
"""`legacy`: protocol ≤ 2025-11-25 (handshake, sessions). `modern`: 2026-07-28 (stateless)."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
_SEVERITY: dict[str, int] = {level: rank for rank, level in enumerate(get_args(LogLevel))}


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """What the client of a call declares. Its name and version are not verified: they are shown, and never trusted."""

    era: Era = "modern"
    protocol_version: str = ""
    name: str = ""
    version: str = ""
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Declared capabilities in wire form (`sampling`, `elicitation`, `roots`, `extensions`, …)."""
    session_id: str | None = None
    """Id of the 2025 session, over HTTP or stdio; `None` in the 2026 era, whose requests are stateless."""

    def can(self, capability: str) -> bool:
        """Whether the client declares the capability with this dotted path: `sampling`, `elicitation.url`, `sampling.tools`.

        `elicitation: {}` means form only (MCP 2025-11-25), so `elicitation.form` is then declared.
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
    def can_be_asked(self) -> bool:
        """Whether the client declares sampling, elicitation or roots."""
        return any(map(self.can, ("sampling", "elicitation", "roots")))


class Presence(Protocol):
    """Tracks whether the client of a request can be reached, for requests of 2025 sessions, which survive a lost connection."""

    @property
    def is_here(self) -> bool:
        """Whether the client has a stream open."""
        ...

    async def here(self) -> None:
        """Wait until the client has a stream open."""
        ...

    def need(self) -> None:
        """From now on, end the request if its client is lost. Each call needs its own `release`."""
        ...

    def release(self) -> None:
        """Undo one call of `need`."""
        ...

    def waiting(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context manager to enter around a wait for a person or a queue: it calls `need`, and `release` at the end."""
        ...


class Caller(Protocol):
    """The interface through which a call sends progress, log messages and requests for input to its caller, until it returns."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress report, which is dropped if the caller did not request progress."""
        ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message, which is dropped if the caller did not request messages of this level."""
        ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input (`{"method", "params"}`, wire form) to the client, and return its result.

        `key` identifies the question inside a durable task (`CallContext.question`), and is ignored elsewhere. `CallContext.ask` enforces
        the deadline.

        Raises:
            AskUnavailable: The client did not declare the capability, or cannot be reached.
        """
        ...


class NoCaller:
    """The `Caller` of calls without a client: it drops messages and refuses requests for input."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress report."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Drop the log message."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `AskUnavailable`."""
        method = str(request.get("method", ""))
        raise AskUnavailable(f"This call has no client that could answer {method!r}.", capability=capability_of(request))


class PassingCaller:
    """Base class of `Caller`s that pass progress, log messages and requests for input to another `Caller`, some of them changed."""

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
    """Return the client capability that a request for input needs: `sampling`, `elicitation.form`, `elicitation.url` or `roots`."""
    match request.get("method"):
        case "sampling/createMessage":
            return "sampling"
        case "roots/list":
            return "roots"
        case _:
            params = cast("JsonMapping", request.get("params") or {})
            return "elicitation.url" if params.get("mode") == "url" else "elicitation.form"


def undeclared(request: JsonMapping) -> AskUnavailable:
    """Return the error for a request for input whose capability the client does not declare."""
    capability = capability_of(request)
    return AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)


def nested_capability(capability: str) -> JsonObject:
    """Return a capability in the form of the error field `requiredCapabilities`: `elicitation.url` → `{"elicitation": {"url": {}}}`."""
    nested: JsonObject = {}
    for part in reversed(capability.split(".")):
        nested = {part: nested}
    return nested


def severity(level: str) -> int:
    """Return the rank of a log level: the more severe, the higher. Unknown levels count as `info`."""
    return _SEVERITY.get(level, _SEVERITY["info"])
