"""Habits that a reader relies on: documented modules and functions, nothing left for later, tests that mirror the package."""

from __future__ import annotations

import ast
import re

from tests.architecture.sources import ROOT, name_of, nodes_of, parsed, python_files

LEFT_FOR_LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

OUTSIDE_THE_MIRROR = {
    *("docs", "attacks", "faults", "accept", "conformance", "fakes"),
    *("architecture", "interaction", "mutants", "oidc", "packaging", "platforms"),
}


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


UNTYPED_FIELDS = {
    "a provider's own response, request or annotation, of a class that the provider's library defines": {
        "Annotation.raw_representation", "_Update.raw_representation", "CommonFields.raw_representation",
        "Content.raw_representation", "_HasRaw.raw_representation", "Content.outputs",
    },
    "tools as a program passes them: functions, tools, sources, descriptions, or a provider's own objects (`normalize_tools`)": {
        "OwnParts.tools", "ChatOptions.tools",
    },
    "a message, which is any Python object that a program sends to its own workflow": {
        "FunctionalWorkflow._message", "WorkflowMessage.data", "RunRequest.message", "SubWorkflowResponseMessage.data",
    },
    "a type annotation, such as `list[str]` or `int | None`, which have no common class": {
        "HandlerSpec.message_type", "RequestFacts.request_type", "RequestFacts.response_type",
    },
}  # fmt: skip
"""Fields of type `object` or `Any`, by the reason why they have no narrower type."""


def untyped_fields() -> set[str]:
    """Fields and attributes of classes whose declared type is `object` or `Any`, or a union with one of them."""
    found: set[str] = set()
    for path in python_files("gateway"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
                assigned = [item for method in methods for item in ast.walk(method) if isinstance(item, ast.AnnAssign)]
                fields = [*node.body, *(item for item in assigned if isinstance(item.target, ast.Attribute))]
                found |= {
                    f"{node.name}.{ast.unparse(item.target).removeprefix('self.')}"
                    for item in fields
                    if isinstance(item, ast.AnnAssign) and is_untyped(item.annotation)
                }
    return found


def is_untyped(annotation: ast.expr) -> bool:
    """Whether a type is `object` or `Any`, also in a union or within `ClassVar` or `Final`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("ClassVar", "Final"):
        return is_untyped(annotation.slice)
    if isinstance(annotation, ast.BinOp):
        return is_untyped(annotation.left) or is_untyped(annotation.right)
    return ast.unparse(annotation) in ("object", "Any")


def test_fields_have_types() -> None:
    assert untyped_fields() == set[str]().union(*UNTYPED_FIELDS.values()), "give the field a type, or take it from the list"


def test_object_and_any_are_found_in_unions() -> None:
    annotations = ("object", "Any | None", "ClassVar[Any]", "dict[str, Any]", "int | None")
    assert [is_untyped(ast.parse(text, mode="eval").body) for text in annotations] == [True, True, True, False, False]
