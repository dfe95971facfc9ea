"""`AgentLoopMiddleware`: runs an agent repeatedly until its task is done. The API is agent-framework's.

A predicate decides whether the agent runs again. It can be any function, or depend on a judge model (`with_judge`), a todo list or
background tasks. Each run adds an entry to a progress log, which the next run receives.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self, cast

from gateway.agents.middleware.judge import (
    CRITERIA_PLACEHOLDER,
    DEFAULT_JUDGE_INSTRUCTIONS,
    DEFAULT_NEXT_MESSAGE,
    criteria_for_agent,
    criteria_for_judge,
    judge_predicate,
    next_message_after_verdict,
)
from gateway.agents.providers.background_state import BackgroundTaskInfo
from gateway.agents.run_context import AgentContext, AgentMiddleware
from gateway.errors import AgentError, MiddlewareTermination
from gateway.json_types import JsonObject
from gateway.middleware import CallNext
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import call_declared
from gateway.types.annotations import add_usage
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

DEFAULT_MAX_ITERATIONS = 10
"""Default maximum number of runs of the agent in one loop."""

DEFAULT_JUDGE_MAX_ITERATIONS = 5
"""Default maximum number of runs of the agent in a loop with a judge model; it is low, because each run costs calls of two models."""

LoopCallable = Callable[..., Any]
"""A sync or async function that an agent loop calls after a run. It receives the keyword arguments that its signature declares.

The arguments are `iteration` (runs so far), `last_result`, `messages` (of the last run), `original_messages`, `session`, `agent`,
`progress` (a copy of the progress log) and `feedback` (the text that the predicate returned after this run).
"""


@dataclass(slots=True)
class _LoopState:
    """State of one loop of runs of an agent."""

    original: list[Message]
    snapshot: JsonObject | None
    """JSON form of the session before the loop, to which each run resets the session; `None` without `fresh_context` or session."""
    iteration: int = 0
    progress: list[str] = field(default_factory=lambda: list[str]())
    feedback: str | None = None


@dataclass(eq=False, repr=False)
class AgentLoopMiddleware(AgentMiddleware):
    """Agent middleware that repeats the agent's run while `should_continue` returns true.

    The loop also ends if a run requests input from a person.

    After each run, the middleware checks `max_iterations`, then `should_continue`, then adds an entry to the progress log. The constructor
    raises `ValueError` if `max_iterations` is less than 1.
    """

    should_continue: LoopCallable
    """Predicate: returns a bool, or a bool and a text. `next_message` and `record_feedback` receive the text as `feedback`."""
    _: KW_ONLY
    max_iterations: int | None = DEFAULT_MAX_ITERATIONS
    """Maximum number of runs; `None` for no limit."""
    next_message: LoopCallable | None = None
    """Function that returns the input of the next run. Without a function, the input is a default text that asks the agent to go on.

    If the function returns `None`, the next run gets the same messages as the last run, or with `fresh_context` the default text."""
    record_feedback: LoopCallable | None = None
    """Function that returns the run's entry for the progress log. By default, the entry is the response's text."""
    inject_progress: bool = True
    """Whether the progress log is put before the next input, as a user message.

    With a session and without `fresh_context`, only the last entry of the log is put there."""
    fresh_context: bool = False
    """Whether each run starts from the original messages, the session's state before the loop, and the whole progress log."""
    return_final_only: bool = False
    """Whether earlier runs are omitted from the response. A stream contains all runs; its final response is that of the last run."""
    additional_instructions: str | None = None
    """Text that is put before the original messages as a system message."""

    def __post_init__(self) -> None:
        if self.max_iterations is not None and self.max_iterations < 1:
            raise ValueError("max_iterations must be at least 1, or None for no limit.")

    @classmethod
    def with_judge(
        cls,
        judge_client: object,
        *,
        criteria: Sequence[str] | None = None,
        instructions: str | None = None,
        max_iterations: int | None = DEFAULT_JUDGE_MAX_ITERATIONS,
        next_message: LoopCallable | None = None,
        fresh_context: bool = False,
    ) -> Self:
        """Return middleware that repeats an agent's run until a judge (a second chat client) finds that the user's request was answered.

        The agent receives `criteria`. The judge receives them, too, if `instructions` contain `{{criteria}}`. The input of the next run is
        the judge's reasons, or if `next_message` is given, the return value of `next_message`.
        """
        prompt = (instructions or DEFAULT_JUDGE_INSTRUCTIONS).replace(CRITERIA_PLACEHOLDER, criteria_for_judge(criteria))
        return cls(
            judge_predicate(judge_client, prompt),
            max_iterations=max_iterations,
            next_message=next_message or next_message_after_verdict,
            fresh_context=fresh_context,
            additional_instructions=criteria_for_agent(criteria) if criteria else None,
        )

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Run the agent, and repeat the run until the loop ends."""
        if self.additional_instructions is not None:
            context.messages = [Message("system", [self.additional_instructions]), *context.messages]
        session = context.session
        snapshot = session.to_dict() if self.fresh_context and session is not None else None
        at = _LoopState(list(context.messages), snapshot)
        if context.stream:
            last: list[AgentResponse] = []
            stream = self._streamed(context, call_next, at, last)
            context.result = ResponseStream(stream, lambda updates: last[-1] if last else AgentResponse.from_updates(updates))
        else:
            await self._whole(context, call_next, at)

    async def _whole(self, context: AgentContext, call_next: CallNext, at: _LoopState) -> None:
        messages: list[Message] = []
        usage = None
        while True:
            await call_next()
            result = context.result
            if not isinstance(result, AgentResponse):
                raise AgentError(f"AgentLoopMiddleware: the inner middleware or agent returned {type(result).__name__}, not AgentResponse.")
            messages += result.messages
            usage = add_usage(usage, result.usage_details)
            if not await self._should_continue(context, at, result):
                break
            context.messages = await self._next_messages(context, at, result)
            messages += context.messages
        if not self.return_final_only and at.iteration > 1:
            result.messages = messages
            result.usage_details = usage

    async def _streamed(
        self, context: AgentContext, call_next: CallNext, at: _LoopState, last: list[AgentResponse]
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Yield the updates of all runs and, between runs, the next run's input messages. Append each run's response to `last`."""
        while True:
            try:
                await call_next()
                inner = context.result
                if not isinstance(inner, ResponseStream):
                    raise AgentError("AgentLoopMiddleware: the inner middleware or agent returned no stream for a streaming run.")
                try:
                    async for update in inner:
                        yield update
                    last.append(await inner.get_final_response())
                finally:
                    await inner.aclose()
            except MiddlewareTermination:
                return  # outer middleware has returned already and cannot handle the exception; the stream ends with the emitted updates
            if not await self._should_continue(context, at, last[-1]):
                return
            context.messages = await self._next_messages(context, at, last[-1])
            for number, message in enumerate(context.messages):
                message_id = message.message_id or f"loop-{at.iteration}-{number}"  # without ids, adjacent messages would be merged
                yield AgentResponseUpdate(
                    contents=message.contents, role=message.role, author_name=message.author_name, message_id=message_id
                )

    async def _should_continue(self, context: AgentContext, at: _LoopState, result: AgentResponse) -> bool:
        """Return whether to run the agent again, and add an entry for the last run to the progress log.

        Return false if the maximum number of runs is reached, or if the predicate returns false. If the run requested input from a person,
        return false and add no entry.
        """
        at.iteration += 1
        at.feedback = None
        should_continue = False
        if result.user_input_requests:
            return False
        if self.max_iterations is None or at.iteration < self.max_iterations:
            verdict = await call_declared(self.should_continue, **_arguments(context, at, result))
            if isinstance(verdict, tuple):
                should_continue, at.feedback = cast("tuple[bool, str | None]", verdict)
            else:
                should_continue = bool(verdict)
        entry = result.text.strip()
        if self.record_feedback is not None:
            entry = await call_declared(self.record_feedback, **_arguments(context, at, result))
        if entry:
            at.progress.append(entry)
        return should_continue

    async def _next_messages(self, context: AgentContext, at: _LoopState, result: AgentResponse) -> list[Message]:
        """Return the input of the next run. With `fresh_context`, first restore the session to its state before the loop."""
        if at.snapshot is not None and context.session is not None:
            restored = AgentSession.from_dict(at.snapshot)
            context.session.service_session_id = restored.service_session_id
            context.session.state = restored.state
        given: Any = DEFAULT_NEXT_MESSAGE
        if self.next_message is not None:
            given = await call_declared(self.next_message, **_arguments(context, at, result))
            if given is None and not self.fresh_context:
                return list(context.messages)
        messages = to_messages(DEFAULT_NEXT_MESSAGE if given is None else given)
        if self.inject_progress and at.progress:
            entries = at.progress if context.session is None or self.fresh_context else at.progress[-1:]
            log = Message("user", ["Progress so far:\n" + "\n".join(f"- {entry}" for entry in entries)])
            messages.insert(0, log)
        return [*at.original, *messages] if self.fresh_context else messages


