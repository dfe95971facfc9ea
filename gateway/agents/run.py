"""The run loop of agents, written once, as a stream: call the model, run the tools it asks for, repeat.

`Agent.run` folds the stream for whole responses. The loop ends when an answer has no tool calls, or at a limit:
then the model gets one last call without tools, and what it still asks for is not executed (requirements TL3-TL6).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.agents.batch import Batch
from gateway.agents.options import LoopOptions
from gateway.chat.base import SupportsChatGetResponse
from gateway.middleware import Middleware
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponseUpdate, ChatResponse, ChatResponseUpdate

NO_ANSWER = "I could not finish this within the limits of the run."
"""Said where the last call gave nothing a reader could see (requirements TL4)."""


class RunObserver(Protocol):
    """Hears of the run's steps; what `AgentTool` turns into progress."""

    async def model_called(self, number: int) -> None:
        """The model is asked for the `number`th time, from 1."""
        ...

    async def tools_called(self, names: Sequence[str]) -> None:
        """The model asked for these tools."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything one run needs, prepared."""

    client: SupportsChatGetResponse
    messages: list[Message]
    """The conversation so far with the new input; the run appends to it."""
    tools: list[Tool]
    """Live: function middleware may change it."""
    options: ChatOptions
    loop: LoopOptions
    ctx: CallContext
    middleware: Sequence[Middleware[FunctionInvocationContext]]
    agent_name: str | None
    observer: RunObserver | None = None


async def run_stream(plan: RunPlan) -> AsyncGenerator[AgentResponseUpdate, None]:
    """One run.

    Raises:
        ModelError: The model failed.
        AgentError: An unknown tool was called and the options forbid that.
    """
    batch = Batch(plan.tools, plan.ctx, plan.loop, plan.middleware)
    response_id = f"run-{uuid.uuid4()}"
    executed = errors = 0
    tools_off = False
    for iteration in range(1, plan.loop.max_iterations + 1):
        tools_off = tools_off or iteration == plan.loop.max_iterations
        if plan.observer is not None:
            await plan.observer.model_called(iteration)
        parts: list[ChatResponseUpdate] = []
        message_id = f"{response_id}-{iteration}"
        async for part in _model_call(plan, with_tools=not tools_off, is_first=iteration == 1):
            parts.append(part)
            contents = [c for c in part.contents if not (tools_off and c.type == "function_call")]
            yield AgentResponseUpdate(contents, "assistant", plan.agent_name, message_id, response_id, part.finish_reason)
        answer = ChatResponse.from_updates(parts).messages[0]
        plan.messages.append(answer)
        calls = _calls_of(answer)
        if not calls or tools_off:
            if tools_off and not answer.text:
                yield AgentResponseUpdate([Content.from_text(NO_ANSWER)], "assistant", plan.agent_name, message_id, response_id)
            return
        if plan.observer is not None:
            await plan.observer.tools_called([call.name or "" for call in calls])
        outcome = await batch.run(calls)
        plan.messages.append(Message("tool", outcome.results))
        yield AgentResponseUpdate(list(outcome.results), "tool", None, f"{message_id}-tools", response_id)
        if outcome.terminated:
            return
        executed += len(calls)
        errors = errors + 1 if outcome.failed else 0
        over = plan.loop.max_function_calls is not None and executed >= plan.loop.max_function_calls
        tools_off = over or (errors > 0 and errors >= plan.loop.max_consecutive_errors)


async def _model_call(plan: RunPlan, *, with_tools: bool, is_first: bool) -> AsyncGenerator[ChatResponseUpdate, None]:
    options = cast("ChatOptions", dict(plan.options))
    if not is_first and options.get("tool_choice") not in (None, "auto", "none"):
        del options["tool_choice"]  # a forced choice holds once, or the run could never end in text (requirements C9)
    if with_tools and plan.tools:
        options["tools"] = list(plan.tools)
    else:
        options.pop("tool_choice", None)
    stream = plan.client.get_response(plan.messages, stream=True, options=options)
    try:
        async for part in stream:
            yield part
    finally:
        await stream.aclose()


def _calls_of(answer: Message) -> list[Content]:
    """The answer's tool calls; a repeated call id counts once. Some servers use the same ids in every answer."""
    calls: list[Content] = []
    seen: set[str] = set()
    for content in answer.contents:
        if content.type == "function_call" and (content.call_id or "") not in seen:
            seen.add(content.call_id or "")
            calls.append(content)
    return calls
