"""Pages for people, on the gateway's own port. Read-only; the MCP server lives in `server`."""
