"""`OwnModules`: records the operator's Python modules that a gateway imported, so that they can be imported again after a change.

There is one object per gateway. While the gateway builds its sources of tools, `functions_source` reports imports to the object. The object
records only modules that these imports loaded from the folder of the configuration. It never changes installed packages, or modules that
were imported before.

Decided: a change of any file drops all recorded modules from `sys.modules`. Because: a module keeps the objects that it imported, so
importing only the changed file again would leave its old objects in other modules. Running calls keep the old objects. Instead of:
`importlib.reload`, which changes modules while calls use them. Revisit when: importing a project takes seconds.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from gateway.config.watch import Signature, signature_of

_CLOCK_TICK_NS = 10_000_000
"""Assumed resolution of file timestamps, in nanoseconds (10 ms).

A file whose change is at most this much older than an import counts as changed after the import began.
"""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of folders with installed packages. Modules in these folders are not recorded, even below the configuration's folder."""

_current: ContextVar[OwnModules | None] = ContextVar("gateway_own_modules", default=None)
"""The `OwnModules` object that records imports in the current context; `None` if imports are not recorded."""


class OwnModules:
    """Records the operator's Python modules that one gateway imported, and drops them so that they are imported again.

    All methods block, and only one thread at a time may call them.
    """

    def __init__(self, folder: Path) -> None:
        """Create an empty record. Only modules below `folder`, the folder of the configuration, are recorded."""
        self._folder = os.path.realpath(folder)
        self._modules: dict[str, ModuleType] = {}
        self.files: dict[str, Signature] = {}
        """Path of each recorded file → its signature (size and times) at its first import. A file whose signature differs has changed.

        Also contains files whose import failed, and missing files that would make a failed import succeed (with `None` as signature).
        """
        self.generation = 0
        """How often `drop` has removed the recorded modules from `sys.modules`."""

    @contextmanager
    def current(self) -> Generator[None]:
        """Context manager: let this object record the imports that `functions_source` makes inside the context."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def note(self, name: str, before: Iterable[str], error: BaseException | None, *, since_ns: int) -> None:
        """Record an import of the module `name`: the modules that it added to `sys.modules`, and, if it failed, the files in its error.

        `before` are the names in `sys.modules` before the import; `error` is the error, or `None`. `since_ns` is the time when the import
        started, in nanoseconds since the epoch. A file that was changed after this time counts as changed since the import.
        """
        for added in set(sys.modules).difference(before):
            module = sys.modules[added]
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and self._is_own(path):
                self._modules[added] = module
                self._add(path, since_ns)
        while error is not None:
            self._note_failure(name, error, since_ns)
            error = error.__cause__ or error.__context__

    def drop(self) -> None:
        """Remove every recorded module from `sys.modules`, and its `.pyc` file, so that the next import reads the source files again."""
        self.generation += 1
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
            # Python compares a source file with its `.pyc` by seconds and size, which may be equal after two edits.
            cached = getattr(module, "__cached__", None)
            if isinstance(cached, str):
                with suppress(OSError):
                    os.unlink(cached)
        self._modules.clear()

    def _is_own(self, path: str) -> bool:
        real = os.path.realpath(path)
        if not real.startswith(os.path.join(self._folder, "")):
            return False
        return not _INSTALLED.intersection(Path(real).parts)

    def _add(self, path: str, since_ns: int) -> None:
        signature = signature_of(Path(path))
        is_newer = signature is not None and signature[0] > since_ns - _CLOCK_TICK_NS
        self.files.setdefault(path, None if is_newer else signature)

    def _note_failure(self, name: str, error: BaseException, since_ns: int) -> None:
        named = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            named.append(error.filename)
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else name
        for module in (name, missing):
            stem = os.path.join(self._folder, *module.split("."))
            named += [f"{stem}.py", os.path.join(stem, "__init__.py")]
        for path in named:
            if os.path.isabs(path) and self._is_own(path):
                self._add(path, since_ns)


def current_generation() -> int:
    """Return how often the operator's Python modules were dropped to be imported again; 0 if no `OwnModules` records imports."""
    modules = current_modules()
    return modules.generation if modules is not None else 0


def current_modules() -> OwnModules | None:
    """Return the `OwnModules` object that records imports in the current context, or `None`."""
    return _current.get()
