"""The behaviour matrix of the run loop: every row names existing tests, with and without streaming if the row says so."""

from __future__ import annotations

import ast
import dataclasses
import re

from gateway.chat.loop_options import FunctionInvocationConfiguration, LoopOptions
from tests.architecture.documents import read
from tests.architecture.sources import parsed, python_files

MATRIX = re.compile(r"^\| (?P<situation>[^|]+) \| [^|]+ \| (?P<ways>[^|]+) \| `(?P<test>test_\w+)` \|$", re.MULTILINE)


def named_tests() -> dict[str, ast.AsyncFunctionDef | ast.FunctionDef]:
    functions = (node for path in python_files("tests") for node in parsed(path).body)
    return {node.name: node for node in functions if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}


def test_every_matrix_row_names_a_test_that_covers_its_modes() -> None:
    rows = list(MATRIX.finditer(read("docs/agent-loop.md")))
    tests = named_tests()
    assert len(rows) > 30
    assert [row["test"] for row in rows if row["test"] not in tests] == []
    one_way = [
        row["test"]
        for row in rows
        if row["ways"] == "both" and "both_ways" not in [ast.unparse(decorator) for decorator in tests[row["test"]].decorator_list]
    ]
    assert one_way == []


def test_every_loop_setting_is_documented_with_its_default() -> None:
    settings = {field.name for field in dataclasses.fields(LoopOptions)}
    documented = set(re.findall(r"^\| `(\w+)` \|", read("docs/agent-loop.md").partition("## What happens")[0], re.MULTILINE))
    assert documented == settings == set(FunctionInvocationConfiguration.__annotations__)
