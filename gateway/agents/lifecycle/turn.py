"""`Turn`: the state that the three middleware layers of a run share, and the order in which hooks are called."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.agents.lifecycle.hook_state import HookEvents, StateCell
from gateway.agents.lifecycle.hooks import (
    ErrorContext,
    ErrorSource,
    FunctionContext,
    HookContext,
    IterationContext,
    LifecycleHooks,
    MessageTurnContext,
    ParallelBatchContext,
    ToolExecutionContext,
    TurnFacts,
    overrides,
)
from gateway.agents.lifecycle.sealed import FixedDict, FixedList, check_forms, refusal, seal, set_fields
from gateway.agents.run_context import AgentRunContext, current_run_context
from gateway.errors import MiddlewareFailure
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse


class Turn:
    """Calls the hooks of one run: `before` hooks in registration order, all others in reverse order."""

    def __init__(self, hooks: Sequence[LifecycleHooks], events: HookEvents, facts: TurnFacts) -> None:
        self.hooks = tuple(hooks)
        self.events = events
        self.facts = facts
        self.state = StateCell()
        self.blocked: dict[str, str] = {}
        """Maps a call id to the text that replaces the call's result, set by `before_parallel_batch`."""
        self._iteration: IterationContext | None = None
        self._results: list[Content] = []
        self._order: dict[str, int] = {}
        """Maps a call id to the position of the call in the model's last answer."""
        self._reported: Exception | None = None

    @property
    def iteration(self) -> int:
        """Number of the current model call."""
        return self.state.value.iteration

    @property
    def sees_history(self) -> bool:
        """Whether a hook may read the earlier conversation, so that it must be loaded before the run."""
        return self._overrides("before_message_turn", "after_message_turn")

    @property
    def changes_response(self) -> bool:
        """Whether a hook may change the messages of the response."""
        return self._overrides("after_message_turn")

    @property
    def holds_calls(self) -> bool:
        """Whether streamed tool calls must be held back until hooks have seen the model's whole answer."""
        return self._overrides("before_tool_execution", "before_parallel_batch")

    def _overrides(self, *names: str) -> bool:
        return any(overrides(hook, name) for hook in self.hooks for name in names)

    async def begin(self, context: MessageTurnContext) -> None:
        """Call `before_message_turn`."""
        newest = context.message
        given = None if newest is None else (newest.role, newest.text)
        await self._call("before_message_turn", context)
        if newest is not None and (newest.role, newest.text) != given:
            raise refusal("message")

    async def end(self, context: MessageTurnContext) -> None:
        """End the current iteration and call `after_message_turn`."""
        await self.end_iteration()
        set_fields(context, history=FixedList(context.history, "history"))
        await self._call("after_message_turn", context)
        if context.response is None and not isinstance(context.turn_history, FixedList):
            raise MiddlewareFailure("after_message_turn assigned turn_history, but the run failed and has no response to change.")

    async def begin_iteration(self, messages: list[Message], options: ChatOptions) -> IterationContext:
        """End the previous iteration and call `before_iteration`."""
        await self.end_iteration()
        context = IterationContext(
            state=self.state,
            events=self.events,
            facts=self.facts,
            iteration=self.state.begin_iteration(),
            messages=messages,
            options=options,
        )
        self._iteration = context
        await self._call("before_iteration", context)
        if context.override_response is not None and not context.skip_llm_call:
            raise _without("before_iteration", "override_response", "skip_llm_call")
        return context

    async def end_iteration(self) -> None:
        """Call `after_iteration` for the current iteration, if it has not been called."""
        context, self._iteration = self._iteration, None
        if context is None:
            return
        results, self._results = self._results, []
        set_fields(
            context,
            tool_results=tuple(sorted(results, key=lambda result: self._order.get(result.call_id or "", len(self._order)))),
            messages=FixedList(context.messages, "messages"),
            options=FixedDict(context.options, "options"),
        )
        given = _forms_of(results) if self._overrides("after_iteration") else None
        await self._call("after_iteration", context)
        if given is not None and _forms_of(results) != given:
            raise refusal("tool_results")

    async def lets_tools_run(self, response: ChatResponse, *, is_streamed: bool = False) -> bool:
        """Call the hooks before tool execution. Return false if a hook removed all calls.

        Raises:
            MiddlewareFailure: A hook changed a streamed answer, of which parts are sent already, or blocked a call that does not exist.
        """
        calls = tuple(content for message in response.messages for content in message.contents if content.type == "function_call")
        self._order = {call.call_id or "": place for place, call in enumerate(calls)}
        if not calls:
            return True
        context = ToolExecutionContext(
            state=self.state, events=self.events, facts=self.facts, iteration=self.iteration, response=response, calls=calls
        )
        given = _parts_of(response) if is_streamed else None
        await self._call("before_tool_execution", context)
        if given is not None and _parts_of(response) != given:
            raise refusal("response")
        if context.skip_tool_execution:
            return False
        if len(calls) > 1:
            batch = ParallelBatchContext(state=self.state, events=self.events, facts=self.facts, iteration=self.iteration, calls=calls)
            await self._call("before_parallel_batch", batch)
            if unknown := batch.blocked.keys() - self._order.keys():
                names = ", ".join(repr(name) for name in sorted(unknown))
                raise MiddlewareFailure(f"before_parallel_batch blocked {names}: `blocked` takes call ids of the batch only.")
            self.blocked |= batch.blocked
        return True

    async def begin_function(self, context: FunctionContext) -> None:
        """Call `before_function`. Raises `MiddlewareFailure` if a hook set `override_result` without `block_execution`."""
        await self._call("before_function", context)
        if context.override_result is not None and not context.block_execution:
            raise _without("before_function", "override_result", "block_execution")

    async def end_function(self, context: FunctionContext, result: Content) -> None:
        """Record the result of a tool call and call `after_function`."""
        self._results.append(result)
        await self._call("after_function", context)

    async def report(self, source: ErrorSource, error: Exception) -> str:
        """Call `on_error` once per error. Return the reason if a hook ends the run; otherwise raise the error again."""
        if error is self._reported:
            raise error
        self._reported = error
        context = ErrorContext(state=self.state, events=self.events, facts=self.facts, source=source, error=error, iteration=self.iteration)
        await self._call("on_error", context)
        if not context.is_terminated:
            if context.termination_reason:
                raise _without("on_error", "termination_reason", "is_terminated") from error
            raise error
        reason = context.termination_reason or _ENDED
        self.state.update(lambda state: state.terminated(reason))
        return reason

    @property
    def ended_because(self) -> str | None:
        """The reason if a hook ended the turn through its state; `None` while the turn continues."""
        state = self.state.value
        return (state.termination_reason or _ENDED) if state.is_terminated else None

    async def _call(self, name: str, context: HookContext) -> None:
        """Call the hook `name` of all hook objects. They can assign fields of `context` only during these calls."""
        hooks = self.hooks if name.startswith("before_") else self.hooks[::-1]
        seal(context, name)
        try:
            for hook in hooks:
                await getattr(hook, name)(context)
                check_forms(context, name)
        finally:
            seal(context)


