"""Workflows: graphs of executors (agents, tools, functions) that send each other messages along edges.

A run is a sequence of supersteps (rounds): in each, all waiting messages are delivered and handled concurrently.

The package has two layers. The engine (`executor`, `graph`, `superstep_runner`, `workflow`, `builder`, `functional`) uses neither workflow
files nor MCP; its public names are those of Microsoft's agent-framework. Above the engine, `definition`, `step_templates` and `steps` turn
a `<name>.workflow.yaml` into a graph, and `tool` and `source` serve the workflow as an MCP tool.

Decided: a run advances one superstep at a time, and `RunState` and the executors contain everything that the run carries between
supersteps. Because: a checkpoint is then a single value taken between supersteps, and a stream can pause there without an open task group.
Instead of: a background task per run. Revisit when: supersteps must overlap.

Decided: each delivery of a message gets a new `WorkflowContext`, through which the executor sends messages. The engine delivers sent
messages when the superstep has ended, in the order of the deliveries that sent them. Because: results then never depend on which executor
was faster.

Decided: each call of a workflow file builds a new graph. A graph written in Python is one object, or a function that returns a new object.
Because: executor objects may have state, so a `Workflow` does one run at a time.
"""
