"""Orchestrations: ready-made graphs of agents, as builders that return a `Workflow`. Names are agent-framework's.

One file per pattern: `sequential` (one after the other), `concurrent` (all at once, then together), `group_chat` (an
orchestrator chooses who speaks), `handoff` (agents pass the conversation on), `magentic` (a manager plans, follows
progress and plans again). What they share is in `participants`. Each is an ordinary graph: events, requests,
checkpoints and output selection are the engine's.
"""
