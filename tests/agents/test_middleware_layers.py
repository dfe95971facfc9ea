"""The three layers of middleware: what each sees, in which order they nest, and what ends what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import FrozenInstanceError
from typing import Any, cast

import pytest

from gateway import (
    AgentContext,
    AgentMiddleware,
    AgentResponse,
    BaseChatClient,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    MiddlewareException,
    MiddlewareFailure,
    MiddlewareTermination,
    MiddlewareType,
    agent_middleware,
    chat_middleware,
    current_run_context,
    function_middleware,
)
from gateway.chat.scripted import ScriptedChatClient
from gateway.middleware import sort_middleware
from tests.agents.building import agent_of, both_ways, call, results_of, run

CallNext = Callable[[], Awaitable[None]]


def add(a: int, b: int) -> int:
    return a + b


class Log(AgentMiddleware):
    """Around runs, as a class."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        self.log.append("agent>")
        await call_next()
        self.log.append("<agent")


class ChatLog(ChatMiddleware):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        self.log.append(f"chat {len(context.messages)}>")
        await call_next()
        self.log.append("<chat")


class FunctionLog(FunctionMiddleware):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        self.log.append(f"{context.function.definition.name}>")
        await call_next()
        self.log.append("<function")


@pytest.mark.requirement("MW1", "MW3", "MW6", "CL4", "C8", "C13")
async def test_layers_nest_by_kind_with_agent_outside_run() -> None:
    log: list[str] = []

    @agent_middleware
    async def inner(context: Any, call_next: CallNext) -> None:
        log.append("run-level>")
        await call_next()
        log.append("<run-level")

    agent, _ = agent_of([call("add", {"a": 1, "b": 1}), "2"], [add], middleware=[FunctionLog(log), Log(log), ChatLog(log)])
    await run(agent, False, middleware=[inner])
    assert log == [
        *("agent>", "run-level>"),
        *("chat 1>", "<chat", "add>", "<function", "chat 3>", "<chat"),
        *("<run-level", "<agent"),
    ]


@pytest.mark.requirement("CL4", "MW17")
async def test_clients_own_middleware_is_outside_the_agents() -> None:
    log: list[str] = []

    def layer(name: str) -> Any:
        @chat_middleware
        async def around(context: ChatContext, call_next: CallNext) -> None:
            log.append(name)
            await call_next()

        return around

    client = ScriptedChatClient(["ok"])
    client.chat_middleware = [layer("client")]
    agent, _ = agent_of([], middleware=[layer("agent")])
    agent.client = client
    await run(agent, False)
    assert log == ["client", "agent"]


@both_ways
@pytest.mark.requirement("MW3", "MW14", "C16")
async def test_chat_middleware_edits_request_and_response(stream: bool) -> None:
    async def edit(context: ChatContext, call_next: CallNext) -> None:
        context.messages.append(Message("user", "in one word"))
        context.options["temperature"] = 0.5
        context.result = ChatResponse([Message("assistant", "set too early, so it counts for nothing")])
        await call_next()
        if context.stream:
            context.stream_transform_hooks.append(shout)
        else:
            context.result = ChatResponse([Message("assistant", "EDITED")])

    def shout(update: ChatResponseUpdate) -> None:
        for content in update.contents:
            content.text = "EDITED"

    agent, client = agent_of(["plain"], middleware=[edit])
    assert (await run(agent, stream)).text == "EDITED"
    messages, options = client.requests[0]
    assert (messages[-1].text, options.get("temperature")) == ("in one word", 0.5)


@both_ways
@pytest.mark.requirement("MW8", "MW9", "MW13", "C15")
async def test_chat_middleware_may_answer_in_the_models_place(stream: bool) -> None:
    canned = ChatResponse([Message("assistant", "cached")])

    @chat_middleware
    async def cached(context: ChatContext, call_next: CallNext) -> None:
        context.result = canned

    @chat_middleware
    async def stopped(context: ChatContext, call_next: CallNext) -> None:
        raise MiddlewareTermination(result=canned)

    for layer in (cached, stopped):
        agent, client = agent_of([], middleware=[layer])
        assert (await run(agent, stream)).text == "cached"
        assert client.requests == []


@both_ways
@pytest.mark.requirement("MW11", "C14")
async def test_error_in_chat_middleware_reaches_the_caller(stream: bool) -> None:
    async def faulty(context: ChatContext, call_next: CallNext) -> None:
        raise RuntimeError("no")

    agent, _ = agent_of(["x"], middleware=[faulty])
    with pytest.raises(RuntimeError, match="no"):
        await run(agent, stream)


