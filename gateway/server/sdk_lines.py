"""The SDK's loop for one client over lines of text; loaded by `conversation` when it is first needed.

As the SDK's own `stdio_server`, but that a result with half a character, which only an escape can write, ends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.server.sdk_server import SdkServer


async def serve_lines(sdk: SdkServer, lines: MemoryObjectReceiveStream[str], say: Callable[[bytes], Awaitable[None]]) -> None:
    """Serve until there are no more `lines`; `say` gets whole ones."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()

    async def read() -> None:
        async with to_server, lines:
            async for line in lines:
                await to_server.send(_message(line))

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                await say(_line(message) + b"\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        async with incoming, outgoing:
            await sdk.mcp.run(incoming, outgoing, sdk.mcp.create_initialization_options())


def _message(line: str) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as error:
        return error


def _line(message: SessionMessage) -> bytes:
    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True), separators=(",", ":")).encode()
