"""Connections to remote MCP servers, one supervised connection per server, and the sources of their tools, resources and prompts."""