@both_ways
@pytest.mark.parametrize("calls", [1, 2], ids=["alone", "in-a-batch"])
@pytest.mark.requirement("MW16", "C14")
async def test_failure_in_function_middleware_fails_the_whole_run(stream: bool, calls: int) -> None:
    async def guard(context: FunctionInvocationContext, call_next: CallNext) -> None:
        raise MiddlewareFailure("the guard is down")

    batch = [call("add", {"a": 1, "b": 1}, f"c{n}") for n in range(calls)]
    agent, client = agent_of([batch, "never"], [add], middleware=[guard])
    with pytest.raises(MiddlewareFailure, match="guard"):
        await run(agent, stream)
    assert len(client.requests) == 1


@pytest.mark.requirement("MW4", "TL14", "TL16")
async def test_function_middleware_receives_session_and_run_values_only() -> None:
    seen: dict[str, Any] = {}

    async def look(context: FunctionInvocationContext, call_next: CallNext) -> None:
        seen.update(context.kwargs)
        seen["session"] = context.session
        seen["call"] = context.metadata["call_id"]
        await call_next()

    agent, _ = agent_of([call("add", {"a": 1, "b": 1}), "ok"], [add], middleware=[look])
    session = agent.create_session()
    given: dict[str, Any] = {"user": "ann", "conversation_id": "x", "middleware": [], "config": {"region": "eu"}}
    await run(agent, False, session=session, function_invocation_kwargs=given)
    assert seen == {"user": "ann", "config": {"region": "eu"}, "session": session, "call": "c1"}


@pytest.mark.requirement("TL14", "C11")
async def test_loop_limits_in_tool_values_are_warned_about() -> None:
    calls = [call("add", {"a": 1, "b": 1}, f"c{n}") for n in range(3)]
    agent, client = agent_of([*calls, "ok"], [add])
    how: dict[str, Any] = {"function_invocation_kwargs": {"config": {"max_iterations": 1}}}
    with pytest.warns(UserWarning, match=r"options=\{'loop': \{'max_iterations': …\}\}"):
        await run(agent, False, **how)
    assert len(client.requests) == 4
    with pytest.warns(UserWarning, match="does not limit the run"):
        await ScriptedChatClient(["ok"]).get_response("go", **how)
    agent, client = agent_of([*calls, "ok"], [add])
    await run(agent, False, options={"loop": {"max_iterations": 1}})
    assert len(client.requests) == 2


@pytest.mark.requirement("MW4")
async def test_function_middleware_can_repair_unparsable_arguments() -> None:
    async def repair(context: FunctionInvocationContext, call_next: CallNext) -> None:
        if "argument_error" in context.metadata:
            assert context.metadata["raw_arguments"] == '{"a": 1, "b": 2'
            context.arguments.update({"a": 1, "b": 2})
        await call_next()

    agent, _ = agent_of([call("add", '{"a": 1, "b": 2'), "ok"], [add], middleware=[repair])
    assert results_of(await run(agent, False)) == ["3"]


def test_mixed_list_is_sorted_by_class_decorator_and_annotation() -> None:
    @function_middleware
    async def decorated(context: Any, call_next: CallNext) -> None: ...

    async def annotated(context: ChatContext, call_next: CallNext) -> None: ...

    class Unknown:
        async def process(self, context: Any, call_next: CallNext) -> None: ...

    log: list[str] = []
    by_class, unknown = Log(log), Unknown()
    made = sort_middleware([decorated, by_class, annotated, unknown])
    assert (made.function, made.chat, made.agent) == ([decorated], [annotated], [by_class, unknown])


async def nothing(context: Any, call_next: CallNext) -> None: ...


@agent_middleware
async def contradiction(context: ChatContext, call_next: CallNext) -> None: ...


async def one_parameter(context: ChatContext) -> None: ...


NOT_MIDDLEWARE = {
    "nothing": (nothing, "Cannot determine middleware type of 'nothing'"),
    "contradiction": (contradiction, "marked as agent middleware, but its first parameter is a ChatContext"),
    "one parameter": (one_parameter, "must have at least 2 parameters"),
    "a class": (Log, r"'Log' is a class; pass an instance: Log\(\)"),
    "a number": (5, "5 is not middleware"),
    "a missing one": (None, "None is not middleware"),
}


