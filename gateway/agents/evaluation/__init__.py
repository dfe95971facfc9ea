"""Judging agents: items and checks in code under agent-framework's names, and the files of cases of `moongate eval` over them."""
