"""The MCP server to which clients connect, over HTTP or stdio, with a 2025 or 2026 protocol version. It serves the tools of the catalog."""
