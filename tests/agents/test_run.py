"""The run loop: tool calls, their results, and the end of a run. Every test runs with and without streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

import anyio
import pytest

from gateway import (
    Agent,
    AgentResponse,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionTool,
    Message,
    MiddlewareTermination,
    ResponseStream,
    ScriptedChatClient,
)
from gateway.agents.run_context import AgentContext
from gateway.agents.run_loop import NO_ANSWER
from gateway.chat.scripted import Reply
from gateway.errors import AgentError, ModelError, ToolFailed
from gateway.tools.base import Complete, ToolDefinition
from gateway.tools.invocation import FunctionInvocationContext

CallNext = Callable[[], Awaitable[None]]
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def call(name: str, arguments: Any = None, id: str = "c1") -> Content:
    return Content.from_function_call(id, name, arguments or {})


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def broken() -> str:
    raise RuntimeError("the disk is on fire")


def agent_of(replies: Sequence[Reply], tools: Sequence[Any] = (add, broken), **settings: Any) -> tuple[Agent, ScriptedChatClient]:
    client = ScriptedChatClient(replies)
    limits = settings.pop("loop", None)
    return Agent(client, "Be helpful.", name="helper", tools=tools, function_invocation_configuration=limits, **settings), client


async def run(agent: Agent, stream: bool, task: str = "go", options: ChatOptions | None = None) -> AgentResponse:
    with anyio.fail_after(20):
        if stream:
            return await agent.run(task, stream=True, options=options).get_final_response()
        return await agent.run(task, options=options)


def results_of(response: AgentResponse) -> list[Any]:
    return [content.result for message in response.messages for content in message.contents if content.type == "function_result"]


@both_ways
@pytest.mark.requirement("TL3")
async def test_tools_run_and_their_results_return_until_the_model_answers(stream: bool) -> None:
    agent, client = agent_of([["Let me add.", call("add", {"a": 2, "b": 3})], "It is 5."])
    response = await run(agent, stream)
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert results_of(response) == ["5"]
    assert response.text == "Let me add.It is 5."
    second, options = client.requests[1]
    assert [message.role for message in second] == ["user", "assistant", "tool"]
    assert options.get("instructions") == "Be helpful."


@both_ways
async def test_reused_call_id_of_an_earlier_answer_is_a_new_call(stream: bool) -> None:
    agent, _ = agent_of([call("add", {"a": 1, "b": 1}), call("add", {"a": 2, "b": 2}), "done"])
    assert results_of(await run(agent, stream)) == ["2", "4"]


@pytest.mark.requirement("TL3")
async def test_call_id_twice_in_one_answer_runs_once() -> None:
    agent, _ = agent_of([[call("add", {"a": 1, "b": 1}), call("add", {"a": 1, "b": 1})], "done"])
    assert results_of(await run(agent, False)) == ["2"]


@pytest.mark.requirement("TL12")
async def test_calls_of_one_response_run_concurrently_with_ordered_results() -> None:
    second_ran = anyio.Event()

    async def first() -> str:
        await second_ran.wait()
        return "first"

    async def second() -> str:
        second_ran.set()
        return "second"

    agent, _ = agent_of([[call("first", id="c1"), call("second", id="c2")], "done"], [first, second])
    assert results_of(await run(agent, False)) == ["first", "second"]


@both_ways
@pytest.mark.requirement("TL4")
async def test_last_model_call_at_the_iteration_limit_has_no_tools(stream: bool) -> None:
    agent, client = agent_of([call("add", {"a": 1, "b": 1})] * 3, loop={"max_iterations": 2})
    response = await run(agent, stream)
    assert len(client.requests) == 3
    assert "tools" in client.requests[1][1] and "tools" not in client.requests[2][1]
    assert client.requests[2][1].get("tool_choice") == "none"
    assert results_of(response) == ["2", "2"]
    assert response.text == NO_ANSWER


@both_ways
@pytest.mark.requirement("TL5")
async def test_call_limit_is_checked_after_a_batch(stream: bool) -> None:
    batch = [call("add", {"a": n, "b": 0}, f"c{n}") for n in range(3)]
    agent, client = agent_of([batch, call("add", {"a": 9, "b": 9})], loop={"max_function_calls": 2})
    response = await run(agent, stream)
    assert len(results_of(response)) == 3
    assert "tools" not in client.requests[1][1]
    assert (client.requests[1][1].get("tool_choice"), response.text, len(client.requests)) == ("none", NO_ANSWER, 2)


@both_ways
@pytest.mark.requirement("TL6")
async def test_three_failing_batches_in_a_row_switch_tools_off(stream: bool) -> None:
    agent, client = agent_of([call("broken")] * 4)
    response = await run(agent, stream)
    assert len(results_of(response)) == 3
    assert "tools" not in client.requests[3][1]
    assert response.text == NO_ANSWER


@pytest.mark.requirement("TL6")
async def test_clean_batch_forgives_the_failures_before_it() -> None:
    replies = [call("broken"), call("broken"), call("add", {"a": 1, "b": 1}), call("broken"), call("broken"), "done"]
    agent, _ = agent_of(replies)
    assert (await run(agent, False)).text == "done"


@pytest.mark.requirement("TL7")
async def test_unexpected_exception_text_is_hidden_from_the_model() -> None:
    agent, _ = agent_of([call("broken"), "sorry"])
    [result] = results_of(await run(agent, False))
    assert "failed" in result and "fire" not in result


@pytest.mark.requirement("TL7")
async def test_tool_failed_text_reaches_the_model() -> None:
    def picky() -> str:
        raise ToolFailed("Give a city, not a country.")

    agent, _ = agent_of([call("picky"), "sorry"], [picky])
    assert results_of(await run(agent, False)) == ["Error: Give a city, not a country."]


@pytest.mark.parametrize("arguments", ["{not json", "[1, 2]", '{"a": 1}'])
@pytest.mark.requirement("TL8")
async def test_invalid_arguments_are_an_error_result_and_run_continues(arguments: str) -> None:
    agent, _ = agent_of([call("add", arguments), "I will try again."])
    response = await run(agent, False)
    assert results_of(response)[0].startswith("Error: ")
    assert response.text == "I will try again."


@pytest.mark.requirement("TL9")
async def test_unknown_tool_is_an_error_result_that_names_it() -> None:
    agent, _ = agent_of([call("addd"), "oh"])
    assert results_of(await run(agent, False)) == ['Error: Requested function "addd" not found.']


@both_ways
@pytest.mark.requirement("TL9")
async def test_unknown_tool_ends_the_run_if_configured(stream: bool) -> None:
    agent, _ = agent_of([call("addd")], loop={"terminate_on_unknown_calls": True})
    with pytest.raises(KeyError, match="addd") as caught:
        await run(agent, stream)
    assert isinstance(caught.value, AgentError)


@pytest.mark.requirement("TL10", "C9")
async def test_forced_tool_choice_holds_for_the_first_call_only() -> None:
    agent, client = agent_of([call("add", {"a": 1, "b": 1}), "2"])
    await run(agent, False, options={"tool_choice": "required"})
    assert [options.get("tool_choice") for _, options in client.requests] == ["required", None]


@pytest.mark.parametrize(
    "bad",
    [{"max_iterations": 0}, {"max_function_calls": 0}, {"max_duration_seconds": 0}, {"max_consecutive_errors_per_request": -1}],
)
@pytest.mark.requirement("TL2")
def test_limits_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        agent_of([], loop=bad)


@pytest.mark.requirement("AG4")
async def test_two_tools_of_one_name_are_an_error() -> None:
    agent, _ = agent_of(["hi"], [add, FunctionTool(broken, name="add")])
    with pytest.raises(ValueError, match="'add'"):
        await run(agent, False)


@both_ways
async def test_failing_model_ends_the_run_with_its_error(stream: bool) -> None:
    agent, _ = agent_of([ModelError("set OPENAI_API_KEY")])
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await run(agent, stream)


@pytest.mark.requirement("AG3")
async def test_streamed_run_does_nothing_before_it_is_read() -> None:
    agent, client = agent_of(["hello"])
    stream = agent.run("hi", stream=True)
    assert client.requests == []
    with anyio.fail_after(20):
        assert (await stream.get_final_response()).text == "hello"


@both_ways
async def test_cancelling_a_run_cancels_its_tools(stream: bool) -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def slow() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    agent, client = agent_of([call("slow"), "never"], [slow])
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, agent, stream)
            await started.wait()
            tasks.cancel_scope.cancel()
    assert cancelled.is_set()
    assert len(client.requests) == 1


class Picture:
    """A tool whose result has more than text."""

    definition = ToolDefinition("picture")

    async def call(self, arguments: Any, ctx: Any) -> Complete:
        blocks = [{"type": "text", "text": "Here:"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]
        return Complete({"content": blocks, "isError": False})


async def test_result_that_is_not_text_is_named_to_the_model() -> None:
    agent, _ = agent_of([call("picture"), "nice"], [Picture()])
    assert results_of(await run(agent, False)) == ["Here:\n[image (image/png)]"]


def function_layer(log: list[str], name: str) -> Any:
    async def layer(context: FunctionInvocationContext, call_next: CallNext) -> None:
        log.append(f"{name}>")
        await call_next()
        log.append(f"<{name}")

    return layer


@pytest.mark.requirement("MW6", "MW7")
async def test_function_middleware_nests_first_outermost() -> None:
    log: list[str] = []

    async def doubling(context: FunctionInvocationContext, call_next: CallNext) -> None:
        context.arguments["a"] = 10
        await call_next()
        context.result = f"about {context.result}"

    agent, _ = agent_of([call("add", {"a": 1, "b": 1}), "ok"], middleware=[function_layer(log, "a"), function_layer(log, "b"), doubling])
    assert results_of(await run(agent, False)) == ["about 11"]
    assert log == ["a>", "b>", "<b", "<a"]


@pytest.mark.requirement("MW8")
async def test_function_middleware_without_call_next_replaces_the_tool() -> None:
    log: list[str] = []

    async def cached(context: FunctionInvocationContext, call_next: CallNext) -> None:
        context.result = "from the cache"

    agent, _ = agent_of([call("broken"), "ok"], middleware=[function_layer(log, "a"), cached])
    assert results_of(await run(agent, False)) == ["from the cache"]
    assert log == ["a>", "<a"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.requirement("MW9", "MW10", "MW12", "MW13")
async def test_termination_in_function_middleware_ends_the_loop(after: bool) -> None:
    log: list[str] = []

    async def stop(context: FunctionInvocationContext, call_next: CallNext) -> None:
        if after:
            await call_next()
        raise MiddlewareTermination("enough", result="stopped")

    agent, client = agent_of([call("add", {"a": 1, "b": 1}), "never"], middleware=[function_layer(log, "a"), stop])
    assert results_of(await run(agent, False)) == ["2" if after else "stopped"]
    assert log == ["a>"]
    assert len(client.requests) == 1


@pytest.mark.requirement("MW11")
async def test_exception_in_function_middleware_is_a_tool_error() -> None:
    async def faulty(context: FunctionInvocationContext, call_next: CallNext) -> None:
        raise KeyError("oops")

    agent, _ = agent_of([call("add", {"a": 1, "b": 1}), "went on"], middleware=[faulty])
    response = await run(agent, False)
    assert results_of(response) == ["Error: Function failed."]
    assert response.text == "went on"


@both_ways
@pytest.mark.requirement("MW8", "MW13")
async def test_agent_middleware_may_answer_in_the_agents_place(stream: bool) -> None:
    canned = AgentResponse([Message("assistant", "not today")])

    async def closed(context: AgentContext, call_next: CallNext) -> None:
        context.result = canned

    async def terminating(context: AgentContext, call_next: CallNext) -> None:
        raise MiddlewareTermination(result=canned)

    for middleware in (closed, terminating):
        agent, client = agent_of([], middleware=[middleware])
        assert (await run(agent, stream)).text == "not today"
        assert client.requests == []


@both_ways
@pytest.mark.requirement("MW2", "MW11")
async def test_agent_middleware_edits_messages_and_its_errors_are_raised(stream: bool) -> None:
    async def polite(context: AgentContext, call_next: CallNext) -> None:
        context.messages.append(Message("user", "please"))
        await call_next()

    async def faulty(context: AgentContext, call_next: CallNext) -> None:
        raise RuntimeError("not like this")

    agent, client = agent_of(["yes"], middleware=[polite])
    await run(agent, stream)
    assert [message.text for message in client.requests[0][0]] == ["go", "please"]
    agent, _ = agent_of(["yes"], middleware=[faulty])
    with pytest.raises(RuntimeError, match="not like this"):
        await run(agent, stream)


@pytest.mark.requirement("MW15", "C1")
async def test_call_next_rejects_arguments() -> None:
    async def old(context: AgentContext, call_next: Any) -> None:
        await call_next(context)

    agent, _ = agent_of(["yes"], middleware=[old])
    with pytest.raises(TypeError, match="takes no argument"):
        await run(agent, False)


@pytest.mark.requirement("TL10")
async def test_choice_of_no_tools_reaches_the_model() -> None:
    agent, client = agent_of(["I will not."])
    await run(agent, False, options={"tool_choice": "none"})
    options = client.requests[0][1]
    assert options.get("tool_choice") == "none"
    assert [offered.name for offered in options.get("tools") or ()] == ["add", "broken"]


async def test_leaving_a_stream_early_closes_the_models() -> None:
    closed = anyio.Event()

    class Slow(ScriptedChatClient):
        async def _updates(self, messages: Any, *, stream: bool, options: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
            try:
                yield ChatResponseUpdate([Content.from_text("one ")], "assistant")
                await anyio.sleep_forever()
            finally:
                closed.set()

    stream = Agent(Slow([])).run("go", stream=True)
    assert (await anext(aiter(stream))).text == "one "
    with anyio.fail_after(20):
        await stream.aclose()
        await closed.wait()


async def test_closing_a_run_closes_the_models_stream_first() -> None:
    """The test keeps a reference to the stream, so that no garbage collector closes it instead."""
    opened: list[ResponseStream[ChatResponseUpdate, ChatResponse]] = []
    closed: list[str] = []

    async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
        yield ChatResponseUpdate([Content.from_text("one ")], "assistant")
        await anyio.sleep_forever()

    class Client:
        def get_response(self, messages: Any, *, stream: bool = False, **settings: Any) -> Any:
            response = ResponseStream(updates(), ChatResponse.from_updates)
            opened.append(response.with_cleanup_hook(lambda: closed.append("model")))
            return response

    run = Agent(cast("Any", Client())).run("go", stream=True)
    assert (await anext(aiter(run))).text == "one "
    with anyio.fail_after(20):
        await run.aclose()
    assert (len(opened), closed) == (1, ["model"])


@both_ways
@pytest.mark.requirement("TY4")
async def test_provider_conversation_receives_new_messages_only(stream: bool) -> None:
    class Keeping(ScriptedChatClient):
        async def _updates(self, messages: Any, *, stream: bool, options: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
            async for update in super()._updates(messages, stream=stream, options=options):
                update.conversation_id = f"conversation-{len(self.requests)}"
                yield update

    client = Keeping([call("add", {"a": 1, "b": 1}), "2", "hello again"])
    agent = Agent(client, tools=[add])
    session = agent.create_session()
    for task in ("add", "hello"):
        if stream:
            await agent.run(task, stream=True, session=session).get_final_response()
        else:
            await agent.run(task, session=session)
    told = [[message.role for message in messages] for messages, _ in client.requests]
    assert told == [["user"], ["tool"], ["user"]]
    assert [options.get("conversation_id") for _, options in client.requests] == [None, "conversation-1", "conversation-2"]
    assert session.service_session_id == "conversation-3"


@pytest.mark.requirement("TL12")
async def test_calls_run_sequentially_if_configured() -> None:
    log: list[str] = []

    async def first() -> None:
        log.append("first begins")
        await anyio.lowlevel.checkpoint()
        log.append("first ends")

    def second() -> None:
        log.append("second")

    batch = [call("first", id="c1"), call("second", id="c2")]
    agent, _ = agent_of([batch, "ok"], [first, second], loop={"allow_concurrent_invocation": False})
    assert len(results_of(await run(agent, False))) == 2
    assert log == ["first begins", "first ends", "second"]


@both_ways
@pytest.mark.requirement("TL2")
async def test_run_that_took_its_time_gets_no_more_tools(stream: bool) -> None:
    agent, client = agent_of([call("add", {"a": 1, "b": 1})] * 3, loop={"max_duration_seconds": 1e-9})
    response = await run(agent, stream)
    assert (results_of(response), response.text, len(client.requests)) == (["2"], NO_ANSWER, 2)
    assert "at most 1e-09 s" in response.additional_properties["stopped"]
    agent, client = agent_of([call("add", {"a": 1, "b": 1}), "done"], loop={"max_duration_seconds": 60})
    assert (results_of(await run(agent, stream)), len(client.requests)) == (["2"], 2)


@pytest.mark.requirement("TL12")
async def test_values_set_in_a_tools_context_stay_with_its_call() -> None:
    seen: list[str] = []

    async def set_it(value: str) -> str:
        seen.append(MARK.get())
        MARK.set(value)
        return value

    batch = [call("set_it", {"value": "a"}, "c1"), call("set_it", {"value": "b"}, "c2")]
    agent, _ = agent_of([batch, call("set_it", {"value": "c"}), "done"], [set_it])
    await run(agent, False)
    assert seen == ["unset", "unset", "unset"]
    assert MARK.get() == "unset"


MARK: ContextVar[str] = ContextVar("mark", default="unset")


@pytest.mark.requirement("TY5")
@both_ways
async def test_response_id_is_that_of_the_last_model_call(stream: bool) -> None:
    agent, _ = agent_of([call("add", {"a": 1, "b": 2}), "3"])
    if stream:
        run = agent.run("1 + 2?", stream=True)
        assert [update.response_id async for update in run] == ["scripted-1", None, "scripted-2"]
        assert (await run.get_final_response()).response_id == "scripted-2"
    else:
        assert (await agent.run("1 + 2?")).response_id == "scripted-2"
