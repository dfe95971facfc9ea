"""`ToolConnection`: manages the session of an `MCPTool` with its server, and opens a broken session again.

Either the tool opens and closes the session (`ContextTask`), or the program passes a session of its own (`ProgramSession`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import Request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict

from gateway.errors import NotSent, OutcomeUnknown, SessionGone, UpstreamError, only_cause
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import RpcError
from gateway.upstream.carriers.carrier import describe
from gateway.upstream.carriers.sdk_carrier import is_closed, sdk_failure
from gateway.upstream.library.context_task import ContextTask
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.server_session import PLAIN, Envelope, Session

if TYPE_CHECKING:
    from mcp import ClientSession


class RemoteSession(Protocol):
    """The interface of a session with a server, as far as an `MCPTool` uses it."""

    server: str
    closed: anyio.Event
    negotiated: Negotiated

    @property
    def is_modern(self) -> bool:
        """Whether the session uses the stateless protocol of MCP 2026."""
        ...

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """Send one request with the `_meta` and headers in `envelope`, and return its result. Raises `RequestFailure`."""
        ...


class _AnyRequest(Request[dict[str, Any], str]):
    """Model of a request with any method and parameters, because the SDK's session sends only models."""


class _AnyResult(BaseModel):
    """Model of a result with any members, whose values stay as the server sent them."""

    model_config = ConfigDict(extra="allow")


class ProgramSession:
    """Adapts an `mcp.ClientSession` that the program opened to the interface `RemoteSession`.

    The session must be initialised. It is never closed here.
    """

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
        """Whether the session uses the stateless protocol of MCP 2026."""
        return self.negotiated.era == "modern"

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """Send one request, and return its result. Of `envelope`, only `_meta` and progress apply; the session sets the rest itself."""
        wire = {**params, "_meta": dict(envelope.meta)} if envelope.meta else dict(params)
        ctx = envelope.ctx
        progress = ctx.progress if ctx is not None and ctx.facts.wants_progress else None
        try:
            answer = await self._session.send_request(_AnyRequest(method=method, params=wire), _AnyResult, progress_callback=progress)
        except MCPError as error:
            raise self._translate(method, error) from None
        return answer.model_dump(mode="json", by_alias=True)

    def _translate(self, method: str, error: MCPError) -> UpstreamError:
        received = RpcError(error.error.code, error.error.message, error.error.data)
        has_ended = is_closed(received)
        failure = OutcomeUnknown("the connection closed", server=self.server) if has_ended else sdk_failure(self.server, method, received)
        if has_ended or isinstance(failure, SessionGone):
            self.closed.set()
        return describe(failure, method)


class ToolConnection:
    """Opens, shares and closes the session of one `MCPTool`.

    Safe for concurrent calls: the first call that finds the session broken opens a new session for all calls.
    """

    def __init__(self, server: str, make: Callable[[], AbstractAsyncContextManager[Session]]) -> None:
        """`make` returns a context manager that opens a session with its handshake, and closes it. The constructor opens no session."""
        self._server = server
        self._make = make
        self._owner: ContextTask[Session] = ContextTask()
        self._lock = anyio.Lock()
        self._wire: RemoteSession | None = None
        self._is_owned_elsewhere = False

    def borrow(self, session: ClientSession) -> None:
        """Use a session that the program opened and will close."""
        self._wire = ProgramSession(self._server, session)
        self._is_owned_elsewhere = True

    @property
    def wire(self) -> RemoteSession | None:
        """The current session if it is open, else `None`."""
        wire = self._wire
        return None if wire is None or wire.closed.is_set() else wire

    async def open(self, *, instead_of: RemoteSession | None = None) -> RemoteSession:
        """Return the open session. If no session is open, or if the open session is the failed one `instead_of`, open a new session.

        Raises:
            UpstreamError: No session can be opened.
        """
        async with self._lock:
            wire = self.wire
            if wire is not None and wire is not instead_of:
                return wire
            if self._is_owned_elsewhere:
                raise NotSent(f"The session to {self._server!r} has ended; the program must open it again.", server=self._server)
            await self._owner.close()
            self._wire = None
            try:
                self._wire = await self._owner.open(self._make)
            except Exception as error:
                raise only_cause(error) from None
            return self._wire

    async def close(self) -> None:
        """Stop using the session, and close it unless the program opened it."""
        async with self._lock:
            self._wire = None
            await self._owner.close()
