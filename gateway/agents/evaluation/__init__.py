"""Evaluation of agents: checks and evaluators that judge answers (API of agent-framework), and case files of `moongate eval`."""
