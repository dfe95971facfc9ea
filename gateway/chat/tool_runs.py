"""`TOOL_RUNS`: the object through which chat clients run the tools that a model calls. The package `agents` has the implementation.

`chat` may not import `agents`. Therefore the package `gateway`, which Python imports before all of its modules, sets `TOOL_RUNS.answers` to
the function. This module imports only `typing` at run time, so that `import gateway` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.chat.chat_context import ChatStream, ClientRequest


class ToolRuns:
    """Runs the loop of model and tool calls for chat clients."""

    answers: Callable[[ClientRequest], ChatStream]
    """Starts a run of model and tool calls, and returns its stream of answers and tool results in order."""


TOOL_RUNS = ToolRuns()
