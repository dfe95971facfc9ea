"""Long-running work that outlives its request. Nothing is served as a task yet; this room's seams are in place.

Decided: `tools.base` has the outcome (`TaskStarted`) and the definition's `task`, `tools.context` the port that work
may use inside a task (`DurablePort`), and `server.calls.to_wire` the wire shape. Because: agents, workflows and the
server can then be written against them without knowing an engine. Instead of: an engine in memory, which could not
keep the promise that a task handle is durable before it is returned (SEP-2663). Revisit: with the durable engine,
which lives here and nowhere else.
"""
