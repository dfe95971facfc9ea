"""Names, codes and versions that MCP and JSON-RPC define, and `RpcError`. Used for connections to clients and to servers.

The MCP SDK defines these constants, too, but importing the SDK takes longer than starting the gateway, and the gateway's own code (the fast
path) answers plain requests without it.
`tests/architecture/test_protocol.py` compares them with the SDK's.
"""

from __future__ import annotations

from typing import Final

from gateway.json_types import JsonValue

HANDSHAKE_PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""MCP versions with an `initialize` handshake and a session, oldest first."""

MODERN_PROTOCOL_VERSIONS: Final = ("2026-07-28",)
"""MCP versions without a handshake: each request contains the client's capabilities, and may contain the client's info."""

LATEST_HANDSHAKE_VERSION: Final = "2025-11-25"
LATEST_MODERN_VERSION: Final = "2026-07-28"

PROTOCOL_VERSION_META_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_META_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_META_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_META_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_META_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_META_KEY: Final = "io.modelcontextprotocol/subscriptionId"

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
"""Identifier of the MCP extension for tasks (SEP-2663)."""

SKILLS_EXTENSION: Final = "io.modelcontextprotocol/skills"
"""Identifier of the MCP extension for skills (SEP-2640)."""

MCP_PROTOCOL_VERSION_HEADER: Final = "mcp-protocol-version"
MCP_METHOD_HEADER: Final = "mcp-method"
MCP_NAME_HEADER: Final = "mcp-name"

NAME_BEARING_METHODS: Final = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
"""Maps an MCP method to the name of the parameter whose value the HTTP header `Mcp-Name` repeats."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CONNECTION_CLOSED: Final = -32000
REQUEST_TIMEOUT: Final = -32001
HEADER_MISMATCH: Final = -32020
MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022


class RpcError(Exception):
    """A JSON-RPC error that was received or will be sent. Code that uses the MCP SDK converts it to and from the SDK's `MCPError`."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
