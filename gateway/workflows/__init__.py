"""Workflows: graphs of executors (agents, tools, functions) that send messages along edges in rounds.

The package has two layers. The engine (`executor`, `graph`, `superstep_runner`, `workflow`, `builder`, `functional`) does not know files
or MCP; its public names are agent-framework's. Above it, `definition`, `step_templates` and `steps` turn a `<name>.workflow.yaml` into a
graph, and `tool` and `source` serve it as a tool.

Decided: a run advances one round at a time, and `RunState` contains everything that it carries between rounds. Because: a checkpoint is
then a single value taken between rounds, and a stream can pause there without an open task group. Instead of: a background task per run.
Revisit when: rounds must overlap.

Decided: each executor sends messages through its own `WorkflowContext`, and they are delivered when the round ends, in the order of
deliveries. Because: results then never depend on which executor was faster.

Decided: each call of a workflow file builds a new graph; a graph written in Python is one object, or a function that makes one. Because: an
executor object may keep state, so a `Workflow` does one run at a time.
"""
