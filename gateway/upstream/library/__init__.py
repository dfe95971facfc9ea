"""Remote MCP servers for programs: `MCPTool` and friends, by agent-framework's names, without a gateway around them.

The same session, listing, argument rules, gate, sampling judgement and task follower as the gateway's own; what differs is
who owns the connection (a program opens and closes it) and where limits start (with each connection).

Decided: constructors take their many settings as one `Unpack`ed `TypedDict`. Because: code moves over from agent-framework
by changing an import, and it passes these settings by keyword. Instead of: house.md's rule of eight parameters, kept by a
settings object that nobody's code has. Revisit when: agent-framework groups them itself.
"""
