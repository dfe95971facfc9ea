"""Agents: agent files, the loop of model and tool calls, and agents as MCP tools.

Every tool call of an agent that the gateway serves passes the package `gateway.gate` (authorization, approvals, limits).
"""
