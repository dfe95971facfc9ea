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
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.server.in_flight import InFlightCall
from gateway.server.sdk_path.sdk_server import SdkServer

DelegatedLine: TypeAlias = tuple[str, InFlightCall | None]
"""A line with a JSON-RPC message of the client, and the running call of this message if the call was started without the SDK."""


async def serve_lines(
    sdk: SdkServer,
    lines: MemoryObjectReceiveStream[DelegatedLine],
    write_line: Callable[[bytes], Awaitable[None]],
    grace: anyio.CancelScope,
) -> None:
    """Serve one client with the SDK's server until `lines`, the stream of the client's messages, has ended and all requests are answered.

    After the end of `lines`, `subscriptions/listen` requests are not awaited, nor are requests that wait for input, because the client can
    no longer send the input. `write_line` sends a line with a message to the client. The deadline of `grace` limits the wait for answers;
    after it, the SDK cancels the requests.
    """
    requests: dict[str, str] = {}
    asked: dict[str, str] = {}  # the gateway's open requests for input
    has_sent = anyio.Event()
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()

    async def read() -> None:
        nonlocal has_sent
        async with to_server, lines:
            async for line in lines:
                message = _message(*line)
                _note(message, requests, asked)
                await to_server.send(message)
            with grace:
                while requests.keys() - asked.values():
                    has_sent = anyio.Event()
                    await has_sent.wait()

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                _note(message, asked, requests)
                has_sent.set()
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


def _note(message: SessionMessage | Exception, own: dict[str, str], other: dict[str, str]) -> None:
    """Update the open requests of both sides for a message: `own` has those of the message's sender, `other` those of its receiver.

    A request is added to `own`, as its JSON-RPC id → the id of the request that it belongs to, or "None". If the message cancels a request,
    remove that request from `own`; if it answers a request, remove that request from `other`.
    """
    match message:
        case SessionMessage(message=JSONRPCRequest(id=number, method=method), metadata=metadata):
            if method != "subscriptions/listen":  # it is answered when the connection ends
                own[str(number)] = str(getattr(metadata, "related_request_id", None))
        case SessionMessage(message=JSONRPCNotification(method="notifications/cancelled", params=params)):
            own.pop(str((params or {}).get("requestId")), None)
        case SessionMessage(message=JSONRPCResponse(id=number) | JSONRPCError(id=number)):
            other.pop(str(number), None)
        case _:
            pass


def _line(message: SessionMessage) -> bytes:
    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True), separators=(",", ":")).encode()
