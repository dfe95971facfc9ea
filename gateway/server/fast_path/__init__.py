"""Answers plain requests, those that need no feature of the MCP SDK, without the SDK. Other requests are delegated to `sdk_path`."""
