"""Tasks: calls that run in the background, can be queried later, and survive the process that runs them.

Decided: a task is replayed. When a process takes a task over, it runs the call again from the start, and each finished step (a tool
call, a model call, a function, a workflow round) returns its recorded result. A step has the same name at every attempt. A step that
was in flight runs again if that is harmless; otherwise the gateway asks a person. Because: agents, workflows and remote calls then need
no state machine of their own.

Decided: a few own tables (`storage.task_rows`) with leases that the database judges, instead of DBOS. Because: DBOS 3.4 costs 1.5 s
of import and 76 MB in every process that once had a task, its SQLite store needs SQLite 3.42 or a shim, peers do not take over from a
dead process without additional code, and it cancels only at step boundaries. Revisit when: steps need queues across machines, or replay
needs versions of the work.

`runner` is the interface for the server, `task_executor` runs tasks, `upkeep` takes orphaned tasks over, `step_log` records steps, and
`caller` carries progress and requests for input to the client. Both wire forms of tasks are in `server`. Code inside a task uses
`tools.context.DurablePort`.
"""
