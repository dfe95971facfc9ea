"""The fast path: answers requests without the MCP SDK if they need no feature of it. It passes all other requests to `sdk_path`."""