def todos_remaining(provider: Any) -> LoopCallable:
    """Return a predicate for `AgentLoopMiddleware` that is true while the session's todo list in `provider` has open items.

    `provider` is a `TodoProvider`.
    """

    async def should_continue(*, session: AgentSession | None = None) -> bool:
        if session is None:
            return False
        items = await provider.store.load_items(session, source_id=provider.source_id)
        return any(not item.is_complete for item in items)

    return should_continue


def background_tasks_running(provider: Any) -> LoopCallable:
    """Return a predicate for `AgentLoopMiddleware` that is true while the session's state lists running tasks of `provider`.

    `provider` is a `BackgroundAgentsProvider`, which updates the list before each run and when the agent uses its tools. Set
    `max_iterations`, too, because the agent runs again as long as a task runs.
    """

    def should_continue(*, session: AgentSession | None = None) -> bool:
        state: JsonObject = {} if session is None else session.state.get(provider.source_id) or {}
        return any(BackgroundTaskInfo.from_dict(task).is_running for task in state.get("tasks", []))

    return should_continue


def _arguments(context: AgentContext, at: _LoopState, result: AgentResponse) -> dict[str, Any]:
    return {
        "iteration": at.iteration,
        "last_result": result,
        "messages": context.messages,
        "original_messages": at.original,
        "session": context.session,
        "agent": context.agent,
        "progress": list(at.progress),
        "feedback": at.feedback,
    }
