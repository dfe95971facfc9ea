"""The interfaces of everything callable (`Tool`, `ToolSource`), the context of a call, and Python functions as tools."""
