"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers.

The file `__init__.pyi` declares the public names of the library. They load on first use (PEP 562), so `import gateway` imports no model or
protocol package. The command line and the server are not part of the public API.
"""

from __future__ import annotations

from gateway.chat.tool_runs import TOOL_RUNS, ToolRuns
from gateway.former import HINTS
from gateway.lazy import lazy_names

__version__ = "0.1.0"

__getattr__ = lazy_names(__name__, hints=HINTS)


def _tool_runs() -> ToolRuns:
    from gateway.agents.client_run import FunctionInvocationLayer

    return FunctionInvocationLayer


TOOL_RUNS.load = _tool_runs
