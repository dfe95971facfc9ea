"""The run loop of agents, written once, as a stream: call the model, run the tools it asks for, repeat.

`Agent.run` folds the stream for whole responses. The loop ends when an answer has no tool calls, when a call must be
answered by somebody else, or at a limit: then the model gets one last call without tools, and what it still asks for is
not executed (requirements TL3-TL6). Its behaviour in every corner is the matrix of `docs/agent-loop.md`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, cast

from gateway.agents import approvals
from gateway.agents.batch import Batch, BatchOutcome
from gateway.agents.parts import AgentParts, ChatParts, Parts, PartT, Replaced, new_run_id
from gateway.chat.base import SupportsChatGetResponse
from gateway.chat.limits import LoopOptions
from gateway.chat.middleware import ChatContext, ChatStream, call_model
from gateway.errors import UnknownTool
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import Middleware
from gateway.sessions.compacting import RunCompaction
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.given import normalize_tools
from gateway.tools.invocation import FunctionInvocationContext, SessionData
from gateway.types.content import Content
from gateway.types.messages import Message, own_copies
from gateway.types.options import ChatOptions, tool_mode
from gateway.types.responses import AgentResponseUpdate, ChatResponse, ChatResponseUpdate

NO_ANSWER = "I could not finish this within the limits of the run."
"""Said where the last call gave nothing a reader could see (requirements TL4)."""

LIMIT_KEY = "stopped"
"""In a response's `additional_properties`: the limit that ended its run, in words."""

ARGUMENTS_OPTION = "additional_function_arguments"
"""Among the options: more values for tools, over `function_invocation_kwargs`."""

_NOT_SENT = ("tools", "loop", ARGUMENTS_OPTION)

_INVISIBLE = frozenset({"function_call", "usage", "text_reasoning"})


class RunObserver(Protocol):
    """Hears of the run's steps; what `AgentTool` turns into progress."""

    async def model_called(self, number: int) -> None:
        """The model is asked for the `number`th time, from 1."""
        ...

    async def tools_called(self, names: Sequence[str]) -> None:
        """The model asked for these tools."""
        ...


class KeepsCalls(Protocol):
    """Keeps a conversation call by call; `CallHistory` does."""

    @property
    def hides_response_ids(self) -> bool:
        """Whether the run's updates and response have no response id, because the id continues nothing."""
        ...

    async def recall(self, given: Sequence[Message]) -> list[Message] | None:
        """What the next model call is shown: what is kept by now, then `given`; `None`: the run's own messages."""
        ...

    async def answered(self, given: Sequence[Message], said: Sequence[Message], answer: ChatResponse) -> None:
        """A model call ended: the tools' results that it was given, what of its answer counts, and the answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything one run needs, prepared."""

    client: SupportsChatGetResponse
    messages: list[Message]
    """The conversation so far with the new input; the run appends to it."""
    tools: list[Tool]
    """Live: tools and function middleware may change it."""
    hosted_tools: Sequence[Any] = ()
    """Tools that the provider runs, in its own form."""
    options: ChatOptions
    loop: LoopOptions
    ctx: CallContext
    stream: bool = True
    """Whether the model is asked for its answer in parts."""
    function_middleware: Sequence[Middleware[FunctionInvocationContext]] = ()
    chat_middleware: Sequence[Middleware[ChatContext]] = ()
    session: SessionData | None = None
    function_invocation_kwargs: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    client_kwargs: JsonMapping | None = None
    """What the client gets beside messages and options."""
    compaction: RunCompaction | None = None
    """What the model is shown of a long conversation, where the conversation is ours."""
    agent_name: str | None = None
    agent_id: str | None = None
    observer: RunObserver | None = None
    history: KeepsCalls | None = None
    """Stores each model call by itself, and says what the next one is shown; `None`: that is the run's own messages."""
    replaced: list[Replaced] = field(default_factory=lambda: cast("list[Replaced]", []))
    """Filled by a streamed run: answers whose whole is not what their parts were."""


def run_stream(plan: RunPlan) -> AsyncGenerator[AgentResponseUpdate, None]:
    """One run of an agent.

    Raises:
        ModelError: The model failed.
        UnknownTool: An unknown tool was called and the options forbid that.
        MiddlewareFailure: Middleware failed the run.
    """
    hides = plan.history is not None and plan.history.hides_response_ids
    return _Run(plan, AgentParts(new_run_id(), plan.agent_name, plan.agent_id, hides)).updates()


def answer_stream(plan: RunPlan) -> AsyncGenerator[ChatResponseUpdate, None]:
    """The same loop for a chat client without an agent; raises the same."""
    return _Run(plan, ChatParts(f"answer-{uuid.uuid4()}")).updates()


