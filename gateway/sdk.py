"""Imports modules when they are first needed, without holding up what runs meanwhile: what needs the SDK, and the workflow engine.

The SDK and what it brings (its models of both eras, its HTTP client, its server) take longer to import than the gateway takes to
start, so plain 2026 traffic goes without. A module that needs it imports it as usual, at its top; whoever needs that module
while requests are served awaits `load` with its name, and imports from it afterwards.
"""

from __future__ import annotations

import importlib
import sys
import threading

import anyio.to_thread

_LOADING = threading.Lock()
"""Two threads that import modules which import each other would see them half made."""


async def load(*modules: str) -> None:
    """Import modules by their full names, in a worker thread where one is not there yet; idempotent, and cheap from the second time on.

    Raises:
        ImportError: As an import statement.
    """
    if any(getattr(sys.modules.get(module), "__spec__", None) is None or _is_half_made(module) for module in modules):
        await anyio.to_thread.run_sync(_import_all, modules)


def _is_half_made(module: str) -> bool:
    """Whether a thread is still importing it."""
    return bool(getattr(sys.modules[module].__spec__, "_initializing", False))


def _import_all(modules: tuple[str, ...]) -> None:
    with _LOADING:
        for module in modules:
            importlib.import_module(module)
