"""Read-only web pages about the gateway for people, served on the same port as the MCP endpoint."""
