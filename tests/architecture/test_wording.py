"""Test names stay short, and the wordings that `prose` counts do not spread."""

from __future__ import annotations

import ast

from tests.architecture.prose import PAGES, matches
from tests.architecture.sources import ROOT, name_of, nodes_of, python_files

MAX_NAME_CHARACTERS = 72
MAX_LINES_OUTSIDE_TESTS = 100
MAX_LINES_IN_TESTS = 50
"""Some tests contain such wordings on purpose, as text that a server sends."""


def test_test_names_are_short() -> None:
    long = [
        f"{name_of(path)}: {node.name}"
        for path in python_files("tests")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name) > MAX_NAME_CHARACTERS
    ]
    assert long == [], f"Name each test in at most {MAX_NAME_CHARACTERS} characters: subject, verb, object"


def test_lines_to_reword_are_few() -> None:
    outside = matches(*(ROOT / path for path in PAGES))
    inside = matches(ROOT / "tests")
    assert len(outside) <= MAX_LINES_OUTSIDE_TESTS, "Reword lines that `python -m tests.architecture.prose` prints"
    assert len(inside) <= MAX_LINES_IN_TESTS, "Reword lines that `python -m tests.architecture.prose tests` prints"
