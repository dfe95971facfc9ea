"""The run loop of agents and chat clients: call the model, execute its tool calls, repeat. It yields the updates of the run.

`Agent` and `FunctionInvocationLayer` (for chat clients without an agent) use it. The loop ends when an answer has no tool calls, when a
person must approve a call or the caller must execute it, when middleware ends the run, or at a limit. At a limit the model is called once
more without tools, and tool calls in that answer are not executed. `docs/agent-loop.md` specifies every case.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, cast

from gateway.agents import run_approvals
from gateway.agents.batch import BatchResult, ToolBatch
from gateway.agents.call_history import CallHistory
from gateway.agents.run_updates import AgentUpdates, ChatUpdates, PartT, ReplacedAnswer, Updates, new_run_id
from gateway.chat.chat_context import ChatContext, ChatStream, SupportsChatGetResponse
from gateway.chat.chat_middleware import call_model
from gateway.chat.loop_options import LoopOptions
from gateway.errors import UnknownTool
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import Middleware
from gateway.sessions.compaction_provider import RunCompaction
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.invocation import FunctionInvocationContext, SessionData
from gateway.tools.tool_lists import normalize_tools
from gateway.tools.toolbox import guard_in
from gateway.types.content import Content
from gateway.types.messages import Message, own_copies
from gateway.types.options import ChatOptions, tool_mode
from gateway.types.responses import AgentResponseUpdate, ChatResponse, ChatResponseUpdate

NO_ANSWER = "I could not finish this within the limits of the run."
"""Text of the answer of a run that ended at a limit, if the model's last answer has no visible content."""

LIMIT_KEY = "stopped"
"""Key in a response's `additional_properties`: the limit that ended the run, as text."""

ARGUMENTS_OPTION = "additional_function_arguments"
"""Key in a run's options: run-time values that tools receive and the model does not. They override `function_invocation_kwargs`."""

_NOT_SENT = ("tools", "loop", ARGUMENTS_OPTION)

_INVISIBLE = frozenset({"function_call", "usage", "text_reasoning"})


class RunObserver(Protocol):
    """Receives a call for each step of an agent's run, for example to report progress to the MCP client."""

    async def model_called(self, number: int) -> None:
        """Called before the run's model call `number` (from 1)."""
        ...

    async def tools_called(self, names: Sequence[str]) -> None:
        """Called before the tools that the model called are executed; `names` are the tools' names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The prepared input of one run of the loop of model and tool calls."""

    client: SupportsChatGetResponse
    messages: list[Message]
    """The conversation, including the run's input. The run appends its answers and tool results."""
    tools: list[Tool]
    """The tools of the run. Tools and function middleware may change this list during the run."""
    hosted_tools: Sequence[JsonMapping] = ()
    """Tools that the model's provider executes, in the provider's format."""
    options: ChatOptions
    loop: LoopOptions
    ctx: CallContext
    stream: bool = True
    """Whether model calls are streamed."""
    function_middleware: Sequence[Middleware[FunctionInvocationContext]] = ()
    chat_middleware: Sequence[Middleware[ChatContext]] = ()
    session: SessionData | None = None
    function_invocation_kwargs: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    client_kwargs: JsonMapping | None = None
    """Keyword arguments that are passed to the chat client with each model call, besides messages and options."""
    compaction: RunCompaction | None = None
    """Shortens the messages of a model call, unless the model's provider stores the conversation."""
    agent_name: str | None = None
    agent_id: str | None = None
    observer: RunObserver | None = None
    history: CallHistory | None = None
    """Stores each model call and supplies the messages of the next one. If it is `None`, the run uses its own `messages`."""
    replaced: list[ReplacedAnswer] = field(default_factory=lambda: cast("list[ReplacedAnswer]", []))
    """Output of a streamed run: answers that middleware changed after their updates had been emitted."""


def run_stream(plan: RunPlan) -> AsyncGenerator[AgentResponseUpdate, None]:
    """Return a generator that runs the loop of model and tool calls for an agent, and yields the updates of the run.

    Raises:
        ModelError: A model call failed.
        UnknownTool: The model called an unknown tool, and the loop limits make that an error.
        MiddlewareFailure: Middleware failed the run.
    """
    hides = plan.history is not None and plan.history.hides_response_ids
    return _RunLoop(plan, AgentUpdates(new_run_id(), plan.agent_name, plan.agent_id, hides)).updates()


