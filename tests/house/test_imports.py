"""Who imports whom: rooms in layers, no cycles anywhere, and a package that is light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT, name_of, parsed, python_files

HEAVY = ("openai", "mcp", "mcp_types", "uvicorn", "starlette", "click", "pydantic", "httpx2", "anyio", "sqlalchemy", "aiosqlite")
"""What `import gateway` must not bring along; the first two alone take seconds on a small machine."""

PROBE = f"import sys, gateway; print([name for name in {HEAVY!r} if name in sys.modules])"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Every import statement of the package, the ones inside functions included, but not those only for type checkers."""
    files = {module_of(path): path for path in python_files("gateway")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found: set[str] = set()
        for node in runtime_nodes(parsed(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name for name in members if name in files} or {node.module}
        graph[module] = {name for name in found if name in files and name != module}
    return graph


def runtime_nodes(node: ast.AST) -> list[ast.AST]:
    """All nodes below `node` except what stands under `if TYPE_CHECKING:`."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        found += [child, *runtime_nodes(child)]
    return found


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """One circle of modules, or nothing."""
    done: set[str] = set()

    def walk(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for following in sorted(graph[module]):
            if circle := walk(following, [*trail, module]):
                return circle
        done.add(module)
        return []

    for module in sorted(graph):
        if circle := walk(module, []):
            return circle
    return []


def test_no_modules_import_each_other_in_a_circle_not_even_lazily() -> None:
    assert cycle_in(import_graph()) == []


def test_a_circle_would_be_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_model_has_pydantic_read_its_source_at_every_start() -> None:
    eager = [name_of(path) for path in python_files("gateway") if "use_attribute_docstrings=True" in path.read_text(encoding="utf-8")]
    assert eager == []


def test_importing_the_package_stays_light() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.timeout(60)
def test_a_room_imports_only_rooms_below_it() -> None:
    probe = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_no_room_uses_anothers_private_names() -> None:
    found: list[str] = []
    for path in python_files("gateway"):
        room = path.relative_to(ROOT / "gateway").parts[0]
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gateway."):
                other = (node.module or "").split(".")[1]
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                if private and other != room.removesuffix(".py"):
                    found.append(f"{name_of(path)}:{node.lineno} {', '.join(private)}")
    assert found == []
