"""`FunctionSource`: provides the `@tool` functions of the Python modules that `expose.functions` names, as a source of tools.

It imports the modules in a worker thread, and collects their tools. Agents and workflows import Python objects with `import_object`.
Used by `app`, `agents` and `workflows`.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from gateway.config.suggest import did_you_mean
from gateway.errors import CODE_ERRORS, ConfigError
from gateway.tools.base import OnChange, Tool
from gateway.tools.function import FunctionTool
from gateway.tools.missing_imports import missing_imports
from gateway.tools.modules import current_modules

if TYPE_CHECKING:
    from collections.abc import Generator

logger = logging.getLogger(__name__)

IMPORT_TIMEOUT_SECONDS = 30.0
"""Timeout in seconds for importing one module; large scientific packages take several seconds on a cold disk."""

MAX_WRAPPERS = 20
"""Maximum number of objects that `unwrapped` returns: wrappers of a function, and the function itself. A longer chain is cut."""

STAYS = "The earlier version stays in use."
"""Sentence at the end of the message about a changed file that cannot be loaded, if its earlier version is served."""


def still_served(problem: str) -> str:
    """Add the sentence `STAYS` (the earlier version stays in use) to `problem`, a message about a changed file that cannot be loaded."""
    return f"{problem}{'' if problem.endswith(('.', '?', '!')) else '.'} {STAYS}"


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A file or module that a source could not load, and the reason. `str()` returns both as one line for people."""

    where: str
    """Name of the module, or path of the file."""
    message: str
    """Why the module or file was not loaded, and what to do."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class FunctionSource:
    """Source of the tools that Python modules define with `@tool`. The modules are imported once, when the source is entered.

    `problems` lists the modules and tools that could not be loaded.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        base_dir: Path,
        import_timeout_seconds: float = IMPORT_TIMEOUT_SECONDS,
        previous: FunctionSource | None = None,
    ) -> None:
        """Store the arguments. `modules` are dotted names, which are searched in `base_dir` first.

        `previous` is the source that this source replaces. If a module can no longer be imported, its tools in `previous` stay in use.
        """
        self._previous = previous
        self._modules = list(dict.fromkeys(modules))
        self._base_dir = base_dir
        self._timeout_seconds = import_timeout_seconds
        self._tools: dict[str, FunctionTool[..., Any]] = {}
        self._homes: dict[str, str] = {}
        self.problems: list[SourceProblem] = []

    @property
    def id(self) -> str:
        """The id of this source, always `function`."""
        return "function"

    async def __aenter__(self) -> FunctionSource:
        """Import all modules and collect their tools. A module that cannot be imported is added to `problems`; the others are loaded."""
        for name in self._modules:
            try:
                module = await import_from(name, base_dir=self._base_dir, timeout_seconds=self._timeout_seconds)
            except ConfigError as error:
                self._keep(name, str(error))
                continue
            self._collect(name, module)
        self._previous = None
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing, because the source has no open resources."""

    async def tools(self) -> Sequence[Tool]:
        """Return the tools in the order of the modules, and within a module in the order of their definitions."""
        return list(self._tools.values())

    def names_of(self, objects: Sequence[object]) -> list[str]:
        """Return the names of the tools that run one of `objects`, directly or through wrappers such as `functools.partial`."""
        return [name for name, tool in self._tools.items() if any(inner is one for inner in unwrapped(tool) for one in objects)]

    def subscribe(self, on_change: OnChange) -> None:
        """Do nothing, because modules are imported only once and the list of tools never changes."""

    def _keep(self, module_name: str, problem: str) -> None:
        """Add a module that cannot be imported to `problems`. If the replaced source has tools of the module, continue to serve them."""
        before = self._previous
        kept = [] if before is None else [tool for name, tool in before._tools.items() if before._homes[name] == module_name]
        self._note(module_name, still_served(problem) if kept else problem)
        for item in kept:
            self._add(module_name, item)

    def _collect(self, module_name: str, module: ModuleType) -> None:
        found = cast("list[FunctionTool[..., Any]]", [value for value in vars(module).values() if isinstance(value, FunctionTool)])
        if not found:
            self._note(module_name, "has no @tool function; write `from gateway import tool` and decorate one.")
        for item in found:
            self._add(module_name, item)

    def _add(self, module_name: str, item: FunctionTool[..., Any]) -> None:
        if item.declaration_only:
            self._note(module_name, f"tool {item.name!r} is only declared; give it a function to serve it.")
            return
        known = self._tools.setdefault(item.name, item)
        if known is not item:
            first = self._homes[item.name]
            self._note(module_name, f"tool {item.name!r} is already defined in {first!r}; rename one with @tool(name=…).")
            return
        self._homes.setdefault(item.name, module_name)
        try:
            _ = item.definition
        except TypeError as error:
            del self._tools[item.name]
            self._note(module_name, str(error))

    def _note(self, module_name: str, message: str) -> None:
        problem = SourceProblem(module_name, message)
        logger.warning("function not loaded module=%s problem=%s", problem.where, problem.message)
        self.problems.append(problem)


def unwrapped(found: object) -> list[object]:
    """Return the chain of an object and the functions inside it: the object, the function that it wraps, and so on.

    A `FunctionTool`, a `partial`, a bound method and a wrapper made with `functools.wraps` each wrap a function.
    """
    chain = [found]
    while len(chain) < MAX_WRAPPERS:
        inner = _inside(chain[-1])
        if inner is None or any(inner is known for known in chain):
            break
        chain.append(inner)
    return chain


def _inside(found: object) -> object | None:
    if isinstance(found, FunctionTool):
        return cast("FunctionTool[..., Any]", found).func
    if isinstance(found, partial):
        return cast("partial[Any]", found).func
    if isinstance(found, MethodType):
        return found.__func__
    return getattr(found, "__wrapped__", None)


async def import_from(name: str, *, base_dir: Path, timeout_seconds: float = IMPORT_TIMEOUT_SECONDS) -> ModuleType:
    """Import the module `name` in a worker thread, and return it. The folder `base_dir` is searched first.

    `base_dir` is in `sys.path` only during the import. An import that takes longer than `timeout_seconds` is abandoned: its thread
    continues.

    Raises:
        ConfigError: The module cannot be imported, or takes longer than the timeout; the text has the reason and the fix.
    """
    with anyio.move_on_after(timeout_seconds):
        return await anyio.to_thread.run_sync(partial(_import, name, str(base_dir)), abandon_on_cancel=True)
    raise ConfigError(f"Importing took longer than {timeout_seconds:g} s; move slow work out of the module's top level.", path=name)


async def import_object(reference: str, *, base_dir: Path, timeout_seconds: float = IMPORT_TIMEOUT_SECONDS) -> object:
    """Import the Python object that a reference of the form `pkg.module:attribute` names. The folder `base_dir` is searched first.

    Raises:
        ConfigError: The module cannot be imported (see `import_from`) or has no such attribute.
    """
    module_name, _, attribute = reference.partition(":")
    module = await import_from(module_name, base_dir=base_dir, timeout_seconds=timeout_seconds)
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise ConfigError(f"Module {module_name!r} has no {attribute!r}. {hint}".rstrip(), path=reference) from None


def _import(name: str, folder: str) -> ModuleType:
    modules, before, since = current_modules(), frozenset(sys.modules), time.time_ns()
    failure: BaseException | None = None
    try:
        with _first_on_path(folder):
            importlib.invalidate_caches()
            return importlib.import_module(name)
    except CODE_ERRORS as error:
        failure = error
        raise ConfigError(_why_not_imported(name, folder, error), path=name) from error
    finally:
        if modules is not None:
            modules.note(name, before, failure, since_ns=since)


def _why_not_imported(name: str, folder: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            return f"No module {missing!r} in {folder!r} or installed; check the spelling, or install its package beside Moongate."
    if not isinstance(error, ImportError):
        return f"Importing it failed: {type(error).__name__}: {error}. Run `python -c 'import {name}'` there to see where."
    with _first_on_path(folder):
        modules, names = missing_imports(error, folder)
    causes: list[str] = []
    if modules:
        are, them = ("is", "it") if len(modules) == 1 else ("are", "them")
        causes.append(f"It imports {_list(modules)}, which {are} not installed; install {them} beside Moongate.")
    if names:
        do = "does" if len(names) == 1 else "do"
        causes.append(f"It imports {_list(names)}, which {do} not exist; check the spelling and the version.")
    return " ".join(causes) or f"Importing it failed: {error}. Run `python -c 'import {name}'` there to see where."


def _list(names: Sequence[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} and {last}" if most else last


@contextmanager
def _first_on_path(folder: str) -> Generator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
