"""Evaluation of agents: checks and evaluators that judge answers, with agent-framework's names, and case files for `moongate eval`."""
