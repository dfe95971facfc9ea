"""Long-running work: it goes on behind its request, is asked about later, and survives the process that runs it.

Decided: a task is replayed. Its call runs again from the start in whichever process takes the task up, and what it did is
recorded step by step: every tool call, model call, function and round inside it, by a name that is the same at every
attempt. A finished step gives its recorded result; one that was in flight runs again if that is harmless, and otherwise a
person is asked. Because: agents, workflows and remote calls then need no state machine of their own.

Decided: our own few tables (`storage.tasks`), and leases that the database judges, instead of DBOS (house.md, decision 4).
Because: DBOS 3.4 costs 1.5 s of import and 76 MB in every process that once had a task, its SQLite store needs SQLite 3.42
or a shim, peers do not take over from a dead process without code of ours, retention and large values would be ours too,
and cancelling bites at step boundaries only. What is needed of it are two tables and six statements. Revisit when: steps
need queues across machines, or replay needs versions of the work.

`runner` runs tasks and takes over orphaned ones, `port` records steps, `caller` is the way back to the client. Both wire
dialects are `server.tasks`'; `tools.context.DurablePort` is what work inside a task sees.
"""
