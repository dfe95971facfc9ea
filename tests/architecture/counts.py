"""Figures of the code base that should only fall: `make counts` prints them.

Code lines are lines with a token that is not a comment or a docstring. An import circle counts imports for type checkers too.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from tests.architecture.imports import circles, import_graph
from tests.architecture.prose import PAGES, matches
from tests.architecture.sources import ROOT, name_of, nodes_of, python_files

LONG_FILE_LINES = 500

FIRST_EDITION_LINES = 69_451
"""Lines of code of the package before the second edition began (the parent of commit 0e7a49b1).

Commit c5bb979, on which the edition was planned, had 54,760; two large features came between them.
"""

_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Lines of code of a Python file, without docstrings, comments and blank lines."""
    documented = (node for node in nodes_of(path) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    prose = {line for node in documented for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    code = {line for token in tokens if token.type not in _NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)


def long_files() -> dict[str, int]:
    """Lines of each file of the package that has more than `LONG_FILE_LINES`."""
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("gateway")}
    return {name: lines for name, lines in lengths.items() if lines > LONG_FILE_LINES}


def shared_names() -> dict[str, list[str]]:
    """Modules of different folders with the same file name, by that name."""
    files = [path for path in python_files("gateway") if path.name != "__init__.py"]
    repeated = [name for name, count in Counter(path.name for path in files).items() if count > 1]
    return {name: [name_of(path) for path in files if path.name == name] for name in sorted(repeated)}


def package_names() -> list[str]:
    """Paths of the modules that have the name of a package, without extension."""
    packages = {path.parent.name for path in python_files("gateway") if path.name == "__init__.py"}
    return sorted(name_of(path).removesuffix(".py") for path in python_files("gateway") if path.stem in packages)


def main() -> None:
    """Print every figure, and the names behind those that should be zero."""
    lines = sum(map(code_lines, python_files("gateway")))
    print(f"code lines in gateway/          {lines} ({lines / FIRST_EDITION_LINES - 1:+.1%} since the second edition began)")
    print("    the edition began at 69,451 lines; c5bb979, on which it was planned, had 54,760: two large features came between them")
    stubs = sum(map(code_lines, ROOT.glob("gateway/**/*.pyi")))
    print(f"code lines in stubs (.pyi)      {stubs}, which are not counted above: they name public classes and functions for type checkers")
    print(f"lines to reword outside tests/  {len(matches(*(ROOT / path for path in PAGES)))}")
    print(f"lines to reword in tests/       {len(matches(ROOT / 'tests'))}")
    print(f"files of gateway/ over {LONG_FILE_LINES} lines {len(long_files())}")
    for name, lines in long_files().items():
        print(f"    {name} {lines}")
    found = circles(import_graph())
    print(f"import circles                  {len(found)}")
    for circle in found:
        print(f"    {' '.join(circle)}")
    print(f"module names used twice         {len(shared_names())}")
    for paths in shared_names().values():
        print(f"    {' '.join(paths)}")


if __name__ == "__main__":
    main()
