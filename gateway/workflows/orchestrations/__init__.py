"""Orchestrations: builders of common patterns in which agents work together. Each builder returns a `Workflow`.

`sequential`: participants run one after the other. `concurrent`: participants run concurrently, and their answers are combined.
`group_chat`: an orchestrator (a function or an agent) chooses the next speaker. `handoff`: agents hand the conversation over to each other.
`magentic`: a manager makes a plan, follows the progress and plans again. The module `participants` contains the shared base classes.
Events, requests, checkpoints and output selection work as in every workflow. Names are those of Microsoft's agent-framework.
"""
