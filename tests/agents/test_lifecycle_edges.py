"""Hooks around a run: messages they add, middleware inside them that ends the run, hooks that cannot run, results in order."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway import (
    Agent,
    AgentContext,
    AgentResponse,
    ChatContext,
    ChatResponse,
    LifecycleHooks,
    Message,
    MiddlewareException,
    MiddlewareTermination,
    ScriptedChatClient,
    agent_middleware,
    chat_middleware,
    lifecycle_middleware,
    tool,
)
from gateway import lifecycle as contexts
from gateway.middleware import CallNext
from tests.agents.test_lifecycle import agent_of, call, run

pytestmark = pytest.mark.filterwarnings("ignore::gateway.staging.ExperimentalWarning")


@pytest.mark.requirement("HK2", "HK16")
@pytest.mark.parametrize("place", [0, 99], ids=["first", "last"])
@pytest.mark.parametrize("stream", [False, True])
async def test_message_that_a_hook_adds_is_shown_in_its_turn_and_not_stored(stream: bool, place: int) -> None:
    class Adds(LifecycleHooks):
        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            context.history.insert(place, Message("system", ["a note"]))

    client = ScriptedChatClient(["one", "two"])
    agent = agent_of(client, Adds())
    session = agent.create_session()
    for text in ("first", "second"):
        work: Any = agent.run(text, session=session, stream=stream)
        await (work.get_final_response() if stream else work)
    shown = ["first", "one"]
    shown.insert(place, "a note")
    assert [[message.text for message in messages] for messages, _ in client.requests] == [["a note", "first"], [*shown, "second"]]
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["first", "one", "second", "two"]


@pytest.mark.requirement("HK2", "SE14")
async def test_input_of_the_run_is_stored_beside_messages_that_a_hook_adds() -> None:
    class Adds(LifecycleHooks):
        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            context.history.insert(0, Message("system", ["a note"]))

    client = ScriptedChatClient(["one"])
    agent = agent_of(client, Adds())
    session = agent.create_session()
    await agent.run([Message("user", ["earlier"]), Message("assistant", ["yes"]), Message("user", ["now"])], session=session)
    assert [message.text for message in client.requests[0][0]] == ["a note", "earlier", "yes", "now"]
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["earlier", "yes", "now", "one"]


def _ending(kind: str) -> Any:
    """Return agent middleware that ends a run with the text "instead", or model middleware that does."""
    if kind == "model":

        @chat_middleware
        async def answer(context: ChatContext, call_next: CallNext) -> None:
            raise MiddlewareTermination("enough", result=ChatResponse(messages=[Message("assistant", ["instead"])]))

        return answer

    @agent_middleware
    async def end(context: AgentContext, call_next: CallNext) -> None:
        response = AgentResponse(messages=[Message("assistant", ["instead"])])
        if kind == "after the run":
            await call_next()
            raise MiddlewareTermination("enough")
        if kind == "returns":
            context.result = response
        elif kind == "result of the context":
            context.result = response
            raise MiddlewareTermination("enough")
        elif kind == "without a result":
            raise MiddlewareTermination("enough")
        else:
            raise MiddlewareTermination("enough", result=response)

    return end


@pytest.mark.requirement("HK3", "MW8", "MW9", "MW10", "MW13")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "text"),
    {
        "result of the exception": "instead",
        "result of the context": "instead",
        "after the run": "said",
        "returns": "instead",
        "without a result": None,
        "model": "instead",
    }.items(),
)
async def test_run_that_middleware_inside_the_hooks_ends_has_its_result(kind: str, text: str | None, stream: bool) -> None:
    seen: list[str | None] = []

    class Watch(LifecycleHooks):
        async def after_message_turn(self, context: contexts.MessageTurnContext) -> None:
            seen.append(None if context.response is None else context.response.text)

    ran: list[str] = []

    @agent_middleware
    async def outside(context: AgentContext, call_next: CallNext) -> None:
        await call_next()
        ran.append("second half")

    agent = Agent(ScriptedChatClient(["said"]), middleware=[outside, *lifecycle_middleware(Watch()), _ending(kind)])
    response: AgentResponse | None = await run(agent, stream=stream)
    assert (response.text if response is not None else "") == (text or "")
    assert seen == [text]
    assert bool(ran) == (stream or kind in ("returns", "model")), "a termination skips the second half of middleware further out"


class _Waits(LifecycleHooks):
    def before_message_turn(self, context: contexts.MessageTurnContext) -> Any:  # not async
        """Do nothing."""


@pytest.mark.requirement("MW5")
@pytest.mark.parametrize(
    ("hook", "reason"),
    [(LifecycleHooks, r"is a class; pass an object of it: LifecycleHooks\(\)"), ("x", "'x' is not one"), (_Waits(), "must be async")],
)
def test_hook_that_cannot_run_is_refused_when_it_is_given(hook: Any, reason: str) -> None:
    with pytest.raises(MiddlewareException, match=reason):
        lifecycle_middleware(hook)


@pytest.mark.requirement("HK12", "TL12")
async def test_results_of_an_iteration_stand_in_the_order_of_its_calls() -> None:
    seen: list[list[str | None]] = []
    second = anyio.Event()

    @tool
    async def late() -> str:
        with anyio.fail_after(5):
            await second.wait()
        return "late"

    @tool
    async def early() -> str:
        second.set()
        return "early"

    class Watch(LifecycleHooks):
        async def after_iteration(self, context: contexts.IterationContext) -> None:
            seen.append([result.call_id for result in context.tool_results])

    client = ScriptedChatClient([[call("late", "1"), call("early", "2")], "done"])
    await Agent(client, tools=[late, early], middleware=lifecycle_middleware(Watch())).run("go")
    assert seen == [["1", "2"], []]
