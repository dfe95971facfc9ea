"""Imports: packages in layers, no circles, and a package that is light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.imports import EXEMPT, circles, import_graph
from tests.architecture.sources import ROOT, name_of, nodes_of, python_files

HEAVY = ("openai", "mcp", "mcp_types", "uvicorn", "starlette", "click", "pydantic", "httpx2", "anyio", "sqlalchemy", "aiosqlite")
"""What `import gateway` must not bring along; the first two alone take seconds on a small machine."""

PROBE = f"import sys, gateway; print([name for name in {HEAVY!r} if name in sys.modules])"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert circles(import_graph()) == []


def test_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from . import two", "from . import one"),
        ("from .two import name", "from .one import name"),
        ("from . import NOBODY, two", "import gateway.pack.one"),
        ("from ..pack import two", "from ..pack.one import name"),
        ("from . import two", "if TYPE_CHECKING:\n    from .one import name"),
        ("def work():\n    from .two import name", "import gateway.pack.one"),
    ],
)
def test_circle_of_relative_imports_is_found(tmp_path: Path, first: str, second: str) -> None:
    package = tmp_path / "gateway" / "pack"
    package.mkdir(parents=True)
    for name, code in {"__init__": "", "one": first, "two": second}.items():
        (package / f"{name}.py").write_text(code)
    assert circles(import_graph(tmp_path)) == [["gateway.pack.one", "gateway.pack.two"]]


@pytest.mark.parametrize("facade", ["__init__", "openai"])
def test_circle_through_a_name_that_loads_on_first_use_is_found(tmp_path: Path, facade: str) -> None:
    package = tmp_path / "gateway"
    package.mkdir()
    origin = "gateway" if facade == "__init__" else f"gateway.{facade}"
    for name in {"__init__", facade}:
        (package / f"{name}.py").write_text("")
    (package / f"{facade}.pyi").write_text("from gateway.one import Name as Name\n")
    (package / "one.py").write_text("import gateway.two")
    (package / "two.py").write_text(f"def work():\n    from {origin} import Name")
    assert circles(import_graph(tmp_path)) == [["gateway.one", "gateway.two"]]


def test_every_exempt_import_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.architecture.imports.EXEMPT", set[tuple[str, str]]())
    graph = import_graph()
    assert circles(graph) != []
    assert all(imported in graph[module] for module, imported in EXEMPT)


def test_circle_of_a_package_and_its_module_is_found(tmp_path: Path) -> None:
    package = tmp_path / "gateway" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .one import name")
    (package / "one.py").write_text("from . import two, other")
    (package / "two.py").write_text("")
    assert circles(import_graph(tmp_path)) == [["gateway.pack", "gateway.pack.one"]]


def test_models_do_not_read_their_source_at_start() -> None:
    eager = [name_of(path) for path in python_files("gateway") if "use_attribute_docstrings=True" in path.read_text(encoding="utf-8")]
    assert eager == []


def test_importing_the_package_stays_light() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.timeout(60)
def test_packages_import_only_packages_below_them() -> None:
    probe = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_packages_do_not_use_private_names_of_others() -> None:
    found: list[str] = []
    for path in python_files("gateway"):
        package = path.relative_to(ROOT / "gateway").parts[0]
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gateway."):
                other = (node.module or "").split(".")[1]
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                if private and other != package.removesuffix(".py"):
                    found.append(f"{name_of(path)}:{node.lineno} {', '.join(private)}")
    assert found == []


def test_app_only_composes() -> None:
    """The package `app` has no waiting loop and uses no socket, process or signal; the packages that it connects contain the logic."""
    working = {"asyncio", "select", "signal", "subprocess", "time", "uvicorn"}
    loops: list[str] = []
    imported: set[str] = set()
    for path in python_files("gateway/app"):
        for node in nodes_of(path):
            if isinstance(node, ast.While | ast.AsyncFor):
                loops.append(f"{name_of(path)}:{node.lineno}")
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert (loops, imported & working) == ([], set())
