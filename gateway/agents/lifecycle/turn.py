"""`Turn`: one run of an agent, as lifecycle hooks see it.

A `Turn` stores the state that the run's agent, chat and function middleware share, and calls the hooks in order.
"""

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
    """Calls the lifecycle hooks of one run of an agent: `before_*` hooks in registration order, all other hooks in reverse order."""

    def __init__(self, hooks: Sequence[LifecycleHooks], events: HookEvents, facts: TurnFacts) -> None:
        self.hooks = tuple(hooks)
        self.events = events
        self.facts = facts
        self.state = StateCell()
        self.blocked: dict[str, str] = {}
        """Tool calls that a `before_parallel_batch` hook blocked: maps the call id to the text that the model receives as the result."""
        self._iteration: IterationContext | None = None
        self._results: list[Content] = []
        self._order: dict[str, int] = {}
        """Maps a call id to the position of the call in the model's last answer."""
        self._reported: Exception | None = None

    @property
    def iteration(self) -> int:
        """Number of the run's current model call, from 0; -1 before the first call."""
        return self.state.value.iteration

    @property
    def sees_history(self) -> bool:
        """Whether a hook can read the earlier conversation; if so, the agent's history must be loaded before the hooks are called."""
        return self._overrides("before_message_turn", "after_message_turn")

    @property
    def changes_response(self) -> bool:
        """Whether a hook can change the messages of the run's response: true if a hook overrides `after_message_turn`."""
        return self._overrides("after_message_turn")

    @property
    def holds_calls(self) -> bool:
        """Whether tool calls in a streamed model answer must be withheld until hooks have received the whole answer and may remove them."""
        return self._overrides("before_tool_execution", "before_parallel_batch")

    def _overrides(self, *names: str) -> bool:
        return any(overrides(hook, name) for hook in self.hooks for name in names)

    async def begin(self, context: MessageTurnContext) -> None:
        """Call the hooks `before_message_turn`. Raises `MiddlewareFailure` if a hook changed the user's newest message in place."""
        newest = context.message
        given = None if newest is None else (newest.role, newest.text)
        await self._call("before_message_turn", context)
        if newest is not None and (newest.role, newest.text) != given:
            raise refusal("message")

    async def end(self, context: MessageTurnContext) -> None:
        """End the current iteration (a model call and its tool calls) and call the hooks `after_message_turn`.

        Raises:
            MiddlewareFailure: A hook assigned `turn_history` although the run failed and has no response.
        """
        await self.end_iteration()
        set_fields(context, history=FixedList(context.history, "history"))
        await self._call("after_message_turn", context)
        if context.response is None and not isinstance(context.turn_history, FixedList):
            raise MiddlewareFailure("after_message_turn assigned turn_history, but the run failed and has no response to change.")

    async def begin_iteration(self, messages: list[Message], options: ChatOptions) -> IterationContext:
        """End the previous iteration (a model call and its tool calls), call the hooks `before_iteration` and return their context.

        Raises:
            MiddlewareFailure: A hook set `override_response` without `skip_llm_call`.
        """
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
        """Call the hooks `after_iteration` with the tool results of the current iteration, unless the iteration has already ended.

        Raises:
            MiddlewareFailure: A hook changed a tool result in place.
        """
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
        """Call the hooks `before_tool_execution` and, for several calls, `before_parallel_batch`. Return false if a hook removed the calls.

        Raises:
            MiddlewareFailure: A hook changed an answer that was already streamed, or blocked a call id that the answer does not contain.
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
        """Call the hooks `before_function` for a tool call.

        Raises:
            MiddlewareFailure: A hook set `override_result` without `block_execution`.
        """
        await self._call("before_function", context)
        if context.override_result is not None and not context.block_execution:
            raise _without("before_function", "override_result", "block_execution")

    async def end_function(self, context: FunctionContext, result: Content) -> None:
        """Record the result of a tool call for `after_iteration`, and call the hooks `after_function`."""
        self._results.append(result)
        await self._call("after_function", context)

    async def report(self, source: ErrorSource, error: Exception) -> str:
        """Call the hooks `on_error`, once per exception. If a hook ends the run, return its reason; otherwise raise `error` again."""
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
        """The reason that a hook stored with `TurnState.terminated` to end the run; `None` if no hook ended the run."""
        state = self.state.value
        return (state.termination_reason or _ENDED) if state.is_terminated else None

    async def _call(self, name: str, context: HookContext) -> None:
        """Call the method `name` of all hook objects in order. Hooks can assign fields of `context` only during these calls."""
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
    """Return the parts of a model's answer as values to compare before and after a hook. They differ if the hook changed a content.

    A tool call is represented only by its `id()`, because hooks may change its arguments.
    """
    return [
        (message.role, [id(content) if content.type == "function_call" else content.to_dict() for content in message.contents])
        for message in response.messages
    ]


_ENDED = "The run was ended by a hook."


def _without(hook: str, name: str, needed: str) -> MiddlewareFailure:
    return MiddlewareFailure(f"{hook} assigned {name}, which has an effect only together with {needed} = True.")


class OpenTurns:
    """The `Turn` objects (state for lifecycle hooks) of all running agent runs that use one set of hooks."""

    def __init__(self, hooks: Sequence[LifecycleHooks], events: HookEvents) -> None:
        self._hooks = tuple(hooks)
        self._events = events
        self._open: dict[int, tuple[AgentRunContext | None, Turn]] = {}

    def open(self, facts: TurnFacts) -> tuple[int, Turn]:
        """Create the `Turn` for the current agent run. Return the key to pass to `close`, and the turn."""
        run = current_run_context()
        turn = Turn(self._hooks, self._events, facts)
        self._open[id(run)] = (run, turn)
        return id(run), turn

    def close(self, key: int) -> None:
        """Remove the `Turn` of a run that has ended. `key` is the value that `open` returned for the run."""
        self._open.pop(key, None)

    @property
    def current(self) -> Turn | None:
        """The `Turn` of the agent run that the current code is part of; `None` if that run does not use these hooks."""
        found = self._open.get(id(current_run_context()))
        return None if found is None else found[1]
