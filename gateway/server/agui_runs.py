"""`AguiRoute`: serves `POST /agui/<agent>`, which runs an agent of the gateway and streams the run to an application as AG-UI events.

AG-UI is a protocol between agents and user interfaces; the request body is its `RunAgentInput`. A run is checked and recorded like a call
of the agent's tool: API key, policy, limits, approvals and events. The application stores the conversation and sends all of it with each
request. If the agent asks the user a question, an interrupt event ends the stream. The run then waits (`parked`) until the application's
next request brings the answer and resumes the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from ag_ui.core import RunAgentInput
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.agents.agui.conversion import last_text, problem_of, to_messages, to_tools
from gateway.agents.agui.response_body import Channel, EventStream, refusal
from gateway.agents.agui.run_events import RunEvents
from gateway.catalog import Catalog
from gateway.errors import InputUnavailable
from gateway.gate.pipeline import audit_refusal
from gateway.gate.refusals import RULE_META_KEY
from gateway.gate.rpc_errors import failed_call
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import is_hidden
from gateway.policy.decision import Reject
from gateway.server.clients import viewer_of
from gateway.server.http_responses import insufficient_scope
from gateway.server.parked import HANDLE_PREFIX, ParkedCaller, ParkedCalls
from gateway.tools.base import Complete, InputRequired, Tool
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile, LogLevel, NoCaller, capability_of
from gateway.types.messages import Message
from gateway.types.responses import AgentResponseUpdate

CLIENT = ClientProfile(name="ag-ui", protocol_version="1.0", capabilities={"elicitation": {"form": {}, "url": {}}})


class Conversations(Protocol):
    """Interface of the object that finds the agent whose name is in the path of an AG-UI request."""

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """Return a tool that runs agent `name` on the conversation `messages`; `None` if no agent has this name.

        `tools` are the application's tools, which the agent may call.
        """
        ...


class AguiRoute:
    """Serves `POST /agui/<agent>`: runs the agent named in the path for an AG-UI application."""

    def __init__(self, catalog: Catalog, agents: Conversations, parked: ParkedCalls, *, ask_timeout_seconds: float) -> None:
        self._catalog = catalog
        self._agents = agents
        self._parked = parked
        self._ask_timeout_seconds = ask_timeout_seconds

    async def serve(self, request: Request) -> Response:
        """Return a streaming response that runs the agent named in the request's path.

        Return an error response if the request is invalid, the agent does not exist, or the caller may not run it.
        """
        try:
            wanted = RunAgentInput.model_validate_json(await request.body())
        except ValidationError as error:
            return refusal(400, f"The request body is not a valid RunAgentInput: {problem_of(error)}")
        name = str(request.path_params["agent"])
        try:
            messages = to_messages(wanted.messages, wanted.context or ())
            work = self._agents.conversation(name, messages, to_tools(wanted.tools or ()))
        except ValueError as error:
            return refusal(400, str(error))
        guarded = [tool for tool in await self._catalog.tools() if (tool.source, tool.definition.name) == ("agent", name)]
        if work is None or not guarded:
            return refusal(404, f"Unknown agent {name!r}.")
        principal = viewer_of(request)
        if isinstance(verdict := guarded[0].admit(principal), Reject):
            await audit_refusal(guarded[0].gate, guarded[0].name, principal, verdict.rule)
            if is_hidden(verdict):
                return refusal(404, f"Unknown agent {name!r}.")
            content, challenge = insufficient_scope("" if principal.kind == "user" else f"tools:agent/{name}", verdict)
            return JSONResponse(content, 403, headers=challenge)
        try:
            state, answers = _resumed(wanted)
        except ValueError as error:
            return refusal(400, str(error))
        ctx = CallContext(
            CallFacts(
                principal=principal,
                client=CLIENT,
                input_responses=answers,
                request_state=state,
                ask_timeout_seconds=self._ask_timeout_seconds,
            )
        )
        return _RunResponse(self._parked, guarded[0].running(work), {"task": last_text(messages) or "(continue)"}, ctx, wanted)


class _RunResponse(EventStream):
    """A response that runs an agent of the gateway and streams the run as AG-UI events."""

    def __init__(self, parked: ParkedCalls, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, wanted: RunAgentInput) -> None:
        super().__init__()
        self._parked = parked
        self._tool = tool
        self._arguments = arguments
        self._ctx = ctx
        self._events = RunEvents(wanted)

    async def run(self, channel: Channel) -> None:
        """Run the agent, with the policy and limits of its tool, and send the events of the run to `channel`."""
        await self._run(_Caller(self._events, channel), channel)

    async def _run(self, caller: _Caller, channel: Channel) -> None:
        events = self._events
        await channel.send(events.started())
        try:
            work = self._tool.call
            outcome = await self._parked.run(lambda leg: work(self._arguments, leg), self._ctx, caller, parked_as=_ParkedFollower)
        except Exception as problem:  # an unexpected exception of the run must reach the application as an event without internals
            error = failed_call(problem, self._ctx.facts.client.era).error
            await channel.send(events.failed(error.message, str(error.code)))
            return
        match outcome:
            case InputRequired():
                handle = (outcome.state or "").removeprefix(HANDLE_PREFIX)
                await channel.send(events.interrupted({f"{handle}.{key}": dict(ask) for key, ask in outcome.requests.items()}))
            case Complete() if outcome.is_error:
                meta = cast("JsonObject", outcome.result.get("_meta") or {})
                await channel.send(events.failed(_text(outcome), str(meta.get(RULE_META_KEY) or "agent")))
            case _:
                await channel.send(events.finished())


class _Caller(NoCaller):
    """Sends the updates of an agent's run to the application as AG-UI events, during one request. Log and progress messages are dropped.

    Implements `Caller`, the interface through which a call sends messages to its client.
    """

    def __init__(self, events: RunEvents, channel: Channel) -> None:
        self._events = events
        self._channel = channel
        self.log_level: LogLevel | None = None

    async def follow(self, update: AgentResponseUpdate) -> None:
        """Send an update of the agent's run to the application as AG-UI events."""
        await self._channel.send(self._events.update(update))

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `InputUnavailable`: input cannot be requested during an AG-UI request.

        A run that needs input is parked instead: its event stream ends with an interrupt event, which asks for the input, and the run waits
        for the application's next request.
        """
        raise InputUnavailable("AG-UI applications are asked by interrupts only.", capability=capability_of(request))


class _ParkedFollower(ParkedCaller):
    """Sends the updates of an agent's run to the application, on the AG-UI request that is open at the moment.

    A run may take several requests. Between two requests, the run is parked: it waits for the application's answer to an interrupt.
    """

    async def follow(self, update: AgentResponseUpdate) -> None:
        """Send an update of the run on the AG-UI request that is open at the moment.

        Between two requests, drop the update, because no response is open that could carry it.
        """
        if isinstance(self.current, _Caller):
            await self.current.follow(update)


def _resumed(wanted: RunAgentInput) -> tuple[str | None, JsonObject | None]:
    """Return the MCP request state of the run that an AG-UI request resumes, and the user's answers: key of the question → answer.

    Return two `None` for a request that starts a run.

    Raises:
        ValueError: The entries of `resume` belong to different runs, or have invalid interrupt ids.
    """
    if not wanted.resume:
        return None, None
    handles = {entry.interrupt_id.partition(".")[0] for entry in wanted.resume}
    if len(handles) != 1 or not all("." in entry.interrupt_id for entry in wanted.resume):
        raise ValueError("`resume` must answer interrupts of one run, by the ids from its `interrupt` events.")
    answers: JsonObject = {}
    for entry in wanted.resume:
        key = entry.interrupt_id.partition(".")[2]
        answers[key] = {"action": "cancel"} if entry.status == "cancelled" else _answer(entry.payload)
    return HANDLE_PREFIX + handles.pop(), answers


def _answer(payload: object) -> JsonObject:
    """Convert the payload with which an application answered an interrupt to an MCP elicitation result.

    A payload that already is an elicitation result is returned unchanged; another object is the content of an acceptance. `false` declines,
    and any other value accepts without content.
    """
    if not isinstance(payload, dict):
        return {"action": "accept", "content": {}} if payload is not False else {"action": "decline"}
    given = cast("JsonObject", payload)
    return given if given.get("action") in ("accept", "decline", "cancel") else {"action": "accept", "content": given}


def _text(outcome: Complete) -> str:
    blocks = cast("Sequence[JsonObject]", outcome.result.get("content") or ())
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")
