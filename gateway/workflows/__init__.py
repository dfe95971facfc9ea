"""Graphs of executors: agents, tools and functions that pass messages along edges in rounds.

Two layers. The engine (`executor`, `graph`, `runner`, `workflow`, `builder`) knows nothing of files or MCP; its
names are agent-framework's. On top, `definition`, `templates` and `steps` turn a `<name>.workflow.yaml` into a
graph, and `tool` and `source` publish it.

Decided: a run is advanced one round at a time, and everything a run carries between rounds is in `RunState`.
Because: a checkpoint is then one value taken at the boundary, and a stream can pause there without holding a
task group open. Instead of: a background task per run. Revisit when: rounds must overlap.

Decided: executors publish effects (messages, outputs, state) into their own `Effects`, applied in message order
when the round ends. Because: the order of results never depends on which executor was faster.

Decided: a file is a fresh graph per call, a code graph is one object or a factory. Because: an executor object
may keep state, so one `Workflow` runs one message at a time.
"""
