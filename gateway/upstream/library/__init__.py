"""Remote MCP servers for programs: `MCPTool` and its subclasses, under agent-framework's names, without a gateway.

They use the gateway's session, listing, argument rules, gate, sampling rules and task follower. The program opens and closes the
connection, and limits count from each connection on.

Decided: constructors take their many settings as one `Unpack`ed `TypedDict`. Because: code written for agent-framework passes these
settings by keyword and needs only another import. Instead of: a settings object, which would keep to eight parameters. Revisit when:
agent-framework groups them.
"""
