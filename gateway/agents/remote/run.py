"""A remote agent run in the place of one of ours, in a call: what it asks on the way is put to the caller's person.

Inside a durable task each message to it is a step: one that was in flight when the process died is not sent again, but its
task over there followed on; where none had been opened yet a person is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gateway.agents.following import followed
from gateway.errors import AgentError, AskUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.approvals import MAX_SHOWN_NAME
from gateway.policy.framing import frame, shown
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, ContinuationToken

if TYPE_CHECKING:
    from gateway.agents.remote.a2a import A2AAgent
    from gateway.chat.agui import AGUIChatClient

MAX_QUESTIONS = 20
"""Questions a remote agent may put to the person in one run."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where an agent runs that does not run here: one of the two, or neither for one that does."""

    agent: A2AAgent | None = None
    client: AGUIChatClient | None = None
    """A remote agent that takes the place of the model."""


async def run_remote(
    agent: A2AAgent, messages: Sequence[Message], ctx: CallContext, session: AgentSession | None = None
) -> AgentResponse:
    """Run a remote agent to its answer. A `session` remembers the conversation that the remote side has.

    Raises:
        AgentError: It cannot be used, failed, or asks what nobody answers.
    """
    session = session or agent.create_session()
    for _ in range(MAX_QUESTIONS):
        response = await _turn(agent, messages, ctx, session)
        if not response.user_input_requests:
            return response
        question = "\n".join(content.text or "" for content in response.user_input_requests)
        messages = [Message("user", [await _answer(agent.name or "", question, ctx)])]
    raise AgentError(f"The remote agent {agent.name!r} asked more than {MAX_QUESTIONS} questions and was given up.")


async def _turn(agent: A2AAgent, messages: Sequence[Message], ctx: CallContext, session: AgentSession) -> AgentResponse:
    durable = ctx.durable
    if durable is None:
        return await followed(agent.run(messages, stream=True, session=session), ctx)

    def opened(key: str) -> JsonObject | None:
        return cast("JsonObject | None", durable.kept(key.rpartition("/")[2]))

    async def work(key: str) -> JsonValue:
        name = key.rpartition("/")[2]

        async def note(token: ContinuationToken) -> None:
            await durable.keep(name, dict(token))

        stream = agent.run_noted(messages, session, note, durable.goes_on, continuation_token=opened(key))
        response = await followed(stream, ctx)
        return {"response": response.to_dict(), "state": dict(session.state)}

    done = cast("JsonObject", await durable.step("remote agent", work, repeatable=lambda key: opened(key) is not None, ctx=ctx))
    session.state.update(done["state"])
    return AgentResponse.from_dict(done["response"])


async def _answer(name: str, question: str, ctx: CallContext) -> str:
    """Ask the person a remote agent's question, judged and framed like a server's.

    Raises:
        AgentError: The question asks for a secret, or the person cannot be asked or did not answer.
    """
    schema: JsonObject = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    asked: JsonObject = {"message": question, "requestedSchema": schema}
    from gateway.policy.form_judging import judge_form  # loaded on first use: compiling its word lists takes 0.1 s

    problem = judge_form(asked)
    if problem is not None:
        raise AgentError(f"The question of the remote agent {name!r} was refused by {problem.rule}: {problem.reason}")
    framed = frame(f"The remote agent {shown(name, MAX_SHOWN_NAME)!r} asks:", question)
    try:
        answer = await ctx.ask({"method": "elicitation/create", "params": {**asked, "message": framed}}, ctx.question("remote agent"))
    except AskUnavailable:
        raise AgentError(f"The remote agent {name!r} asks, and you cannot be asked: {question} Call it again with the answer.") from None
    if answer.get("action") != "accept":
        raise AgentError(f"The remote agent {name!r} asked ({question}) and was not answered.")
    content = cast("JsonObject", answer.get("content") or {})
    return str(content.get("answer") or "")
