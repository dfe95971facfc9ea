"""Long-running work that outlives its request: `runner` runs it and keeps what became of it.

Decided: tasks are kept in memory for now, behind the few methods of `TaskRunner`; `tools.base` has the outcome
(`TaskStarted`) and the definition's `task`, `tools.context` the port that work may use inside a durable task
(`DurablePort`), `server.tasks` both wire dialects. Because: remote servers' tasks and slow tools are worth having
before agents and workflows need to survive a restart. Instead of: serving workflows as tasks already, whose handles
would have to be durable. Revisit: with the durable engine, which takes the runner's place and lives here.
"""
