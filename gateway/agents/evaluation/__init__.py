"""Evaluation of agents: checks and evaluators that judge an agent's answers, with agent-framework's names, and files for `moongate eval`."""