def _forms_of(results: Sequence[Content]) -> list[object]:
    return [(result.to_dict(), [item.to_dict() for item in result.items or ()]) for result in results]


def _parts_of(response: ChatResponse) -> list[object]:
    """Return comparable forms of an answer's contents; of tool calls only the `id()`, because hooks may change their arguments."""
    return [
        (message.role, [id(content) if content.type == "function_call" else content.to_dict() for content in message.contents])
        for message in response.messages
    ]


_ENDED = "The run was ended by a hook."


def _without(hook: str, name: str, needed: str) -> MiddlewareFailure:
    return MiddlewareFailure(f"{hook} assigned {name}, which has an effect only together with {needed} = True.")


class OpenTurns:
    """The running turns of one set of hooks, by run."""

    def __init__(self, hooks: Sequence[LifecycleHooks], events: HookEvents) -> None:
        self._hooks = tuple(hooks)
        self._events = events
        self._open: dict[int, tuple[AgentRunContext | None, Turn]] = {}

    def open(self, facts: TurnFacts) -> tuple[int, Turn]:
        """Start a turn for the current run. Return a key for `close`, and the turn."""
        run = current_run_context()
        turn = Turn(self._hooks, self._events, facts)
        self._open[id(run)] = (run, turn)
        return id(run), turn

    def close(self, key: int) -> None:
        """Remove a turn that has ended, by the key that `open` returned."""
        self._open.pop(key, None)

    @property
    def current(self) -> Turn | None:
        """The turn of the current run; `None` if these hooks do not wrap that run."""
        found = self._open.get(id(current_run_context()))
        return None if found is None else found[1]
