"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers.

The file `__init__.pyi` declares the public names of the library. They load on first use (PEP 562), so `import gateway` imports no model or
protocol package. The command line and the server are not part of the public API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.chat.tool_runs import TOOL_RUNS
from gateway.former_names import HINTS
from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.chat.chat_context import ChatStream, ClientRequest

__version__ = "0.1.0"

__getattr__ = lazy_names(__name__, hints=HINTS)


def _answers(request: ClientRequest) -> ChatStream:
    from gateway.agents.client_run import FunctionInvocationLayer

    return FunctionInvocationLayer.answers(request)


TOOL_RUNS.answers = _answers
