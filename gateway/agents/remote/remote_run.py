"""`run_remote`: runs a remote A2A agent for a call, and sends the agent's questions to the caller's client as requests for input.

In a durable task, which continues after a restart, each message to the agent is a recorded step. If the process dies before the response of
a message is recorded, the gateway does not resend the message, but continues the remote task that the agent opened for it. If the agent had
not opened a task, a person decides whether the message is resent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gateway.agents.following import follow_run
from gateway.errors import AgentError, InputUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.approval_policy import MAX_SHOWN_NAME
from gateway.policy.framing import frame, shown
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, ContinuationToken

if TYPE_CHECKING:
    from gateway.agents.remote.a2a_agent import A2AAgent
    from gateway.chat.agui_client import AGUIChatClient

MAX_QUESTIONS = 20
"""Maximum number of questions of a remote agent that are answered in one run."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The connection of an agent file to a remote agent: `agent` is set for A2A, `client` for AG-UI. Both are `None` for a local agent."""

    agent: A2AAgent | None = None
    client: AGUIChatClient | None = None
    """Chat client that calls the remote AG-UI agent."""


async def run_remote(
    agent: A2AAgent, messages: Sequence[Message], ctx: CallContext, session: AgentSession | None = None
) -> AgentResponse:
    """Run a remote agent on `messages` until it answers, and send its questions to the caller's client.

    The id of the remote conversation is stored in `session`, if given.

    Raises:
        AgentError: The agent cannot be used, failed, asked too many questions, or asked a question that was not answered.
    """
    session = session or agent.create_session()
    for asked in range(MAX_QUESTIONS + 1):
        response = await _turn(agent, messages, ctx, session)
        if not response.user_input_requests:
            return response
        if asked < MAX_QUESTIONS:
            question = "\n".join(content.text or "" for content in response.user_input_requests)
            messages = [Message("user", [await _answer(agent.name or "", question, ctx)])]
    raise AgentError(f"The remote agent {agent.name!r} was stopped, because it asked more than {MAX_QUESTIONS} questions.")


async def _turn(agent: A2AAgent, messages: Sequence[Message], ctx: CallContext, session: AgentSession) -> AgentResponse:
    durable = ctx.ports.durable
    if durable is None:
        return await follow_run(agent.run(messages, stream=True, session=session), ctx)

    def opened(key: str) -> JsonObject | None:
        return cast("JsonObject | None", durable.kept(key.rpartition("/")[2]))

    async def work(key: str) -> JsonValue:
        name = key.rpartition("/")[2]

        async def note(token: ContinuationToken) -> None:
            await durable.keep(name, dict(token))

        stream = agent.run_noted(messages, session, note, durable.will_resume, continuation_token=opened(key))
        response = await follow_run(stream, ctx)
        return {"response": response.to_dict(), "state": dict(session.state)}

    done = cast("JsonObject", await durable.step("remote agent", work, repeatable=lambda key: opened(key) is not None, ctx=ctx))
    session.state.update(done["state"])
    return AgentResponse.from_dict(done["response"])


async def _answer(name: str, question: str, ctx: CallContext) -> str:
    """Send a remote agent's question to the caller's client and return the user's answer.

    The question must pass the same checks as a form (elicitation) of an MCP server.

    Raises:
        AgentError: The question requests a secret, the client cannot answer, or the person did not answer.
    """
    schema: JsonObject = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    asked: JsonObject = {"message": question, "requestedSchema": schema}
    from gateway.policy.form_judging import judge_form  # imported on first use, because compiling its word lists takes 0.1 s

    problem = judge_form(asked)
    if problem is not None:
        raise AgentError(f"The question of the remote agent {name!r} was rejected by {problem.rule}: {problem.reason}")
    framed = frame(f"The remote agent {shown(name, MAX_SHOWN_NAME)!r} asks:", question)
    try:
        answer = await ctx.ask({"method": "elicitation/create", "params": {**asked, "message": framed}}, ctx.question("remote agent"))
    except InputUnavailable:
        raise AgentError(f"The remote agent {name!r} asks: {question} Your client cannot answer; call again with the answer.") from None
    if answer.get("action") != "accept":
        raise AgentError(f"The question of the remote agent {name!r} was not answered: {question}")
    content = cast("JsonObject", answer.get("content") or {})
    return str(content.get("answer") or "")
