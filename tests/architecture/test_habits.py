"""Habits that a reader relies on: documented modules and functions, nothing left for later, tests that mirror the package."""

from __future__ import annotations

import ast
import re

from tests.architecture.sources import ROOT, name_of, parsed, python_files

LEFT_FOR_LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

OUTSIDE_THE_MIRROR = {"docs", "attacks", "faults", "accept", "conformance", "fakes", "architecture", "interaction", "mutants"}


def test_every_module_has_a_docstring() -> None:
    silent = [name_of(p) for p in python_files("gateway", "benchmarks", "config") if parsed(p).body and not ast.get_docstring(parsed(p))]
    assert silent == []


def test_every_public_function_and_class_has_a_docstring() -> None:
    silent = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("gateway")
        for node in public_definitions(parsed(path).body)
        if not ast.get_docstring(node) and not is_trivial(node)
    ]
    assert silent == []


def public_definitions(body: list[ast.stmt]) -> list[Definition]:
    """Functions and classes with public names, and the methods of those classes."""
    found: list[Definition] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found.append(node)
            if isinstance(node, ast.ClassDef):
                found += public_definitions(node.body)
    return found


def is_trivial(node: Definition) -> bool:
    """An overload, a setter, or a method marked as standing in for a documented one."""
    return any(ast.unparse(decorator).endswith(("overload", ".setter", "override")) for decorator in node.decorator_list)


def test_source_has_no_unfinished_marks() -> None:
    found = [
        f"{name_of(path)}:{number}"
        for path in python_files("gateway", "tests", "benchmarks", "config", "skills")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEFT_FOR_LATER.search(line)
    ]
    assert found == []


def test_every_test_folder_is_a_package_and_mirrors_a_package() -> None:
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("*.py"))]
    assert [path.name for path in folders if not (path / "__init__.py").exists()] == []
    packages = {path.stem for path in (ROOT / "gateway").iterdir()}
    assert {path.name for path in folders} - OUTSIDE_THE_MIRROR <= packages


def test_tests_are_named_by_sentences() -> None:
    short = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") and node.name.count("_") < 3
    ]
    assert short == []
