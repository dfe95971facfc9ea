"""`Link`: the one connection of an `MCPTool`: opened, found broken, opened again once, closed.

Either a session of our own, kept by an `Owner` task, or one that the program keeps (`OwnedSession`), which is only used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, Request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict

from gateway.errors import UpstreamError, UpstreamLost, UpstreamRefused, UpstreamUnavailable, only_cause
from gateway.json_types import JsonMapping, JsonObject
from gateway.upstream.library.owner import Owner
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.session import PLAIN, Envelope, Session

if TYPE_CHECKING:
    from mcp import ClientSession


class Wire(Protocol):
    """What an `MCPTool` needs of a session."""

    server: str
    closed: anyio.Event
    negotiated: Negotiated

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks the stateless era."""
        ...

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """As `Session.request`."""
        ...


class _AnyRequest(Request[dict[str, Any], str]):
    """A request in wire form, for a session that models its requests."""


class _AnyResult(BaseModel):
    """A result kept exactly as it came."""

    model_config = ConfigDict(extra="allow")


class OwnedSession:
    """An `mcp.ClientSession` of the program as a `Wire`. It must be initialised; it is never closed here."""

    def __init__(self, server: str, session: ClientSession) -> None:
        self.server = server
        self.closed = anyio.Event()
        self._session = session
        version = session.protocol_version or ""
        capabilities = session.server_capabilities
        self.negotiated = Negotiated(
            "modern" if version in MODERN_PROTOCOL_VERSIONS else "legacy",
            version,
            capabilities.model_dump(mode="json", by_alias=True, exclude_none=True) if capabilities is not None else {},
            session.instructions,
        )

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks the stateless era."""
        return self.negotiated.era == "modern"

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """Send one request; capabilities and headers are the session's own affair."""
        wire = {**params, "_meta": dict(envelope.meta)} if envelope.meta else dict(params)
        ctx = envelope.ctx
        progress = ctx.progress if ctx is not None and ctx.wants_progress else None
        try:
            answer = await self._session.send_request(_AnyRequest(method=method, params=wire), _AnyResult, progress_callback=progress)
        except MCPError as error:
            raise self._translate(method, error) from None
        return answer.model_dump(mode="json", by_alias=True)

    def _translate(self, method: str, error: MCPError) -> UpstreamError:
        code, text = error.error.code, error.error.message
        if code == CONNECTION_CLOSED:
            self.closed.set()
            return UpstreamLost(f"The connection to {self.server!r} broke during {method!r}; the call may have run.", server=self.server)
        if code == INVALID_REQUEST and text in ("Session terminated", "Session not found"):
            return UpstreamUnavailable(f"Server {self.server!r} no longer knows the session.", server=self.server)
        return UpstreamRefused(text, server=self.server, code=code, data=error.error.data)


class Link:
    """Holds the connection. Safe for concurrent calls: whoever finds it broken first opens it again for all."""

    def __init__(self, server: str, make: Callable[[], AbstractAsyncContextManager[Session]]) -> None:
        """`make` opens a negotiated session. No side effects."""
        self._server = server
        self._make = make
        self._owner: Owner[Session] = Owner()
        self._lock = anyio.Lock()
        self._wire: Wire | None = None
        self._is_owned_elsewhere = False

    def borrow(self, session: ClientSession) -> None:
        """Use the program's session instead of one of ours."""
        self._wire = OwnedSession(self._server, session)
        self._is_owned_elsewhere = True

    @property
    def wire(self) -> Wire | None:
        """The session, if it is up."""
        wire = self._wire
        return None if wire is None or wire.closed.is_set() else wire

    async def open(self, *, instead_of: Wire | None = None) -> Wire:
        """The session, opened where there is none, or where the one there is is `instead_of`.

        Raises:
            UpstreamError: It cannot be opened.
        """
        async with self._lock:
            wire = self.wire
            if wire is not None and wire is not instead_of:
                return wire
            if self._is_owned_elsewhere:
                raise UpstreamUnavailable(f"The session to {self._server!r} has ended; it is its owner who opens it.", server=self._server)
            await self._owner.close()
            self._wire = None
            try:
                self._wire = await self._owner.open(self._make)
            except Exception as error:
                raise only_cause(error) from None
            return self._wire

    def drop(self, wire: Wire) -> None:
        """Forget a session that was found broken; the next call opens another."""
        if self._wire is wire and not self._is_owned_elsewhere:
            self._wire = None

    async def close(self) -> None:
        """Close our session; a borrowed one is only let go."""
        async with self._lock:
            self._wire = None
            await self._owner.close()
