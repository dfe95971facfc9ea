"""Hooks around a run: messages that they add, middleware inside them that ends the run, invalid hooks, and the order of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, cast

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
    MiddlewareFailure,
    MiddlewareTermination,
    ScriptedChatClient,
    agent_middleware,
    chat_middleware,
    lifecycle_middleware,
    tool,
)
from gateway import lifecycle as contexts
from gateway.middleware import CallNext
from tests.agents.hooked_agents import agent_of, call, run

pytestmark = pytest.mark.filterwarnings("ignore::gateway.staging.ExperimentalWarning")


@pytest.mark.requirement("HK2", "HK16")
@pytest.mark.parametrize("place", [0, 99], ids=["first", "last"])
@pytest.mark.parametrize("stream", [False, True])
async def test_message_added_by_a_hook_is_sent_and_not_stored(stream: bool, place: int) -> None:
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
async def test_run_input_is_stored_without_messages_added_by_hooks() -> None:
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
async def test_run_ended_by_inner_middleware_has_its_result(kind: str, text: str | None, stream: bool) -> None:
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
    [(LifecycleHooks, r"is a class; pass an instance: LifecycleHooks\(\)"), ("x", "'x' is not one"), (_Waits(), "must be async")],
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


_OWN: dict[str, dict[str, Any]] = {
    "before_message_turn": {"user_message": "go", "history": list[Message]()},
    "before_iteration": {"messages": [Message("user", ["go"])], "options": {}, "skip_llm_call": False, "override_response": None},
    "before_tool_execution": {"skip_tool_execution": False},
    "before_parallel_batch": {"blocked": {}},
    "before_function": {"block_execution": False, "override_result": None},
    "after_function": {},
    "after_iteration": {},
    "on_error": {"is_terminated": False, "termination_reason": ""},
    "after_message_turn": {"turn_history": [Message("assistant", ["done"])]},
    "wrap_model_call": {},
    "wrap_function_call": {},
}
"""The fields that each hook may assign, with values that leave the run unchanged."""


@pytest.mark.requirement("HK9", "HK16")
@pytest.mark.parametrize("name", _OWN)
async def test_forbidden_assignment_of_a_hook_fails_at_once(name: str) -> None:
    refused: dict[str, str] = {}
    late: list[Any] = []

    async def hook(self: LifecycleHooks, context: Any, handler: Any = None) -> Any:
        late.append(context)
        for own, value in _OWN[name].items():
            setattr(context, own, value)
        names = [field.name for field in fields(context)] + ["agent_name", "conversation_id", "run_options", "misspelled"]
        for other in sorted(set(names) - _OWN[name].keys()):
            try:
                setattr(context, other, None)
            except MiddlewareFailure as failure:
                refused[other] = str(failure)
        with pytest.raises(MiddlewareFailure, match="cannot be deleted"):
            del context.state
        return None if handler is None else await handler(context)

    kind = type("Assigns", (LifecycleHooks,), {name: hook})
    calls = [call("add", "1", a=1, b=2), call("fail", "2")]
    assert (await agent_of(ScriptedChatClient([calls, "done"]), cast("LifecycleHooks", kind())).run("go")).text == "done"
    expected = {field.name for field in fields(late[0])} | {"agent_name", "conversation_id", "run_options", "misspelled"}
    assert refused.keys() == expected - _OWN[name].keys()
    for other, reason in refused.items():
        assert f".{other} cannot be assigned" in reason
        assert all(own in reason for own in _OWN[name])
        assert (f"override({other}=…)" in reason) == name.startswith("wrap_")
    for own in _OWN[name]:
        with pytest.raises(MiddlewareFailure, match="after the hook has returned"):
            setattr(late[0], own, None)


def _change_in_place(name: str, context: Any) -> None:
    place, _, of = name.partition(" of ")
    holder = getattr(context, place)
    if isinstance(holder, dict):
        if of:
            cast("Any", holder["items"]).append(4)
        else:
            holder["new"] = 1
    else:
        holder.append(Message("user", ["new"]))


@pytest.mark.requirement("HK2", "HK3", "HK9", "HK10", "HK16")
@pytest.mark.parametrize(
    ("hook_name", "change"),
    [
        ("before_message_turn", "turn_history"),
        ("after_message_turn", "history"),
        ("after_iteration", "messages"),
        ("after_iteration", "options"),
        ("wrap_model_call", "options"),
        ("before_function", "arguments"),
        ("before_function", "arguments of items"),
        ("wrap_function_call", "arguments of items"),
        ("on_error", "run_options"),
    ],
)
async def test_change_in_place_that_would_be_lost_fails_the_run(hook_name: str, change: str) -> None:
    called: list[list[int]] = []

    @tool
    async def total(items: list[int]) -> int:
        called.append(items)
        items.append(0)
        raise ValueError("no")

    async def hook(self: LifecycleHooks, context: Any, handler: Any = None) -> Any:
        _change_in_place(change, context)

    kind = type("Changes", (LifecycleHooks,), {hook_name: hook})
    client = ScriptedChatClient([call("total", items=[1, 2]), "done"])
    agent = Agent(client, tools=[total], middleware=lifecycle_middleware(cast("LifecycleHooks", kind())))
    with pytest.raises(MiddlewareFailure, match=f"`{change.partition(' ')[0]}` cannot be changed here"):
        await agent.run("go")
    assert called == ([[1, 2, 0]] if hook_name.startswith(("after_", "on_")) else [])


_LOST_CHANGES: list[tuple[str, Callable[[Any], object], str]] = [
    ("before_message_turn", lambda c: setattr(c.message.contents[0], "text", "other"), "`message` cannot be changed here"),
    ("before_message_turn", lambda c: setattr(c, "user_message", c.message), "`user_message` to a value of a wrong type; it must be text"),
    ("before_message_turn", lambda c: c.history.append("before"), "`history` to a value of a wrong type; it must be a list of Message"),
    ("before_iteration", lambda c: c.messages.append("more"), "`messages` to a value of a wrong type"),
    ("before_iteration", lambda c: setattr(c, "override_response", "no"), "`override_response` to a value of a wrong type"),
    ("before_tool_execution", lambda c: c.response.messages.clear(), "`response` cannot be changed here"),
    ("after_iteration", lambda c: c.tool_results and setattr(c.tool_results[0], "result", "other"), "`tool_results` cannot be changed"),
    ("after_message_turn", lambda c: c.turn_history.append("after"), "`turn_history` to a value of a wrong type"),
]


@pytest.mark.requirement("HK2", "HK7", "HK12", "HK16")
@pytest.mark.parametrize(("hook_name", "change", "reason"), _LOST_CHANGES)
async def test_value_that_the_run_cannot_use_fails_it(hook_name: str, change: Callable[[Any], object], reason: str) -> None:
    async def hook(self: LifecycleHooks, context: Any) -> None:
        change(context)

    kind = type("Changes", (LifecycleHooks,), {hook_name: hook})
    agent = agent_of(ScriptedChatClient([call("add", "1", a=1, b=2), "done"]), cast("LifecycleHooks", kind()))
    with pytest.raises(MiddlewareFailure, match=reason):
        await run(agent, stream=True)


class _Half(LifecycleHooks):
    """Hooks that assign a field without the other field that the first one needs to have an effect."""

    def __init__(self, what: str) -> None:
        self._what = what

    async def before_iteration(self, context: contexts.IterationContext) -> None:
        if self._what == "override_response":
            context.override_response = ChatResponse(messages=[])

    async def before_parallel_batch(self, context: contexts.ParallelBatchContext) -> None:
        if self._what == "blocked":
            context.blocked["9"] = "no"

    async def before_function(self, context: contexts.FunctionContext) -> None:
        if self._what == "override_result":
            context.override_result = "mine"
        if self._what == "iteration":
            context.state.update(lambda state: replace(state, iteration=7))

    async def on_error(self, context: contexts.ErrorContext) -> None:
        if self._what == "termination_reason":
            context.termination_reason = "because"


@pytest.mark.requirement("HK4", "HK8", "HK9", "HK13", "HK14")
@pytest.mark.parametrize("what", ["override_response", "blocked", "override_result", "iteration", "termination_reason"])
async def test_assignment_without_an_effect_fails_the_run(what: str) -> None:
    client = ScriptedChatClient([[call("add", "1", a=1, b=2), call("fail", "2")], "done"])
    with pytest.raises(MiddlewareFailure, match=what):
        await agent_of(client, _Half(what)).run("go")


@pytest.mark.requirement("HK5", "HK10")
async def test_retried_call_without_changes_has_the_models_arguments() -> None:
    class Twice(LifecycleHooks):
        async def wrap_function_call(self, request: contexts.FunctionRequest, handler: contexts.FunctionHandler) -> Any:
            await handler(request.override(arguments={**request.arguments, "a": 100}))
            return await handler(request)

    client = ScriptedChatClient([call("add", a=1, b=2), "done"])
    await agent_of(client, Twice()).run("go")
    assert [str(content.result) for content in client.requests[-1][0][-1].contents] == ["3"]


@pytest.mark.requirement("HK3")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["response", "turn_history"])
@pytest.mark.parametrize("fails", [False, True])
async def test_messages_that_a_hook_leaves_are_in_the_response(stream: bool, by: str, fails: bool) -> None:
    class Ends(LifecycleHooks):
        async def on_error(self, context: contexts.ErrorContext) -> None:
            context.is_terminated = True

        async def after_message_turn(self, context: contexts.MessageTurnContext) -> None:
            left = [Message("assistant", ["left"])]
            if by == "response":
                assert context.response is not None
                context.response.messages = left
                context.response.response_id = "changed"
                context.response.additional_properties["by"] = "hook"
            else:
                context.turn_history = left

        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            if fails:
                raise ValueError("broken")

    response = await run(agent_of(ScriptedChatClient(["said"]), Ends()), stream=stream)
    assert [message.text for message in response.messages] == ["left"]
    if by == "response":
        assert (response.response_id, response.additional_properties["by"]) == ("changed", "hook")
