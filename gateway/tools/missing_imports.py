"""`missing_imports`: finds imported modules and names that do not exist, for error messages. The Python files are not run."""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def missing_imports(error: ImportError, folder: str) -> tuple[list[str], list[str]]:
    """Find the failing imports in the Python files below `folder` that occur in the traceback of `error`.

    Returns the missing modules, among them the one that `error` names, and the names that are missing in an existing module, as
    `module.name`. Only absolute imports at the top level of a file count, because imports in `try` and `if` may be optional. Names are
    checked only in modules that are already imported.
    """
    modules: dict[str, None] = {}
    names: dict[str, None] = {}
    if isinstance(error, ModuleNotFoundError) and error.name:
        modules[error.name] = None
    below = os.path.join(os.path.realpath(folder), "")
    files = dict.fromkeys(frame.filename for frame in traceback.extract_tb(error.__traceback__))
    for path in files:
        if os.path.realpath(path).startswith(below):
            for module, name in _imports(Path(path)):
                if not _exists(module):
                    modules.setdefault(module)
                elif name and module in sys.modules and not hasattr(sys.modules[module], name) and not _exists(f"{module}.{name}"):
                    names.setdefault(f"{module}.{name}")
    return [name for name in modules if name.rpartition(".")[0] not in modules], list(names)


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `(module, name)` for each import at the top level of a Python file. The name is empty for `import module`."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name if alias.name != "*" else "") for alias in node.names)


def _exists(module: str) -> bool:
    """Return whether a module can be found, without importing anything.

    If the module's package is not imported yet, only the package is searched, because searching the module would import the package.
    """
    if module in sys.modules:
        return True
    parent = module.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return _exists(parent)
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
