"""The downstream MCP server: one for both protocol eras and both transports, over the catalog."""
