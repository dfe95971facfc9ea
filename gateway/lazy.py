"""Names that are loaded on first use (PEP 562), and packages of an extra, which may not be installed.

What keeps `import gateway` and its import paths for integrations (`gateway.openai`, `gateway.foundry`) light.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


def lazy_names(module: str, homes: Mapping[str, str], *, missing: Mapping[str, str] | None = None) -> Callable[[str], object]:
    """Make a `__getattr__` for `module`, which loads each name of `homes` from the module below `gateway` that it lives in.

    `dir(module)` lists the names of its `__all__` from now on, loaded or not. `missing` are names that agent-framework has and this
    package has not, each with the reason: importing one fails with it.
    """
    namespace = vars(sys.modules[module])
    namespace["__dir__"] = lambda: sorted(namespace["__all__"])

    def load(name: str) -> object:
        home = homes.get(name)
        if missing and name in missing:
            raise ImportError(f"{module}.{name}: {missing[name]}", name=module)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(f"gateway.{home}"), name)

    return load


def import_extra(name: str, *, extra: str, purpose: str) -> ModuleType:
    """A module that only an extra brings.

    Raises:
        ModuleNotFoundError: The extra is not installed; the text has the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        text = f"{purpose} needs the package {name.partition('.')[0]!r}: pip install 'moongate[{extra}]'"
        raise ModuleNotFoundError(text, name=error.name) from None
