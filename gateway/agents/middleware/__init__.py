"""Middleware that comes with the runtime: approvals, the agent loop, guards around model and tool calls, lifecycle hooks."""
