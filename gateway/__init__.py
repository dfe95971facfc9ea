"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers."""

__version__ = "0.1.0"
