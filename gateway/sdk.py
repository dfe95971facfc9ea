"""`load`: imports modules on first use in a thread, such as the MCP SDK and the workflow engine, while other calls continue.

Importing the SDK with its models, HTTP client and server takes longer than the gateway's start, and plain 2026 traffic does not need it. A
module that needs the SDK imports it normally. Code that needs such a module while requests are served awaits `load` with its name first.
"""

from __future__ import annotations

import importlib
import sys
import threading

import anyio.to_thread

_LOADING = threading.Lock()
"""Held while importing: two threads that import modules which import each other would see them incomplete."""


async def load(*modules: str) -> None:
    """Import modules by their full names, in a worker thread if necessary. Cheap if they are imported already.

    Raises:
        ImportError: As for an import statement.
    """
    if any(getattr(sys.modules.get(module), "__spec__", None) is None or _is_incomplete(module) for module in modules):
        await anyio.to_thread.run_sync(_import_all, modules)


def _is_incomplete(module: str) -> bool:
    """Whether a module in `sys.modules` is still being imported, by any thread."""
    return bool(getattr(sys.modules[module].__spec__, "_initializing", False))


def _import_all(modules: tuple[str, ...]) -> None:
    with _LOADING:
        for module in modules:
            importlib.import_module(module)
