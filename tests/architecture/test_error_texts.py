"""The type of an exception decides how code handles it. Only modules listed here, with a reason, compare error texts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.sources import name_of, nodes_of, python_files

READERS = {
    "gateway/access/cedar_files.py": "the Cedar parser says only in its text that a policy ends too early, and reports no line",
    "gateway/config/documents.py": "libyaml gives a document that is nested too deeply no type of its own",
    "gateway/policy/schema_check.py": "words the messages of the JSON Schema validator as one sentence",
    "gateway/storage/object_bucket.py": "the client library has the server's error code only in its text",
    "gateway/upstream/carriers/sdk_carrier.py": "the SDK gives some failures no type of their own",
    "gateway/upstream/library/mcp_tool.py": "adds the server's name to a text that does not have it",
}


def compares_error_text(function: ast.AST) -> bool:
    """Whether code searches in, or compares, the text of an error: `"x" in str(error)`, also after `text = str(error)`."""
    texts: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(_is_error_text(part) for part in ast.walk(node.value)):
            texts |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return any(_compares(node, texts) for node in ast.walk(function))


def _compares(node: ast.AST, texts: set[str]) -> bool:
    def is_text(node: ast.AST) -> bool:
        return _is_error_text(node) or (isinstance(node, ast.Name) and node.id in texts)

    match node:
        case ast.Compare(comparators=[right], left=left, ops=[ast.In() | ast.NotIn() | ast.Eq() | ast.NotEq()]):
            return is_text(right) or _is_error_text(left)
        case ast.Call(func=ast.Attribute(value=text, attr="startswith" | "endswith" | "find" | "index" | "removeprefix" | "removesuffix")):
            return is_text(text)
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
        case ast.Attribute(value=ast.Name(id="error" | "failure" | "exc"), attr="message" | "args" | "text" | "problem"):
            return True
        case _:
            return False


def functions_of(path: Path) -> list[ast.AST]:
    return [node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_every_comparison_of_an_error_text_has_a_reason() -> None:
    found = {name_of(path) for path in python_files("gateway") if any(map(compares_error_text, functions_of(path)))}
    assert found == READERS.keys()


@pytest.mark.parametrize(
    "code",
    [
        "'x' in str(error)",
        "str(failure).startswith('x')",
        "'x' in str(exc).lower()",
        "(error.code, error.message) == (1, 'x')",
        "problem = 'closed' if is_closed else str(error)\nif ' answered 403;' in problem: pass",
        "text = str(error).removeprefix('Line 1: ')",
        "if error.problem == 'exceeded': pass",
        "code, text = error.code, error.message\ntext.startswith('x')",
    ],
)
def test_comparison_of_an_error_text_is_found(code: str) -> None:
    assert compares_error_text(ast.parse(code))
