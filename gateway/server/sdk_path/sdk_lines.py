"""Runs the MCP SDK's server for one stdio client. `dispatch` imports this module when a message of the client first needs the SDK.

It works like the SDK's `stdio_server`, but can also send text that contains an unpaired surrogate, which is written as an escape sequence.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.server.in_flight import InFlightCall
from gateway.server.sdk_path.sdk_server import SdkServer

DelegatedLine: TypeAlias = tuple[str, InFlightCall | None]
"""A line with a JSON-RPC message of the client, and the running call of the request in it if the call was started without the SDK."""


async def serve_lines(
    sdk: SdkServer, lines: MemoryObjectReceiveStream[DelegatedLine], write_line: Callable[[bytes], Awaitable[None]]
) -> None:
    """Serve one client with the SDK's server until `lines`, the stream of the client's messages, ends.

    `write_line` sends a line with a message to the client.
    """
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()

    async def read() -> None:
        async with to_server, lines:
            async for line in lines:
                await to_server.send(_message(*line))

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                await write_line(_line(message) + b"\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        async with incoming, outgoing:
            await sdk.mcp.run(incoming, outgoing, sdk.mcp.create_initialization_options())


def _message(line: str, call: InFlightCall | None) -> SessionMessage | Exception:
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        return error
    return SessionMessage(message, None if call is None else ServerMessageMetadata(request_context=call))


def _line(message: SessionMessage) -> bytes:
    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True), separators=(",", ":")).encode()
