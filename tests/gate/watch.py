"""`Watch`: notes which tools and sources a gateway reaches, and what of it the gate has not admitted; for `test_nothing_bypasses`."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

import pytest

from gateway.gate.own_tools import is_guarded
from gateway.gate.reads import ReadCall
from gateway.gate.tools import TaskCall, ToolCall
from gateway.server.calls import CallHandler
from gateway.server.sdk_path.call_methods import CallMethods
from gateway.server.sdk_path.read_methods import ReadMethods
from gateway.tools.function import FunctionTool
from tests.architecture.imports import module_of
from tests.architecture.sources import nodes_of, parsed, python_files
from tests.gate.places import METHODS

GATE = frozenset({"GuardedTool", "Catalog"})
"""Classes with such methods that take each call through the gate themselves."""

Found = tuple[type, str]


def implementations() -> list[Found]:
    """Every class of the package that defines one of the methods, except protocols and the gate."""
    found: list[Found] = []
    for path in python_files("gateway"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and node.name not in GATE and "Protocol" not in {ast.unparse(base) for base in node.bases}:
                names = [item.name for item in node.body if isinstance(item, ast.AsyncFunctionDef | ast.FunctionDef) and _is_way(item)]
                if names:
                    module = importlib.import_module(module_of(path))
                    found += [(getattr(module, node.name), name) for name in names]
    return [*found, (FunctionTool, "run")]


def _is_way(node: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    return [argument.arg for argument in node.args.args[1:]] == METHODS.get(node.name)


HANDLERS = [
    *((CallHandler, name) for name in ("run", "run_plain", "run_legacy")),
    (CallMethods, "__call__"),
    *((ReadMethods, name) for name in ("read", "get_prompt", "complete")),
]
"""Methods of the server by which a test sees which path a request takes."""


def _providers() -> list[type]:
    """Every class of the package that works before or after a run of an agent."""
    found: list[type] = []
    for path in python_files("gateway"):
        if names := with_methods(parsed(path), {"before_run", "after_run"}):
            module = importlib.import_module(module_of(path))
            found += [kind for name in names if name != "SessionContext" and isinstance(kind := getattr(module, name), type)]
    return found


def with_methods(tree: ast.AST, names: set[str]) -> set[str]:
    """The names of classes that define a method with one of these names."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name for node in classes if names & {getattr(item, "name", "") for item in node.body}}


class Watch:
    """Records which implementations are called, and which of these calls are outside the gate."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached: list[str] = []
        self.outside: set[str] = set()
        self.gated: list[str] = []
        self.handlers: set[str] = set()
        self.providers: set[str] = set()
        self._holder: ContextVar[list[object]] = ContextVar("holder")
        for owner, name in implementations():
            patch.setattr(owner, name, self._watched(owner, name))
        patch.setattr(ToolCall, "run", self._within(ToolCall.run, lambda call: call._tool.tool))
        patch.setattr(ReadCall, "run", self._within(ReadCall.run, lambda call: call.gate.source))
        patch.setattr(TaskCall, "run", self._within(TaskCall.run, lambda call: call._tool.tool))
        for owner, name in HANDLERS:
            patch.setattr(owner, name, self._noted(getattr(owner, name), lambda this, name=name: self.handlers.add(name)))
        for owner, name in ((kind, name) for kind in _providers() for name in ("before_run", "after_run") if name in vars(kind)):
            patch.setattr(owner, name, self._noted(getattr(owner, name), lambda this: self.providers.add(type(this).__name__)))

    @contextmanager
    def _holding(self, holder: object) -> Generator[None]:
        """Admit one object, and what it holds, until the end of the block; tasks that were started in the block lose it then, too."""
        held = [holder]
        token = self._holder.set(held)
        try:
            yield
        finally:
            held.clear()
            self._holder.reset(token)

    def _noted(self, method: Any, note: Callable[[Any], object]) -> Any:
        @wraps(method)
        def noted(this: Any, *given: Any, **named: Any) -> Any:
            note(this)
            return method(this, *given, **named)

        return noted

    def _within(self, run: Any, holder_of: Callable[[Any], object]) -> Any:
        """The gate's step, which admits one tool, or one source by its id."""

        @wraps(run)
        async def within(gated: Any, *given: Any) -> Any:
            self.gated.append(type(gated).__name__)
            with self._holding(holder_of(gated)):
                return await run(gated, *given)

        return within

    def _watched(self, owner: type, name: str) -> Any:
        method = getattr(owner, name)

        @wraps(method)
        async def watched(this: Any, *given: Any) -> Any:
            self.reached.append(f"{owner.__name__}.{name}")
            if not self._is_admitted(this):
                self.outside.add(f"{owner.__name__}.{name}")
            with nullcontext() if is_guarded(this) else self._holding(this):
                return await method(this, *given)

        return watched

    def _is_admitted(self, this: Any) -> bool:
        """Whether the gate admitted this object, its source, or an object that holds this one and passes its call on.

        An object around a guarded tool needs no admission: its call comes to the gate next.
        """
        if is_guarded(this):
            return True
        held = self._holder.get([])
        holder = held[0] if held else None
        return holder is this or holder == getattr(this, "id", this) or any(this is part for part in _parts(holder))


def _parts(holder: object) -> list[object]:
    """What an object holds, with the objects of the methods among it."""
    slots = [getattr(holder, name, None) for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
    held = [*getattr(holder, "__dict__", {}).values(), *slots]
    return [*held, *(getattr(part, "__self__", None) for part in held)]
