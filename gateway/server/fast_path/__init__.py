"""The fast path: answers requests that need no feature of the MCP SDK without it. All other requests are passed to `sdk_path`."""
