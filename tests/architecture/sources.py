"""The Python and text files of the repository that the architecture tests read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_files(*folders: str, root: Path = ROOT) -> list[Path]:
    """Python files of these folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def ruled_files() -> list[Path]:
    """Files under the size rules."""
    return python_files("gateway", "tests")


def name_of(path: Path) -> str:
    """The path as it is written in messages: relative to the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree. Kept, because `ast.walk` takes longer than parsing."""
    return tuple(ast.walk(parsed(path)))
