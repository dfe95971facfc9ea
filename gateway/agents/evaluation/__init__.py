"""Evaluation of agents: items, checks and evaluators with agent-framework's names, and case files for `moongate eval`."""
