"""Plain requests, answered without the MCP SDK. Other requests are delegated to `sdk_path`."""
