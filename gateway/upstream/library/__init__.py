"""Remote MCP servers for Python programs without a running gateway: `MCPTool` and its subclasses, with the interface of agent-framework.

They use the gateway's sessions, listings, argument rules, gate, sampling rules and polling of tasks. The program opens and closes the
connection, and quotas are counted per connection.

Decided: constructors take their many settings as one `Unpack`ed `TypedDict`. Because: code written for agent-framework passes these
settings by keyword, and then needs only another import. Instead of: one parameter with a settings object, which that code does not pass.
Revisit when: agent-framework groups its settings in an object.
"""
