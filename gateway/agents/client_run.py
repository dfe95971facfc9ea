"""`get_response` of a chat client where it is more than one model call: the run loop of agents, without an agent.

There is one loop. An agent makes its own plan for it and asks its client for single model calls, so a client's tools are
never run twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, cast

from gateway.agents.parts import ChatParts, Replaced, with_replaced
from gateway.agents.run import RunPlan, answer_stream
from gateway.chat.base import ClientRequest, OptionsT
from gateway.chat.limits import loop_options
from gateway.middleware import sort_middleware
from gateway.sessions.compacting import RunCompaction
from gateway.tools.context import CallContext
from gateway.tools.given import normalize_tools, tell_apart
from gateway.types.messages import own_copies
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    from gateway.chat.middleware import ChatStream


class FunctionInvocationLayer(Generic[OptionsT]):
    """Runs the tools that a chat client's answers ask for.

    Every `BaseChatClient` has it. A class that names it among its bases, as agent-framework's clients do, gets nothing more.
    """

    @staticmethod
    def answers(request: ClientRequest) -> ChatStream:
        """The parts of model calls and tool results in their order; whole, they are one response with all its messages.

        Raises as `run_stream` does, when it is read.
        """
        replaced: list[Replaced] = []

        def fold(updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
            whole = with_replaced(updates, replaced, ChatParts("")) if replaced else updates
            return ChatResponse.from_updates(whole, output_format_type=request.options.get("response_format"))

        return ResponseStream(_answers(request, replaced), fold)


async def _answers(request: ClientRequest, replaced: list[Replaced]) -> AsyncGenerator[ChatResponseUpdate, None]:
    options = cast("dict[str, Any]", dict(request.options))
    tools, hosted = await tell_apart(normalize_tools(options.pop("tools", None)))
    around = sort_middleware(list(request.middleware))
    strategy = request.compaction_strategy
    plan = RunPlan(
        client=request.client,
        messages=own_copies(request.messages),
        tools=tools,
        hosted_tools=hosted,
        options=cast("Any", options),
        loop=loop_options(request.client.function_invocation_configuration, request.limits),
        ctx=CallContext(),
        stream=request.stream,
        function_middleware=around.function,
        chat_middleware=around.chat,
        session=request.session,
        function_invocation_kwargs=request.function_invocation_kwargs,
        client_kwargs=request.client_kwargs,
        compaction=RunCompaction(strategy, request.tokenizer) if strategy or request.tokenizer else None,
        replaced=replaced,
    )
    async with aclosing(answer_stream(plan)) as updates:
        async for update in updates:
            yield update
