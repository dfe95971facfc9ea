"""Remote MCP servers: one supervised connection each, relayed as sources of tools, resources and prompts."""
