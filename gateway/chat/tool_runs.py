"""`TOOL_RUNS`: the object through which chat clients run the tools that a model calls. The package `agents` has the implementation.

`chat` may not import `agents`, so the package `gateway`, which is imported before all its modules, sets the function in `TOOL_RUNS`.
This module imports no other module of `gateway` at run time, so that `import gateway` stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.chat.chat_context import ChatStream, SupportsChatGetResponse
    from gateway.json_types import JsonMapping
    from gateway.tools.invocation import SessionData
    from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
    from gateway.types.messages import Message
    from gateway.types.options import ChatOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The arguments of a call of `get_response` that may have to run tools or to shorten the conversation (compaction)."""

    client: SupportsChatGetResponse
    client_limits: JsonMapping
    """The client's limits on the loop of model and tool calls."""
    messages: list[Message]
    options: ChatOptions
    stream: bool
    limits: JsonMapping | None
    """Limits on the loop of model and tool calls. They override the limits of the client for this call."""
    middleware: Sequence[object]
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    client_kwargs: JsonMapping
    function_invocation_kwargs: JsonMapping
    session: SessionData | None


class ToolRuns:
    """Runs the loop of model and tool calls for chat clients."""

    answers: Callable[[ClientRequest], ChatStream]
    """Starts a run of model and tool calls, and returns its stream of answers and tool results in order."""


TOOL_RUNS = ToolRuns()
