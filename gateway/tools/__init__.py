"""The seam of everything callable: `Tool`, `ToolSource`, `CallContext`, the gate around a tool, Python functions as tools."""
