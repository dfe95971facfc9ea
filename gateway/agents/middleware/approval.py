"""`ToolApprovalMiddleware`: approves tool calls by rules, and shows a person one approval request at a time; API as in agent-framework.

The middleware needs runs with a session, which stores rules, open requests and answers (`approval_state`). A tool's `approval_mode` decides
whether its calls need approval; the middleware decides which of the approval requests a person sees.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from gateway.agents.middleware.approval_state import REQUEST, RESPONSE, ToolApprovalState, call_of
from gateway.agents.run_approvals import log_approval
from gateway.agents.run_context import AgentContext, AgentMiddleware
from gateway.errors import AgentError
from gateway.middleware import CallNext, replay
from gateway.sessions.session import AgentSession
from gateway.types.annotations import add_usage
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

DEFAULT_TOOL_APPROVAL_SOURCE_ID = "tool_approval"

MAX_CONTINUED_RUNS = 40
"""Maximum number of consecutive runs in which rules approve all approval requests; after that, a person is asked."""

ToolApprovalRuleCallback = Callable[[Content], bool | Awaitable[bool]]
"""Sync or async function that receives a tool call (content of type `function_call`) and returns whether it is approved."""


class ToolApprovalMiddleware(AgentMiddleware):
    """Agent middleware that approves tool calls by rules, and shows a person the remaining approval requests one at a time."""

    def __init__(
        self,
        *,
        source_id: str = DEFAULT_TOOL_APPROVAL_SOURCE_ID,
        auto_approval_rules: Sequence[ToolApprovalRuleCallback] | None = None,
    ) -> None:
        """Create the middleware.

        If no rule of the session approves a call, the call is approved if a function in `auto_approval_rules` returns true.

        `source_id` is the key of the approval state in the session's state.
        """
        self.source_id = source_id
        self.auto_approval_rules = tuple(auto_approval_rules or ())

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Collect a person's answers, then end the run with the next queued approval request, or run the agent if no request is queued.

        The agent runs again while rules approve all of its approval requests.

        Raises:
            RuntimeError: The run has no session.
        """
        if context.session is None:
            raise RuntimeError("ToolApprovalMiddleware needs a session: run the agent with session=.")
        state = ToolApprovalState.load(context.session, self.source_id)
        context.messages = _take_answers(context.messages, state)
        # The answers may have created rules that approve queued requests.
        state.queued_approval_requests = await self._without_approved(state.queued_approval_requests, state)
        if state.queued_approval_requests:
            shown = state.queued_approval_requests.pop(0)
            state.show([shown])
            state.held_messages += context.messages
            state.save(context.session, self.source_id)
            response = AgentResponse(messages=[Message("assistant", [shown])])
            context.result = ResponseStream(replay(response), AgentResponse.from_updates) if context.stream else response
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
        """Run the agent while rules approve all its approval requests, and yield the updates.

        Of the approval requests in the updates, yield only the one that a person sees next.
        """
        for number in range(1, MAX_CONTINUED_RUNS + 1):
            self._hand_over(context, session, state)
            await call_next()
            if not isinstance(context.result, ResponseStream):
                raise AgentError("ToolApprovalMiddleware: the inner middleware or agent returned no stream for a streaming run.")
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
        """Insert the stored input before the messages of a run that will call the model.

        The stored input starts with one user message that contains the answers (of rules or a person) to approval requests. After it come
        the messages of earlier runs that only showed a queued approval request and did not call the model.
        """
        if not state.collected_approval_responses and not state.held_messages:
            return
        answers = [Message("user", list(state.collected_approval_responses))] if state.collected_approval_responses else []
        context.messages = [*answers, *state.held_messages, *context.messages]
        state.collected_approval_responses.clear()
        state.held_messages.clear()
        state.save(session, self.source_id)

    async def _sort(self, requests: Sequence[Content], state: ToolApprovalState, *, may_approve: bool) -> list[Content]:
        """Approve tool calls by rules. Return the first approval request that no rule approves, to show it, and queue the rest of them."""
        open_requests = await self._without_approved(requests, state) if may_approve else [*requests]
        state.show(open_requests[:1])
        state.queued_approval_requests += open_requests[1:]
        return open_requests[:1]

    async def _without_approved(self, requests: Sequence[Content], state: ToolApprovalState) -> list[Content]:
        """Add an approving answer to the state for each request that a rule approves, and return the requests that no rule approves."""
        waiting: list[Content] = []
        for request in requests:
            if await self._is_approved(request, state):
                state.collected_approval_responses.append(request.to_function_approval_response(approved=True))
            else:
                waiting.append(request)
        return waiting

    async def _is_approved(self, request: Content, state: ToolApprovalState) -> bool:
        call = call_of(request)
        if call is None:
            return False
        if any(rule.fits(call) for rule in state.rules):
            log_approval("approved by a standing rule", request.id, call.call_id, call.name, None)
            return True
        for rule in self.auto_approval_rules:
            verdict = rule(call)
            if await verdict if inspect.isawaitable(verdict) else verdict:
                log_approval("approved by a rule in code", request.id, call.call_id, call.name, None)
                return True
        return False


def _take_answers(messages: Sequence[Message], state: ToolApprovalState) -> list[Message]:
    """Move the approval responses from the messages into the state. Return the messages without responses, and without empty messages."""
    kept: list[Message] = []
    for message in messages:
        answers = [content for content in message.contents if content.type == RESPONSE]
        for answer in answers:
            state.take_answer(answer)
        if not answers:
            kept.append(message)
        elif rest := [content for content in message.contents if content.type != RESPONSE]:
            kept.append(copy.copy(message))
            kept[-1].contents = rest
    return kept


def _keep_only(messages: list[Message], shown: Sequence[Content]) -> None:
    """Remove the approval requests that are not in `shown` from the messages, and remove messages that become empty."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        rest = [content for content in message.contents if content.type != REQUEST or any(content is one for one in shown)]
        if len(rest) < len(message.contents):
            message.contents = rest
            if not rest:
                del messages[index]