@pytest.mark.requirement("MW5", "MW18")
@pytest.mark.parametrize("kind", NOT_MIDDLEWARE)
def test_invalid_middleware_is_rejected_when_it_is_passed(kind: str) -> None:
    layer, reason = NOT_MIDDLEWARE[kind]
    client = ScriptedChatClient(["x"])
    for given in (
        lambda: agent_of(["x"], middleware=[layer]),
        lambda: agent_of(["x"])[0].run("go", middleware=[layer]),
        lambda: agent_of(["x"])[0].run("go", middleware=[layer], stream=True),
        lambda: BaseChatClient[Any](middleware=[layer]),
        lambda: client.get_response("go", middleware=[layer]),
    ):
        with pytest.raises(MiddlewareException, match=reason):
            given()


@pytest.mark.requirement("MW5", "CL4")
def test_chat_client_refuses_middleware_around_runs() -> None:
    client = ScriptedChatClient(["x"])
    for given in (
        lambda: BaseChatClient[Any](middleware=[Log([])]),
        lambda: client.get_response("go", middleware=cast("Any", Log([]))),
        lambda: client.get_response("go", middleware=cast("Any", Log([])), options={"tools": [add]}),
    ):
        with pytest.raises(MiddlewareException, match="pass 'Log' to the agent"):
            given()


@both_ways
@pytest.mark.requirement("MW5")
async def test_middleware_that_is_not_async_fails_by_name(stream: bool) -> None:
    def plain(context: AgentContext, call_next: CallNext) -> None: ...

    layer: Any = plain
    with pytest.raises(MiddlewareException, match="'plain' must be async"):
        await run(agent_of(["x"], middleware=[layer])[0], stream)


@pytest.mark.requirement("MW18")
def test_kinds_of_middleware_are_a_string_enum() -> None:
    assert [str(kind) for kind in MiddlewareType] == ["agent", "function", "chat"]


@both_ways
@pytest.mark.requirement("MW2", "AG6")
async def test_code_inside_a_run_finds_it_and_code_outside_does_not(stream: bool) -> None:
    found: list[Any] = []

    async def look() -> str:
        found.append(current_run_context())
        return "seen"

    agent, _ = agent_of([call("look"), "ok"], [look])
    session = agent.create_session()
    await run(agent, stream, session=session, options={"temperature": 0.1})
    [inside] = found
    assert (inside.agent, inside.session, inside.options.get("temperature")) == (agent, session, 0.1)
    assert [message.text for message in inside.messages] == ["go"]
    for name in ("agent", "session", "messages", "options"):
        with pytest.raises(FrozenInstanceError):
            setattr(inside, name, None)
    assert current_run_context() is None


@both_ways
@pytest.mark.requirement("MW2")
async def test_agent_middleware_replaces_session_options_tools_and_result(stream: bool) -> None:
    async def other(context: AgentContext, call_next: CallNext) -> None:
        context.options["temperature"] = 0.9
        context.tools = [add]
        await call_next()
        if isinstance(context.result, AgentResponse):
            context.result.additional_properties["by"] = "middleware"
        elif context.result is not None:
            context.result.with_result_hook(lambda response: response.additional_properties.update(by="middleware"))

    agent, client = agent_of(["ok"], middleware=[other])
    await run(agent, stream)
    assert client.requests[0][1].get("temperature") == 0.9
    assert [offered.name for offered in client.requests[0][1].get("tools") or ()] == ["add"]


@pytest.mark.requirement("MW3")
async def test_answer_replaced_by_a_stream_hook_is_the_stored_answer() -> None:
    @chat_middleware
    async def shout(context: ChatContext, call_next: CallNext) -> None:
        await call_next()
        context.stream_result_hooks.append(lambda whole: None if has_calls(whole) else ChatResponse([Message("assistant", ["<hidden>"])]))

    def has_calls(whole: ChatResponse) -> bool:
        return any(content.type == "function_call" for message in whole.messages for content in message.contents)

    agent, client = agent_of([call("add", {"a": 1, "b": 2}), ["se", "cret"], "more"], [add], middleware=[shout])
    session = agent.create_session()
    stream = agent.run("go", stream=True, session=session)
    parts = "".join([part.text async for part in stream])
    whole = await stream.get_final_response()
    assert (parts, whole.text) == ("secret", "<hidden>")
    assert [content.type for message in whole.messages for content in message.contents] == ["function_call", "function_result", "text"]
    await run(agent, True, "and?", session=session)
    assert [message.text for message in client.requests[-1][0] if message.text] == ["go", "<hidden>", "and?"]

    direct = ScriptedChatClient([call("add", {"a": 1, "b": 2}), "secret"]).get_response(
        "go", stream=True, middleware=[shout], options={"tools": [add]}
    )
    assert (await direct.get_final_response()).text == "<hidden>"
