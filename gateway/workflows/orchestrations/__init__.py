"""Orchestrations: builders of common graphs of agents. Each returns a `Workflow`. Names are agent-framework's.

`sequential`: participants run one after the other. `concurrent`: they run at once, and their answers are combined. `group_chat`: an
orchestrator (a function or an agent) chooses the next speaker. `handoff`: agents hand the conversation over to each other. `magentic`: a
manager makes a plan, follows the progress and plans again. The module `participants` contains the shared base classes. Events, requests,
checkpoints and output selection work as in every workflow.
"""
