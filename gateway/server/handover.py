"""Types for moving a 2025 session from the fast path to the SDK path: `SdkPath` is the SDK path, `NotificationLog` moves with the session.

The packages `fast_path` and `sdk_path` do not import each other. They share this module, and for running calls the module `in_flight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pydantic_core import to_json

from gateway.json_types import JsonObject
from gateway.server.event_ids import listening_token
from gateway.wire.rpc_envelope import notification
from gateway.wire.sse import encode_event

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MAX_STORED = 200
"""Maximum number of notifications stored per session, for clients that reconnect their stream."""


@dataclass(slots=True)
class NotificationLog:
    """The last notifications of a 2025 session, for a client that reconnects its GET for notifications with `Last-Event-ID`.

    Notifications are stored even if they could not be sent. The SSE event id of a notification is `<token>.<number>`.
    """

    replica: str = ""
    """Id of this replica of the gateway, so that a reconnecting GET is forwarded to it; empty without replicas."""
    token: str = field(init=False)
    first: int = 1
    """The number in the event id of the oldest notification in `messages`."""
    messages: list[tuple[str, JsonObject | None]] = field(default_factory=lambda: list[tuple[str, JsonObject | None]]())

    def __post_init__(self) -> None:
        self.token = listening_token(self.replica)

    def keep(self, method: str, params: JsonObject | None) -> bytes:
        """Store a notification, and return it encoded as a server-sent event. At the limit `MAX_STORED`, remove the oldest notification."""
        self.messages.append((method, params))
        if len(self.messages) > MAX_STORED:
            del self.messages[0]
            self.first += 1
        number = self.first + len(self.messages) - 1
        return encode_event(to_json(notification(method, params)), f"{self.token}.{number}")


class SessionTakeover(Protocol):
    """Interface of the part of the SDK path that continues sessions which the fast path opened (`resumable_sessions.SessionManager`)."""

    async def take_over(self, wire_id: str, log: NotificationLog | None, scope: Scope, handshake: Sequence[bytes]) -> bool:
        """Open an SDK session that continues the session `wire_id`. Return whether this succeeded.

        `handshake` contains the body of the client's `initialize` request and, if the client sent it, of `notifications/initialized`.
        `scope` is the ASGI scope of a later request of the session. `log` contains the notifications of the GET on which the client
        listens; `None` if there was no GET.
        """
        ...

    def is_listening(self, wire_id: str) -> bool:
        """Whether the SDK serves a listening GET of the session `wire_id`, on which the client receives notifications."""
        ...


class SdkPath(Protocol):
    """Interface of the SDK path for the fast path: an ASGI application that serves requests with the MCP SDK, and continues sessions."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        ...

    async def sessions(self, scope: Scope) -> SessionTakeover:
        """Return the object that continues sessions, and set `scope["user"]`, from which the object gets the caller.

        `scope` is the ASGI scope of a request.
        """
        ...
