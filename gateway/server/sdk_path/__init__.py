"""The SDK path: serves the requests that need the MCP SDK, with the SDK's HTTP and stdio transports and the gateway's request handlers."""