def answer_stream(plan: RunPlan) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Return a generator that runs the loop of model and tool calls for a chat client without an agent, and yields its updates.

    Raises:
        ModelError: A model call failed.
        UnknownTool: The model called an unknown tool, and the loop limits make that an error.
        MiddlewareFailure: Middleware failed the run.
    """
    return _RunLoop(plan, ChatUpdates(f"answer-{uuid.uuid4()}")).updates()


class _RunLoop(Generic[PartT]):
    """Executes one run of the loop of model and tool calls, and stores the state of the run."""

    def __init__(self, plan: RunPlan, parts: Updates[PartT]) -> None:
        self._plan = plan
        self._updates = parts
        more = plan.options.get(ARGUMENTS_OPTION)
        self._hidden = self._additional_tools() if plan.loop.additional_tools else []
        self._batch = ToolBatch(
            tools=plan.tools,
            hidden_tools=self._hidden,
            ctx=plan.ctx,
            options=plan.loop,
            middleware=plan.function_middleware,
            session=plan.session,
            kwargs={**plan.function_invocation_kwargs, **cast("JsonMapping", more)} if more else plan.function_invocation_kwargs,
        )
        self._options = cast("ChatOptions", {key: value for key, value in plan.options.items() if key not in _NOT_SENT})
        self._caller_tools = frozenset(tool.definition.name for tool in self._hidden if getattr(tool, "declaration_only", False))
        self._executed = 0
        self._errors = 0
        self._started = 0.0
        self._is_late = False
        self._emitted = 0
        self._may_be_replaced = plan.stream and bool(plan.chat_middleware or getattr(plan.client, "chat_middleware", None))
        self._ended = False
        self._given: list[Message] = []
        """Messages with tool results for the next model call; collected only if `RunPlan.history` stores each model call."""

    async def updates(self) -> AsyncGenerator[PartT, None]:
        plan = self._plan
        self._started = time.monotonic()
        if run_approvals.has_approvals(plan.messages):
            for update in await self._execute_approved():
                self._emitted += 1
                yield update
        run_approvals.log_hosted_approvals(plan.messages, plan.session)
        if len(plan.messages) > 1:
            run_approvals.close_open_calls(plan.messages)
        iteration = 0
        while not self._ended:
            iteration += 1
            message_id = f"{self._updates.response_id}-{iteration}"
            tools_off = iteration > plan.loop.max_iterations or self._limit() is not None
            if plan.observer is not None:
                await plan.observer.model_called(iteration)
            if iteration > 1 and plan.history is not None:
                await self._recall(plan.history)
            stream = await self._model_call(tools_off)
            update_message_id = message_id
            start, seen = self._emitted, cast("list[ChatResponseUpdate]", [])
            try:
                async for part in stream:
                    if self._may_be_replaced:
                        seen.append(part)
                    contents = [c for c in part.contents if c.type != "function_call"] if tools_off else part.contents
                    if part.message_id is not None:  # some servers reuse message ids, so the id gets the id of the model call as a prefix
                        update_message_id = f"{message_id}-{part.message_id}"
                    self._emitted += 1
                    yield self._updates.of_model(part, contents, update_message_id)
            finally:
                await stream.aclose()
            answer = await stream.get_final_response()
            if seen and answer.messages != ChatResponse.from_updates(seen).messages:
                plan.replaced.append(ReplacedAnswer(start, self._emitted, message_id, answer))
            for update in await self._process(answer, update_message_id, tools_off):
                self._emitted += 1
                yield update

    def _additional_tools(self) -> list[Tool]:
        """Return the tools of the option `additional_tools`, which may be called although the model does not receive their definitions.

        The tools are wrapped, so that the gate (authorization, approvals, limits) checks their calls.
        """
        tools = normalize_tools(self._plan.loop.additional_tools)
        guard = guard_in(self._plan.ctx)
        return tools if guard is None else guard.guarded(tools)

    # -- steps -------------------------------------------------------------------------------------------------

    async def _execute_approved(self) -> list[PartT]:
        """Before the first model call, execute the tool calls that approval responses in the messages approve. Return the updates."""
        plan = self._plan
        resumed = run_approvals.take_decisions(plan.messages, plan.session)
        run_approvals.restore_calls(plan.messages)
        results = list(resumed.refused)
        if resumed.calls:
            await self._report_tools(resumed.calls)
            outcome = await self._batch.run(resumed.calls, resumed.approvals)
            self._count(outcome)
            results += outcome.results
            self._ended = outcome.terminated
        if not results:
            return []
        _put_results(plan.messages, results, resumed.decided, is_kept_elsewhere=bool(self._options.get("conversation_id")))
        if plan.history is not None:
            self._given.append(Message("tool", list(results)))
        return [self._updates.own(results, "tool", f"{self._updates.response_id}-approved")]

    async def _recall(self, history: CallHistory) -> None:
        recalled = await history.recall(self._given)
        if recalled is not None:
            messages = own_copies(recalled)
            run_approvals.restore_calls(messages)
            run_approvals.close_open_calls(messages)
            self._plan.messages[:] = messages

    async def _model_call(self, tools_off: bool) -> ChatStream:
        plan = self._plan
        self._batch.guard_tools()
        options = cast("ChatOptions", dict(self._options))
        if tools_off:
            options["tool_choice"] = "none"
        elif plan.tools or plan.hosted_tools:
            options["tools"] = [*plan.tools, *plan.hosted_tools]
        else:
            options.pop("tool_choice", None)
        shown = plan.messages
        if plan.compaction is not None and not options.get("conversation_id"):
            shown = await plan.compaction.project(plan.messages)
        return call_model(
            plan.client,
            shown,
            options,
            stream=plan.stream,
            middleware=plan.chat_middleware,
            client_kwargs=plan.client_kwargs,
            session=plan.session,
        )

    async def _process(self, answer: ChatResponse, message_id: str, tools_off: bool) -> list[PartT]:
        """Process a model's answer: execute its tool calls, decide whether the run ends, and return the updates.

        The run ends before the calls are executed if the answer has no tool calls, the model was called without tools (`tools_off`), the
        run has no tools or tool calls are disabled, a person must approve a call, or the caller must execute a call. It ends after the
        calls if a call needs a person's answer, if middleware ended it, or if tool calls were forced and `return_tool_results` is set.
        """
        plan, loop = self._plan, self._plan.loop
        if plan.history is not None:
            said = _without_calls(answer.messages) if tools_off else answer.messages
            await plan.history.answered(self._given, said, answer)
            self._given = []
        plan.messages.extend(answer.messages)
        self._follow_conversation(answer)
        calls = _calls_of(answer.messages)
        self._ended = tools_off or not calls or not (plan.tools or self._hidden) or not loop.enabled
        if self._ended:
            return [self._limit_update(answer, message_id)] if tools_off else []
        waiting = self._awaiting_answer(calls)
        if waiting is not None:
            self._ended = True
            return [self._updates.own(waiting, "assistant", message_id)]
        was_forced = (tool_mode(self._options.get("tool_choice")) or {}).get("mode") == "required"
        await self._report_tools(calls)
        outcome = await self._batch.run(calls)
        updates: list[PartT] = []
        results = [content for content in outcome.results if not content.user_input_request]
        if results:
            plan.messages.append(Message("tool", list(results)))
            if plan.history is not None:
                self._given.append(plan.messages[-1])
            updates.append(self._updates.own(results, "tool", f"{message_id}-tools"))
        if outcome.waits:
            asked = [content for content in (*outcome.results, *outcome.extra) if content.user_input_request]
            run_approvals.remember_requests(asked, plan.session)
            updates.append(self._updates.own(asked, "assistant", f"{message_id}-asks"))
        self._ended = outcome.waits or outcome.terminated or (was_forced and loop.return_tool_results)
        self._count(outcome)
        if was_forced:
            del self._options["tool_choice"]  # a forced tool call applies to one model call; otherwise the run could never end with text
        return updates

    def _limit_update(self, answer: ChatResponse, message_id: str) -> PartT:
        """Return an update that names the limit that ended the run. If the last answer is empty, the update has the text `NO_ANSWER`."""
        says_nothing = all(content.type in _INVISIBLE for m in answer.messages for content in m.contents)
        said = [Content.from_text(NO_ANSWER)] if says_nothing else []
        limit = self._limit() or f"at most {self._plan.loop.max_iterations} rounds of tool calls"
        return self._updates.own(said, "assistant", message_id, {LIMIT_KEY: limit})

    def _limit(self) -> str | None:
        """Return, as text, the limit of tool calls, time or failures that the run has reached, else `None`. Model calls are not checked."""
        loop = self._plan.loop
        if loop.max_function_calls is not None and self._executed >= loop.max_function_calls:
            return f"at most {loop.max_function_calls} tool calls"
        if self._is_late:
            return f"at most {loop.max_duration_seconds:g} s of tool calls"
        if self._errors >= max(1, loop.max_consecutive_errors_per_request):
            return f"tools failed {self._errors} times in a row"
        return None

    async def _report_tools(self, calls: Sequence[Content]) -> None:
        if self._plan.observer is not None:
            await self._plan.observer.tools_called([call.name or "" for call in calls])

    def _awaiting_answer(self, calls: Sequence[Content]) -> list[Content] | None:
        """Return the contents that end the run because a person must approve a tool call, or the caller must execute it.

        Return `None` if all calls can be executed.

        Raises:
            UnknownTool: A tool is unknown, the loop limits make that an error, and no call needs an approval or the caller.
        """
        tools = [*self._hidden, *self._plan.tools]
        by_name = {tool.definition.name: tool for tool in tools}
        if any(run_approvals.needs_approval(by_name.get(call.name or "")) for call in calls):
            return run_approvals.request_approvals(calls, tools, self._caller_tools, self._plan.session)
        if any(call.name in self._caller_tools or getattr(by_name.get(call.name or ""), "declaration_only", False) for call in calls):
            for call in calls:
                call.user_input_request, call.id = True, call.call_id
            return list(calls)
        unknown = next((call.name for call in calls if call.name not in by_name), None)
        if unknown is not None and self._plan.loop.terminate_on_unknown_calls:
            raise UnknownTool(unknown)
        return None

    def _follow_conversation(self, answer: ChatResponse) -> None:
        """Send only new messages from now on if the answer has a conversation id: the model's provider then stores the conversation."""
        if answer.continuation_token is None:
            self._options.pop("continuation_token", None)
        if answer.conversation_id is None:
            return
        self._options["conversation_id"] = answer.conversation_id
        if self._plan.session is not None:
            self._plan.session.service_session_id = answer.conversation_id
        self._plan.messages.clear()

    def _count(self, outcome: BatchResult) -> None:
        self._executed += outcome.executed
        self._errors = self._errors + 1 if outcome.failed else 0
        limit = self._plan.loop.max_duration_seconds
        self._is_late = limit is not None and time.monotonic() - self._started >= limit


