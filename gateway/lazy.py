"""Makes a module's names load on first use (PEP 562), and imports modules of optional dependencies.

With it, the package `gateway` and its stable import paths (`gateway.openai`, `gateway.foundry`, …) import quickly. The stub file (`.pyi`)
beside a module lists its public names for type checkers and for `lazy_names`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType


def lazy_names(module: str, *, hints: Mapping[str, str] | None = None) -> Callable[[str], object]:
    """Return a `__getattr__` for `module` that imports each name of the module's stub file on first use.

    `__all__` and `dir(module)` list the names of the stub. `hints` maps names that only agent-framework has to texts, such as the name to
    use instead. The error for the import of a name contains its text.
    """
    namespace = vars(sys.modules[module])
    origins: dict[str, tuple[str, str]] = {}

    def load(name: str) -> object:
        if not origins:
            origins.update(declared_names(Path(namespace["__file__"]).with_suffix(".pyi")))
        if name == "__all__":
            return sorted(origins.keys() | ({"__version__"} & namespace.keys()))
        if name not in origins:
            _refuse(module, name, (hints or {}).get(name))
        home, original = origins[name]
        value = getattr(import_module(home), original)
        namespace[name] = value
        return value

    namespace["__dir__"] = lambda: load("__all__")
    return load


def declared_names(stub: Path) -> dict[str, tuple[str, str]]:
    """Return the names that a stub file imports with `as`, each with its defining module and its name in that module.

    A line such as `from gateway.openai import *` in the stub adds the names of the stub `openai.pyi` in the same folder.
    """
    import ast

    found: dict[str, tuple[str, str]] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.names[0].name == "*":
                found |= declared_names(stub.with_name(f"{node.module.rpartition('.')[2]}.pyi"))
            found |= {alias.asname: (node.module, alias.name) for alias in node.names if alias.asname}
    return found


def _refuse(module: str, name: str, hint: str | None) -> None:
    text = f"module {module!r} has no attribute {name!r}{f': {hint}' if hint else ''}"
    importer = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # `from gateway import …` drops the text of an AttributeError
    is_package = "__path__" in vars(sys.modules[module])  # `from MODULE import …` has no importlib frame unless MODULE is a package
    if hint and (not is_package or importer.f_globals.get("__name__") == "importlib._bootstrap"):
        raise ImportError(text, name=module)
    raise AttributeError(text, name=name)


def import_extra(name: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional dependency.

    Raises:
        ModuleNotFoundError: The extra is not installed; the message has the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        text = f"{purpose} needs the package {name.partition('.')[0]!r}: pip install 'moongate[{extra}]'"
        raise ModuleNotFoundError(text, name=error.name) from None
