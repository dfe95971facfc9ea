"""`ToolApprovalMiddleware`: approvals with standing rules, and one question at a time. Names are agent-framework's.

Opt-in and for runs with a session, which keeps rules, open questions and answers (`approval_state`). Whether a tool needs
an approval at all is the tool's affair (`approval_mode`); this only decides which of the questions a person has to see.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from gateway.agents.approvals import note
from gateway.agents.context import AgentContext, AgentMiddleware, AgentStream
from gateway.agents.middleware.approval_state import REQUEST, RESPONSE, ToolApprovalState, call_of
from gateway.errors import AgentError
from gateway.middleware import CallNext
from gateway.sessions.session import AgentSession
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, add_usage
from gateway.types.streams import ResponseStream

DEFAULT_TOOL_APPROVAL_SOURCE_ID = "tool_approval"

MAX_CONTINUED_RUNS = 40
"""Runs that go on by themselves after rules approved everything; then a person is asked, so that no loop is endless."""

ToolApprovalRuleCallback = Callable[[Content], bool | Awaitable[bool]]
"""Gets a `function_call`; true approves it."""


class ToolApprovalMiddleware(AgentMiddleware):
    """Lets calls through by rules, and shows a person the others one by one."""

    def __init__(
        self,
        *,
        source_id: str = DEFAULT_TOOL_APPROVAL_SOURCE_ID,
        auto_approval_rules: Sequence[ToolApprovalRuleCallback] | None = None,
    ) -> None:
        """`auto_approval_rules` are asked after the session's own rules; the first that says yes approves."""
        self.source_id = source_id
        self.auto_approval_rules = tuple(auto_approval_rules or ())

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Take answers in, show the next open question or run the agent, and go on by itself while rules approve everything.

        Raises:
            RuntimeError: The run has no session.
        """
        if context.session is None:
            raise RuntimeError("ToolApprovalMiddleware needs a session: run the agent with session=.")
        state = ToolApprovalState.load(context.session, self.source_id)
        context.messages = _take_answers(context.messages, state)
        await self._release(state)
        if state.queued_approval_requests:
            shown = state.queued_approval_requests.pop(0)
            state.show([shown])
            state.held_messages += context.messages
            state.save(context.session, self.source_id)
            response = AgentResponse(messages=[Message("assistant", [shown])])
            context.result = _stream_of(response) if context.stream else response
        elif context.stream:
            context.result = ResponseStream(self._streamed(context, context.session, call_next, state), AgentResponse.from_updates)
        else:
            await self._whole(context, context.session, call_next, state)

    async def _whole(self, context: AgentContext, session: AgentSession, call_next: CallNext, state: ToolApprovalState) -> None:
        before: AgentResponse | None = None
        for number in range(1, MAX_CONTINUED_RUNS + 1):
            self._hand_over(context, session, state)
            await call_next()
            result = context.result
            if not isinstance(result, AgentResponse):
                return
            requests = [content for message in result.messages for content in message.contents if content.type == REQUEST]
            shown = await self._sort(requests, state, may_approve=number < MAX_CONTINUED_RUNS)
            _keep_only(result.messages, shown)
            state.save(session, self.source_id)
            if before is not None:
                result.messages[:0] = before.messages
                result.usage_details = add_usage(before.usage_details, result.usage_details)
            if shown or not requests:
                return
            before, context.messages, context.result = result, [], None

    async def _streamed(
        self, context: AgentContext, session: AgentSession, call_next: CallNext, state: ToolApprovalState
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """What the runs give, as it comes; questions are held back until it is clear which one a person has to see."""
        for number in range(1, MAX_CONTINUED_RUNS + 1):
            self._hand_over(context, session, state)
            await call_next()
            if not isinstance(context.result, ResponseStream):
                raise AgentError("ToolApprovalMiddleware: what it wraps gave no stream for a streaming run.")
            requests: list[Content] = []
            try:
                async for update in context.result:
                    held = [content for content in update.contents if content.type == REQUEST]
                    requests += held
                    if not held:
                        yield update
                    elif rest := [content for content in update.contents if content.type != REQUEST]:
                        yield dataclasses.replace(update, contents=rest)
            finally:
                await context.result.aclose()
            shown = await self._sort(requests, state, may_approve=number < MAX_CONTINUED_RUNS)
            state.save(session, self.source_id)
            if shown:
                yield AgentResponseUpdate(contents=shown, role="assistant")
            if shown or not requests:
                return
            context.messages, context.result = [], None

    def _hand_over(self, context: AgentContext, session: AgentSession, state: ToolApprovalState) -> None:
        """Put the collected answers before the run's messages, as one message of the user, and what was held after them."""
        if not state.collected_approval_responses and not state.held_messages:
            return
        answers = [Message("user", list(state.collected_approval_responses))] if state.collected_approval_responses else []
        context.messages = [*answers, *state.held_messages, *context.messages]
        state.collected_approval_responses.clear()
        state.held_messages.clear()
        state.save(session, self.source_id)

    async def _release(self, state: ToolApprovalState) -> None:
        """Look at the queue again: rules may have come that approve some of it."""
        waiting: list[Content] = []
        for request in state.queued_approval_requests:
            if await self._is_approved(request, state):
                state.collected_approval_responses.append(request.to_function_approval_response(approved=True))
            else:
                waiting.append(request)
        state.queued_approval_requests = waiting

    async def _sort(self, requests: Sequence[Content], state: ToolApprovalState, *, may_approve: bool) -> list[Content]:
        """Approve by rules what they approve, show the first of the rest, queue the others. Returns what is shown."""
        open_requests: list[Content] = []
        for request in requests:
            if may_approve and await self._is_approved(request, state):
                state.collected_approval_responses.append(request.to_function_approval_response(approved=True))
            else:
                open_requests.append(request)
        state.show(open_requests[:1])
        state.queued_approval_requests += open_requests[1:]
        return open_requests[:1]

    async def _is_approved(self, request: Content, state: ToolApprovalState) -> bool:
        call = call_of(request)
        if call is None:
            return False
        if any(rule.fits(call) for rule in state.rules):
            note("approved by a standing rule", request.id, call.call_id, call.name, None)
            return True
        for rule in self.auto_approval_rules:
            verdict = rule(call)
            if await verdict if inspect.isawaitable(verdict) else verdict:
                note("approved by a rule in code", request.id, call.call_id, call.name, None)
                return True
        return False


def _take_answers(messages: Sequence[Message], state: ToolApprovalState) -> list[Message]:
    """The messages without approval responses, which go into the state; messages that had nothing else are left out."""
    kept: list[Message] = []
    for message in messages:
        answers = [content for content in message.contents if content.type == RESPONSE]
        for answer in answers:
            state.take_answer(answer)
        if not answers:
            kept.append(message)
        elif rest := [content for content in message.contents if content.type != RESPONSE]:
            kept.append(
                Message(
                    message.role,
                    rest,
                    author_name=message.author_name,
                    message_id=message.message_id,
                    additional_properties=message.additional_properties,
                )
            )
    return kept


def _keep_only(messages: list[Message], shown: Sequence[Content]) -> None:
    """Take the requests that are not shown out of a response's messages, and messages that had nothing else."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        rest = [content for content in message.contents if content.type != REQUEST or any(content is one for one in shown)]
        if len(rest) < len(message.contents):
            message.contents = rest
            if not rest:
                del messages[index]


def _stream_of(response: AgentResponse) -> AgentStream:
    async def updates() -> AsyncGenerator[AgentResponseUpdate, None]:
        for update in response.to_updates():
            yield update

    return ResponseStream(updates(), AgentResponse.from_updates)
