"""`LineSession`: the 2025 session of a stdio client, served without the MCP SDK. Created by `dispatch.LineDispatch`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from pydantic_core import to_json

from gateway.json_types import JsonObject
from gateway.server.clients import LegacySession
from gateway.wire.rpc_envelope import notification

Write = Callable[[bytes], Awaitable[None]]
"""A function that sends whole lines (bytes that end in a newline) to a stdio client."""


class LineSession:
    """The 2025 session of a stdio client whose `initialize` request was answered without the MCP SDK.

    The session sends notifications to the client without the SDK, also after the SDK has started to handle messages of the session.
    """

    def __init__(self, initialize: JsonObject, write: Write) -> None:
        """`initialize` is the client's `initialize` request, which is sent to the SDK when a message first needs the SDK.

        `write` sends lines to the client.
        """
        self.initialize = initialize
        self.legacy: LegacySession
        self.is_loading = False
        """Whether the import of the MCP SDK in the background has been scheduled."""
        self._write = write

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification with this method to the client.

        Raises:
            anyio.BrokenResourceError: The client closed its end of the pipe.
        """
        try:
            await self._write(to_json(notification(method, params)) + b"\n")
        except OSError as error:
            raise anyio.BrokenResourceError from error
