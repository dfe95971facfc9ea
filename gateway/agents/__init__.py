"""Agents: definition files, the run loop, and the agent as a tool. They reach tools only through a `ToolBox` of guarded ones."""
