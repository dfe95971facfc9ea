"""Every row of the fault matrix and of the attack list has a test that names it, or says why not; the page in the docs has every row."""

from __future__ import annotations

import ast
from importlib import import_module

from tests.architecture.sources import ROOT, nodes_of, python_files
from tests.faults.caps import CAPS, caps_table
from tests.faults.report import PAGE, exists, rows_of
from tests.faults.table import ATTACKS, FAULTS


def marked(kind: str) -> set[int]:
    """The rows in `@pytest.mark.KIND(N)` of every test."""
    found: set[int] = set()
    for path in python_files("tests"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"pytest.mark.{kind}"):
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int)}
    return found


def test_every_row_has_a_test_or_a_reason() -> None:
    for kind, rows in (("fault", FAULTS), ("attack", ATTACKS)):
        named = marked(kind)
        assert named <= rows.keys()
        assert {number for number, row in rows.items() if not row.without} == named


def test_page_has_every_row_of_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for rows in (FAULTS, ATTACKS):
        for number, row in rows.items():
            assert f"| {number} | {row.what} | {row.holds} |" in page
    assert len(rows_of(page)) == len(FAULTS) + len(ATTACKS)


def test_every_limit_is_there_and_has_a_test() -> None:
    keys = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for cap in CAPS:
        module, _, constant = cap.of.partition(":")
        assert hasattr(import_module(module), constant) if constant else f"| `{cap.of}` |" in keys, cap.of
        assert exists(f"{cap.path}::{cap.test}"), cap.test
    assert caps_table() in PAGE.read_text(encoding="utf-8")
