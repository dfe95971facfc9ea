"""The interfaces of everything that the gateway can call (`Tool`, `ToolSource`), the context of a call, and Python functions as tools."""
