"""Durable tasks: tool calls that run in the background, can be queried later, and continue in another process if their process dies.

Decided: a task is replayed. When another process takes a task over, it runs the call again from the start, and each finished step (a tool
call, a model call, a function, a round of a workflow) returns its recorded result. A step has the same name at every attempt. A step that
was in flight runs again if that is harmless; otherwise the gateway asks a person. Because: agents, workflows and remote calls then need no
state machines.

Decided: a few tables of this project (`storage.task_rows`), with leases (the rights of processes to run their tasks) whose expiry the
database decides. Because: the library DBOS 3.4 costs 1.5 s of import and 76 MB in every process that once had a task. Its SQLite store
needs SQLite 3.42 or a shim, it needs additional code to take over the tasks of a dead process, and it cancels only at step boundaries.
Instead of: DBOS. Revisit when: steps need queues across machines, or replay needs versions of the code.

`runner` is the interface for the server, `task_executor` runs tasks, and an engine (`task_engine`) decides which process runs a task:
`local_engine` with the leases only, `temporal_engine` with a Temporal server. `upkeep` renews the lease and starts queued tasks,
`step_log` records steps, and `caller` sends progress and requests for input to the client. `server` encodes tasks for both protocol eras.
Code inside a task records its steps through `tools.context.DurablePort`.
"""
