"""Remote MCP servers for Python programs without a running gateway: `MCPTool` and its subclasses, with the interface of agent-framework.

They use the gateway's sessions, listings, argument rules, gate, sampling rules and polling of tasks. The program opens and closes the
connection, and quotas are counted per connection.

Decided: constructors take their many settings as one `Unpack`ed `TypedDict`. Because: code written for agent-framework passes these
settings by keyword and needs only another import. Instead of: a settings object, which would keep to eight parameters. Revisit when:
agent-framework groups them.
"""
