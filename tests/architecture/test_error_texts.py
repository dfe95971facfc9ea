"""What a failure means follows from its type. Only the carrier of the MCP SDK compares the texts of errors."""

from __future__ import annotations

import ast

from tests.architecture.sources import name_of, nodes_of, python_files

READERS = {"gateway/upstream/carriers/sdk_carrier.py": "the SDK gives some failures no type of their own"}


def compares_error_text(node: ast.AST) -> bool:
    """Whether the code searches in, or compares, the text of an error: `"x" in str(error)`, `str(error).startswith("x")`."""
    match node:
        case ast.Compare(comparators=[right], left=left):
            return _is_error_text(right) or _is_error_text(left)
        case ast.Call(func=ast.Attribute(value=text, attr="startswith" | "endswith" | "find" | "index")):
            return _is_error_text(text)
        case _:
            return False


def _is_error_text(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="error" | "failure" | "exc" | "problem")]):
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "casefold")):
            return _is_error_text(inner)
        case ast.Tuple(elts=parts):
            return any(map(_is_error_text, parts))
        case ast.Attribute(value=ast.Name(id="error" | "failure" | "exc"), attr="message" | "args" | "text"):
            return True
        case _:
            return False


def test_only_the_sdk_carrier_compares_error_texts() -> None:
    found = {name_of(path) for path in python_files("gateway") if any(compares_error_text(node) for node in nodes_of(path))}
    assert found == READERS.keys()


def test_comparisons_of_error_texts_are_found() -> None:
    seeded = ("'x' in str(error)", "str(failure).startswith('x')", "'x' in str(exc).lower()", "(error.code, error.message) == (1, 'x')")
    assert all(any(compares_error_text(node) for node in ast.walk(ast.parse(text))) for text in seeded)
