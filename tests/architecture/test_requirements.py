"""Every requirement for clients of remote servers and for sessions has a test with its id."""

from __future__ import annotations

import ast

from tests.architecture.sources import nodes_of, python_files

CONSUMING = {*range(1, 90), *(f"MC{number}" for number in range(2, 15))}
"""Ids of the requirements for clients of remote servers. MC1 is left out: it is the transports, which every other test uses."""


SESSIONS = {*(f"SE{number}" for number in range(1, 23) if number != 20), "CP1"}
"""Ids of the requirements for sessions and compaction. The number 20 is not in use."""


def claimed() -> set[int | str]:
    """The ids in `@pytest.mark.requirement(…)` of every test."""
    found: set[int | str] = set()
    for path in python_files("tests"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.requirement"):
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int | str)}
    return found


def test_every_client_requirement_is_claimed_by_a_test() -> None:
    assert CONSUMING - claimed() == set()


def test_every_row_about_sessions_is_claimed_by_a_test() -> None:
    assert SESSIONS - claimed() == set()