class _Run(Generic[PartT]):
    """The state of one run."""

    def __init__(self, plan: RunPlan, parts: Parts[PartT]) -> None:
        self._plan = plan
        self._parts = parts
        more = plan.options.get(ARGUMENTS_OPTION)
        self._hidden = self._additional_tools() if plan.loop.additional_tools else []
        self._batch = Batch(
            tools=plan.tools,
            hidden_tools=self._hidden,
            ctx=plan.ctx,
            options=plan.loop,
            middleware=plan.function_middleware,
            session=plan.session,
            kwargs={**plan.function_invocation_kwargs, **cast("JsonMapping", more)} if more else plan.function_invocation_kwargs,
        )
        self._options = cast("ChatOptions", {key: value for key, value in plan.options.items() if key not in _NOT_SENT})
        self._handed_back = frozenset(tool.definition.name for tool in self._hidden if getattr(tool, "declaration_only", False))
        self._executed = 0
        self._errors = 0
        self._started = 0.0
        self._is_late = False
        self._told = 0
        self._may_be_replaced = plan.stream and bool(plan.chat_middleware or getattr(plan.client, "chat_middleware", None))
        self._ended = False
        self._given: list[Message] = []
        """The tools' results that the next model call is given; kept only where somebody wants them."""

    async def updates(self) -> AsyncGenerator[PartT, None]:
        plan = self._plan
        self._started = time.monotonic()
        if approvals.answered(plan.messages):
            for update in await self._resumed():
                self._told += 1
                yield update
        approvals.note_hosted(plan.messages, plan.session)
        if len(plan.messages) > 1:
            approvals.close_open_calls(plan.messages)
        iteration = 0
        while not self._ended:
            iteration += 1
            message_id = f"{self._parts.response_id}-{iteration}"
            tools_off = iteration > plan.loop.max_iterations or self._is_over()
            if plan.observer is not None:
                await plan.observer.model_called(iteration)
            if iteration > 1 and plan.history is not None:
                await self._recall(plan.history)
            stream = await self._model_call(tools_off)
            told_id = message_id
            start, seen = self._told, cast("list[ChatResponseUpdate]", [])
            try:
                async for part in stream:
                    if self._may_be_replaced:
                        seen.append(part)
                    contents = [c for c in part.contents if c.type != "function_call"] if tools_off else part.contents
                    if part.message_id is not None:  # told apart by the model call: servers use the same ids again
                        told_id = f"{message_id}-{part.message_id}"
                    self._told += 1
                    yield self._parts.of_model(part, contents, told_id)
            finally:
                await stream.aclose()
            answer = await stream.get_final_response()
            if seen and answer.messages != ChatResponse.from_updates(seen).messages:
                plan.replaced.append(Replaced(start, self._told, message_id, answer))
            for update in await self._after(answer, told_id, tools_off):
                self._told += 1
                yield update

    def _additional_tools(self) -> list[Tool]:
        """Return the tools that may be called though the model is not told of them, behind the gate of the run."""
        tools = normalize_tools(self._plan.loop.additional_tools)
        guard = self._plan.ctx.tool_guard
        return tools if guard is None else guard.guarded(tools)

    # -- steps -------------------------------------------------------------------------------------------------

    async def _resumed(self) -> list[PartT]:
        """Run what answers among the messages approved, before the model is asked."""
        plan = self._plan
        resumed = approvals.resume(plan.messages, plan.session)
        approvals.settle(plan.messages)
        results = list(resumed.refused)
        if resumed.calls:
            await self._tell_tools(resumed.calls)
            outcome = await self._batch.run(resumed.calls, resumed.approvals)
            self._count(outcome)
            results += outcome.results
            self._ended = outcome.terminated
        if not results:
            return []
        _put_results(plan.messages, results, resumed.decided, is_kept_elsewhere=bool(self._options.get("conversation_id")))
        if plan.history is not None:
            self._given.append(Message("tool", list(results)))
        return [self._parts.own(results, "tool", f"{self._parts.response_id}-approved")]

    async def _recall(self, history: KeepsCalls) -> None:
        recalled = await history.recall(self._given)
        if recalled is not None:
            messages = own_copies(recalled)
            approvals.settle(messages)
            approvals.close_open_calls(messages)
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

    async def _after(self, answer: ChatResponse, message_id: str, tools_off: bool) -> list[PartT]:
        """What follows an answer: nothing more, what somebody else must answer, or the results of its calls."""
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
            return [self._last_word(answer, message_id)] if tools_off else []
        waiting = self._to_be_answered(calls)
        if waiting is not None:
            self._ended = True
            return [self._parts.own(waiting, "assistant", message_id)]
        was_forced = _is_forced(self._options)
        await self._tell_tools(calls)
        outcome = await self._batch.run(calls)
        updates: list[PartT] = []
        results = [content for content in outcome.results if not content.user_input_request]
        if results:
            plan.messages.append(Message("tool", list(results)))
            if plan.history is not None:
                self._given.append(plan.messages[-1])
            updates.append(self._parts.own(results, "tool", f"{message_id}-tools"))
        if outcome.waits:
            asked = [content for content in (*outcome.results, *outcome.extra) if content.user_input_request]
            approvals.remember(asked, plan.session)
            updates.append(self._parts.own(asked, "assistant", f"{message_id}-asks"))
        self._ended = outcome.waits or outcome.terminated or (was_forced and loop.return_tool_results)
        self._count(outcome)
        if was_forced:
            del self._options["tool_choice"]  # it holds once, or the run could never end in text (requirements C9)
        return updates

    def _last_word(self, answer: ChatResponse, message_id: str) -> PartT:
        """Which limit ended the run, with a sentence where the model said nothing."""
        says_nothing = all(content.type in _INVISIBLE for m in answer.messages for content in m.contents)
        said = [Content.from_text(NO_ANSWER)] if says_nothing else []
        return self._parts.own(said, "assistant", message_id, {LIMIT_KEY: self._limit()})

    def _limit(self) -> str:
        loop = self._plan.loop
        if loop.max_function_calls is not None and self._executed >= loop.max_function_calls:
            return f"at most {loop.max_function_calls} tool calls"
        if self._is_late:
            return f"at most {loop.max_duration_seconds:g} s of tool calls"
        if self._errors >= max(1, loop.max_consecutive_errors_per_request):
            return f"tools failed {self._errors} times in a row"
        return f"at most {loop.max_iterations} rounds of tool calls"

    async def _tell_tools(self, calls: Sequence[Content]) -> None:
        if self._plan.observer is not None:
            await self._plan.observer.tools_called([call.name or "" for call in calls])

    def _to_be_answered(self, calls: Sequence[Content]) -> list[Content] | None:
        """What a batch ends the run with where somebody else must answer; `None` where it can be run.

        Raises:
            UnknownTool: A tool is unknown and the options say that this ends the run; a pause for an approval comes first.
        """
        tools = [*self._hidden, *self._plan.tools]
        by_name = {tool.definition.name: tool for tool in tools}
        if any(approvals.needs_approval(by_name.get(call.name or "")) for call in calls):
            return approvals.ask(calls, tools, self._handed_back, self._plan.session)
        if any(call.name in self._handed_back or getattr(by_name.get(call.name or ""), "declaration_only", False) for call in calls):
            for call in calls:
                call.user_input_request, call.id = True, call.call_id
            return list(calls)
        unknown = next((call.name for call in calls if call.name not in by_name), None)
        if unknown is not None and self._plan.loop.terminate_on_unknown_calls:
            raise UnknownTool(unknown)
        return None

    def _follow_conversation(self, answer: ChatResponse) -> None:
        """Where the provider keeps the conversation it only gets what is new from now on."""
        if answer.continuation_token is None:
            self._options.pop("continuation_token", None)
        if answer.conversation_id is None:
            return
        self._options["conversation_id"] = answer.conversation_id
        if self._plan.session is not None:
            self._plan.session.service_session_id = answer.conversation_id
        self._plan.messages.clear()

    def _count(self, outcome: BatchOutcome) -> None:
        self._executed += outcome.executed
        self._errors = self._errors + 1 if outcome.failed else 0
        limit = self._plan.loop.max_duration_seconds
        self._is_late = limit is not None and time.monotonic() - self._started >= limit

    def _is_over(self) -> bool:
        loop = self._plan.loop
        over = loop.max_function_calls is not None and self._executed >= loop.max_function_calls
        return over or self._is_late or (self._errors > 0 and self._errors >= loop.max_consecutive_errors_per_request)


