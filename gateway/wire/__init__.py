"""Parses and writes HTTP/1.1, server-sent events and JSON-RPC. Used by the gateway's server and by its connections to MCP servers."""
