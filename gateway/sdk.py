"""`load`: imports modules such as the MCP SDK and the workflow engine on first use, in a thread, while other calls continue.

Importing the MCP SDK with its models, HTTP client and server takes longer than the gateway's start, and the gateway's own code (the fast
path) answers plain requests without it. A module that needs the SDK imports it normally. Before code imports such a module while requests
are served, it awaits `load` with the module's name.
"""

from __future__ import annotations

import importlib
import sys
import threading

import anyio.to_thread

_LOADING = threading.Lock()
"""Lock that a thread holds while it imports modules.

Without the lock, two threads could import modules that depend on each other, and each thread would see an incomplete module.
"""


async def load(*modules: str) -> None:
    """Import modules by their full names, in a worker thread if they are not imported yet.

    Raises:
        ImportError: As for an import statement.
    """
    if any(getattr(sys.modules.get(module), "__spec__", None) is None or _is_incomplete(module) for module in modules):
        await anyio.to_thread.run_sync(_import_all, modules)


def _is_incomplete(module: str) -> bool:
    """Return whether a module in `sys.modules` is still being imported, by any thread."""
    return bool(getattr(sys.modules[module].__spec__, "_initializing", False))


def _import_all(modules: tuple[str, ...]) -> None:
    with _LOADING:
        for module in modules:
            importlib.import_module(module)
