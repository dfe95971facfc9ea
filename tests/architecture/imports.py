"""The import graph of the package, and its circles."""

from __future__ import annotations

import ast
from pathlib import Path

from gateway.lazy import declared_names
from tests.architecture.sources import ROOT, nodes_of, python_files


def module_of(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXEMPT = {("gateway.chat.chat_client", "gateway.agents.agent")}
"""Imports that may lead into a circle: `BaseChatClient.as_agent()` returns the package's public `Agent`, which loads on first use."""


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules that each module of the package imports: relative imports, inside functions and for type checkers too.

    A name that a module loads on first use (`gateway.lazy`) counts as an import of the module that defines it.
    """
    files = {module_of(path, root): path for path in python_files("gateway", root=root)}
    lazy = {
        f"{module}.{name}": home
        for module, path in files.items()
        if (stub := path.with_suffix(".pyi")).exists()
        for name, (home, _) in declared_names(stub).items()
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found: set[str] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                origin = _origin(node, module, is_package=path.name == "__init__.py")
                members = {f"{origin}.{alias.name}" for alias in node.names}
                found |= {name if name in files else lazy.get(name, origin) for name in members}
        graph[module] = {name for name in found if name in files and name != module and (module, name) not in EXEMPT}
    return graph


def _origin(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """The dotted name of the module or package after `from`, with the dots of a relative import replaced by a package."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts[: len(parts) + is_package - node.level]
    return ".".join([*package, node.module] if node.module else package)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others; each group and the list are sorted."""
    reach = {module: _reachable(graph, module) for module in graph}
    groups = {tuple(sorted(other for other in graph if other in reach[module] and module in reach[other])) for module in graph}
    return sorted(list(group) for group in groups if group)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for module in graph.get(waiting.pop(), set()) - found:
            found.add(module)
            waiting.append(module)
    return found