def _is_forced(options: ChatOptions) -> bool:
    mode = tool_mode(options.get("tool_choice"))
    return mode is not None and mode.get("mode") == "required"


def _calls_of(messages: Sequence[Message]) -> list[Content]:
    """The answer's tool calls that have no result in it; a repeated call id counts once.

    Some servers use the same ids in every answer, so what earlier answers had does not matter.
    """
    seen = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    calls: list[Content] = []
    for content in (c for m in messages for c in m.contents if c.type == "function_call"):
        if content.call_id not in seen:
            seen.add(content.call_id)
            calls.append(content)
    return calls


def _without_calls(messages: Sequence[Message]) -> list[Message]:
    """Copies without the calls that nobody runs any more."""
    kept = own_copies(messages)
    for message in kept:
        message.contents = [content for content in message.contents if content.type != "function_call"]
    return [message for message in kept if message.contents]


def _put_results(messages: list[Message], results: list[Content], calls: Sequence[Content], *, is_kept_elsewhere: bool) -> None:
    """Sort the results as their calls are, and add them right after the messages with these.

    Calls that no message has (they were held, or only answered) are added. A provider that keeps the conversation has them already.
    """
    homes = {c.call_id: index for index, m in enumerate(messages) for c in m.contents if c.type == "function_call"}
    missing = [] if is_kept_elsewhere else [call for call in calls if call.call_id not in homes]
    if missing:
        known = [homes[call.call_id] for call in calls if call.call_id in homes]
        if not known:
            messages.append(Message("assistant", []))
        home = max(known, default=len(messages) - 1)
        messages[home].contents += missing
        homes |= {call.call_id: home for call in missing}
    places = [c.call_id for m in messages for c in m.contents if c.type == "function_call"] + [call.call_id for call in calls]
    results.sort(key=lambda result: places.index(result.call_id) if result.call_id in places else len(places))
    by_home: dict[int, list[Content]] = {}
    for result in results:
        by_home.setdefault(homes.get(result.call_id, -1), []).append(result)
    for home in sorted(by_home, reverse=True):
        messages.insert(home + 1, Message("tool", by_home[home]))