def _calls_of(messages: Sequence[Message]) -> list[Content]:
    """Return the tool calls in a model's answer that have no result in the same answer. Of several calls with one id, return the first.

    Only this answer is searched, because some servers reuse call ids in every answer.
    """
    seen = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    calls: list[Content] = []
    for content in (c for m in messages for c in m.contents if c.type == "function_call"):
        if content.call_id not in seen:
            seen.add(content.call_id)
            calls.append(content)
    return calls


def _without_calls(messages: Sequence[Message]) -> list[Message]:
    """Return copies of the messages without their tool calls; messages that would be empty are left out."""
    kept = own_copies(messages)
    for message in kept:
        message.contents = [content for content in message.contents if content.type != "function_call"]
    return [message for message in kept if message.contents]


def _put_results(messages: list[Message], results: list[Content], calls: Sequence[Content], *, is_kept_elsewhere: bool) -> None:
    """Sort tool results in call order, and insert them into `messages` directly after the messages that contain their calls.

    Calls that no message contains are added to `messages` first, for example calls that waited in the session for another call's approval.
    If the model's provider stores the conversation (`is_kept_elsewhere`), they are not added, because the provider has them.
    """
    call_indexes = {c.call_id: index for index, m in enumerate(messages) for c in m.contents if c.type == "function_call"}
    missing = [] if is_kept_elsewhere else [call for call in calls if call.call_id not in call_indexes]
    if missing:
        known = [call_indexes[call.call_id] for call in calls if call.call_id in call_indexes]
        if not known:
            messages.append(Message("assistant", []))
        call_index = max(known, default=len(messages) - 1)
        messages[call_index].contents += missing
        call_indexes |= {call.call_id: call_index for call in missing}
    places = [c.call_id for m in messages for c in m.contents if c.type == "function_call"] + [call.call_id for call in calls]
    results.sort(key=lambda result: places.index(result.call_id) if result.call_id in places else len(places))
    by_call_index: dict[int, list[Content]] = {}
    for result in results:
        by_call_index.setdefault(call_indexes.get(result.call_id, -1), []).append(result)
    for call_index in sorted(by_call_index, reverse=True):
        messages.insert(call_index + 1, Message("tool", by_call_index[call_index]))
