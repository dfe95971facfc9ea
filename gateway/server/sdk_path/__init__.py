"""Requests that need the MCP SDK: its HTTP and line transports, its sessions, and our handlers on its server."""
