"""Code written for agent-framework, with the import changed: agents, tools, streams, structured output, agents as tools."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what code that moves over does with a run
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field, ValidationError

from gateway import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    ChatOptions,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    Message,
    ResponseStream,
    ScriptedChatClient,
    SequentialBuilder,
    SupportsAgentRun,
    tool,
)
from gateway.a2a import A2AAgent
from gateway.agents.run_results import to_complete
from gateway.errors import ModelError
from tests.agents.building import agent_of, both_ways, call, kinds_of, results_of, run


def get_weather(location: Annotated[str, Field(description="The location")]) -> str:
    """Get the weather."""
    return f"Sunny in {location}"


@pytest.mark.requirement("C4", "C2", "TY13", "CL1")
async def test_the_first_example_of_every_tutorial_runs() -> None:
    client = ScriptedChatClient([call("get_weather", '{"location": "Oslo"}'), "It is sunny.", ["It ", "rains."]])
    agent = Agent(client=client, name="WeatherAgent", instructions="You are helpful.", tools=get_weather)
    result = await agent.run("What is the weather in Oslo?")
    assert (str(result), results_of(result)) == ("It is sunny.", ["Sunny in Oslo"])
    texts: list[str] = []
    stream = agent.run("And now?", stream=True)
    async for update in stream:
        texts.append(update.text)  # noqa: PERF401  # as tutorials have it
    assert texts == ["It ", "rains."]
    assert (await stream.get_final_response()).text == "It rains."
    assert not hasattr(agent, "run_stream")


async def test_run_is_a_coroutine_so_it_can_be_a_task() -> None:
    first, second = agent_of(["a"])[0], agent_of(["b"])[0]
    work: Any = first.run("x")  # typed as an awaitable, as there
    task: asyncio.Task[AgentResponse] = asyncio.create_task(work)
    both = await asyncio.gather(task, second.run("y"))
    assert [response.text for response in both] == ["a", "b"]


@pytest.mark.requirement("AG2", "AG4")
async def test_run_accepts_strings_messages_contents_tools_and_options() -> None:
    agent, client = agent_of(["1"], [get_weather], default_options={"temperature": 0.1, "top_p": 0.5})
    picture = Content.from_data(b"x", "image/png")
    await run(agent, False, ["hi", picture, Message("user", ["and", "this"])], tools=[lookup], options={"temperature": 0.9})
    messages, options = client.requests[0]
    assert [[c.type for c in m.contents] for m in messages] == [["text"], ["data"], ["text", "text"]]
    assert [offered.name for offered in options.get("tools") or ()] == ["get_weather", "lookup"]
    assert (options.get("temperature"), options.get("top_p")) == (0.9, 0.5)


def lookup(word: str) -> str:
    return word


@both_ways
@pytest.mark.requirement("SO1", "SO3", "C31")
async def test_pydantic_model_as_response_format_gives_a_typed_value(stream: bool) -> None:
    class City(BaseModel):
        name: str
        people: int

    agent, client = agent_of(['{"name": "Oslo", "people": 7}', "not json"], default_options={"response_format": City})
    response = await run(agent, stream)
    assert response.value == City(name="Oslo", people=7)
    assert client.requests[0][1].get("response_format") is City
    broken = await run(agent, stream)
    with pytest.raises(ValidationError):
        _ = broken.value


@pytest.mark.requirement("SO1", "SO3")
async def test_structured_value_is_read_from_the_last_answer() -> None:
    agent, _ = agent_of([["Let me see. ", call("get_weather", {"location": "x"})], '{"ok": true}'], [get_weather])
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    response = await run(agent, False, options=ChatOptions(response_format=schema))
    assert response.value == {"ok": True}


@both_ways
@pytest.mark.requirement("SO1")
async def test_custom_schema_is_sent_unchanged(stream: bool) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    agent, client = agent_of(["[1, 2]"])
    response = await run(agent, stream, options={"response_format": schema})
    assert client.requests[0][1].get("response_format") == schema
    assert response.value == [1, 2]


@dataclass
class Point:
    x: int
    y: int


@both_ways
@pytest.mark.requirement("SO2", "C31")
@pytest.mark.parametrize(
    ("wanted", "answer", "value"),
    [
        (list[Point], '{"result": [{"x": 1, "y": 2}]}', [Point(1, 2)]),
        (int, '{"result": 42}', 42),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    ],
    ids=["list", "number", "dataclass"],
)
async def test_response_format_accepts_any_type_and_wraps_non_objects(
    stream: bool, wanted: Any, answer: str, value: Any
) -> None:
    agent, client = agent_of([answer])
    response = await run(agent, stream, options={"response_format": wanted})
    assert response.value == value
    sent = client.requests[0][1].get("response_format")
    assert isinstance(sent, dict)
    assert sent["type"] == "object" if wanted is not Point else "x" in sent["properties"]


@pytest.mark.requirement("SO3")
async def test_wrapped_answer_without_its_wrapping_is_a_value_error() -> None:
    agent, _ = agent_of(["[1]"])
    response = await run(agent, False, options={"response_format": list[int]})
    with pytest.raises(ValueError):
        _ = response.value


@pytest.mark.requirement("TL13")
async def test_tool_can_take_its_context_and_change_the_runs_tools() -> None:
    def extra() -> str:
        return "extra"

    @tool
    def load(ctx: FunctionInvocationContext) -> str:
        ctx.add_tools([extra])
        return f"for {ctx.kwargs['user']}"

    @tool
    def unload(ctx: FunctionInvocationContext) -> str:
        ctx.remove_tools("extra")
        return "gone"

    @tool
    def clash(ctx: FunctionInvocationContext) -> str:
        ctx.add_tools([lookup, FunctionTool(get_weather, name="load")])
        return "never"

    agent, client = agent_of([call("load"), call("extra"), call("clash"), call("unload"), "done"], [load, unload, clash])
    response = await run(agent, False, function_invocation_kwargs={"user": "ann"})
    assert results_of(response)[:2] == ["for ann", "extra"]
    offered = [[t.name for t in options.get("tools") or ()] for _, options in client.requests]
    base = ["load", "unload", "clash"]
    assert offered == [base, [*base, "extra"], [*base, "extra"], [*base, "extra"], base]
    with pytest.raises(RuntimeError, match="not called by an agent"):
        FunctionInvocationContext(load, {}).add_tools(extra)
    assert agent.tools == [load, unload, clash]


@pytest.mark.requirement("TL1")
async def test_tool_object_is_used_as_in_agent_framework() -> None:
    @tool(name="square", description="Squares a number.", max_invocations=2)
    def square(x: int) -> int:
        return x * x

    assert (square.name, square.description, square.declaration_only, square(3)) == ("square", "Squares a number.", False, 9)
    assert square.to_json_schema_spec()["function"]["parameters"]["properties"] == {"x": {"type": "integer"}}
    assert [content.text for content in await square.invoke(arguments={"x": 4})] == ["16"]
    with pytest.raises(Exception, match="as often as allowed"):
        await square.invoke(arguments={"x": 4})
    with pytest.raises(TypeError, match="x: Input should be a valid integer"):
        await square.invoke(arguments={"x": "four"})
    for wrong in ({"max_invocations": 0}, {"max_invocation_exceptions": 0}, {"approval_mode": "sometimes"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FunctionTool(get_weather, **wrong)  # pyright: ignore[reportArgumentType]


async def test_methods_become_tools_of_their_object() -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.start = start

        @tool
        def plus(self, n: int) -> int:
            """Adds."""
            return self.start + n

        def minus(self, n: int) -> int:
            return self.start - n

    five, ten = Counter(5), Counter(10)
    agent, _ = agent_of([[call("plus", {"n": 1}), call("minus", {"n": 2}, "c2")], "ok"], [five.plus, ten.minus])
    assert results_of(await run(agent, False)) == ["6", "8"]
    assert five.plus.parameters()["properties"] == {"n": {"type": "integer"}}


async def test_tool_gives_pictures_beside_text() -> None:
    def chart() -> list[Any]:
        return ["A chart:", Content.from_data(b"png", "image/png")]

    agent, client = agent_of([call("chart"), "nice"], [chart])
    await run(agent, False)
    [result] = client.requests[1][0][-1].contents
    assert result.result == "A chart:\n[image (image/png)]"
    assert [item.type for item in result.items or ()] == ["text", "data"]


@pytest.mark.requirement("AG5")
async def test_agent_is_a_tool_of_another_with_one_argument() -> None:
    heard: list[str] = []
    writer = Agent(ScriptedChatClient([["a ", "poem"]]), name="The writer!", description="Writes.")
    as_tool = writer.as_tool(stream_callback=lambda update: heard.append(update.text))
    assert (as_tool.name, as_tool.description) == ("The_writer", "Writes.")
    assert as_tool.parameters() == {
        "type": "object",
        "properties": {"task": {"type": "string", "description": "Task for The_writer"}},
        "required": ["task"],
        "additionalProperties": False,
    }
    editor, _ = agent_of([call("The_writer", {"task": "write"}), "Here it is."], [as_tool])
    assert results_of(await run(editor, False)) == ["a poem"]
    assert heard == ["a ", "poem"]
    with pytest.raises(ValueError, match="name"):
        Agent(ScriptedChatClient([])).as_tool()


@pytest.mark.requirement("AG5")
@pytest.mark.parametrize("shared", [False, True])
async def test_agent_as_tool_has_its_own_conversation_unless_propagated(shared: bool) -> None:
    sessions: list[Any] = []

    async def look(ctx: FunctionInvocationContext) -> str:
        sessions.append(ctx.session)
        return "ok"

    inner = Agent(ScriptedChatClient([call("look"), "done"]), name="inner", tools=[look])
    outer, _ = agent_of([call("inner", {"task": "x"}), "end"], [inner.as_tool(propagate_session=shared)])
    session = outer.create_session()
    await run(outer, False, session=session)
    assert (sessions[0] is not None and sessions[0].session_id == session.session_id) is shared
    assert (sessions[0] is not None and sessions[0].state is session.state) is shared
    assert sessions[0] is not session, "what the inner agent's provider keeps is not the caller's conversation"


@pytest.mark.requirement("AG1")
def test_agents_implement_supports_agent_run() -> None:
    agent, _ = agent_of([])
    assert isinstance(agent, SupportsAgentRun)
    assert agent.create_session(session_id="mine").session_id == "mine"
    assert agent.get_session("theirs").service_session_id == "theirs"


@pytest.mark.requirement("AG1")
async def test_agent_of_another_kind_is_written_over_base_agent() -> None:
    class Echo(BaseAgent):
        def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None) -> Any:
            async def parts() -> Any:
                yield AgentResponseUpdate(contents=[Content.from_text(f"echo {messages}")], role="assistant")

            answer = ResponseStream[AgentResponseUpdate, AgentResponse](parts(), finalizer=AgentResponse.from_updates)
            return answer if stream else answer.get_final_response()

    assert (await Echo(name="echo").run("hi")).text == "echo hi"
    assert isinstance(Echo(), SupportsAgentRun)
    echo = Echo(id="e1", name="echo", description="Says it again.", additional_properties={"version": "1"})
    assert (echo.id, echo.name, echo.description, echo.additional_properties) == ("e1", "echo", "Says it again.", {"version": "1"})
    assert echo.create_session(session_id="mine").session_id == "mine"
    assert echo.get_session("theirs").service_session_id == "theirs"


def whole(text: str) -> AgentResponse:
    return AgentResponse(messages=[Message("assistant", [text])])


async def parts(text: str) -> AsyncIterator[AgentResponseUpdate]:
    yield AgentResponseUpdate(contents=[Content.from_text(text)], role="assistant")


def stream_of(text: str) -> ResponseStream[AgentResponseUpdate, AgentResponse]:
    return ResponseStream(parts(text), finalizer=AgentResponse.from_updates)


class Answers(BaseAgent):
    """An agent whose `run`, sync or async, returns a stream, an async iterator of updates, or a complete response."""

    def __init__(self, form: str) -> None:
        super().__init__(name="Word counter", description="Counts.")
        self.form = form
        self.given: list[dict[str, Any]] = []

    def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any) -> Any:
        self.given.append({"task": messages, "session": session, **kwargs})
        made: Any = {"stream": stream_of, "parts": parts, "whole": whole}[self.form.split()[-1]]("four words")
        if not self.form.startswith("awaited"):
            return made

        async def later() -> Any:
            return made

        return later()


@both_ways
@pytest.mark.parametrize("form", ["stream", "parts", "awaited stream", "awaited parts", "awaited whole"])
@pytest.mark.requirement("AG1", "AG5")
async def test_agent_of_another_kind_is_a_tool_too(form: str, stream: bool) -> None:
    heard: list[str] = []
    counter = Answers(form)
    made = counter.as_tool(stream_callback=lambda update: heard.append(update.text), propagate_session=True)
    assert (made.name, made.description) == ("Word_counter", "Counts.")
    outer, _ = agent_of([call("Word_counter", {"task": "count"}), "end"], [made])
    session = outer.create_session()
    response = await run(outer, stream, session=session, function_invocation_kwargs={"user": "ann"})
    assert (results_of(response), heard) == (["four words"], ["four words"])
    [given] = counter.given
    assert (given["task"], given["function_invocation_kwargs"]) == ("count", {"user": "ann"})
    assert given["session"].session_id == session.session_id and given["session"].state is session.state


@pytest.mark.requirement("AG5")
async def test_valid_tool_name_is_used_unchanged() -> None:
    agent = Answers("stream")
    assert [agent.as_tool(name=name).name for name in ("count-words", "count words")] == ["count-words", "count_words"]
    agent.name = "@@@"
    assert agent.as_tool().name == "agent"
    with pytest.raises(TypeError, match=r"BaseAgent must implement SupportsAgentRun"):
        BaseAgent(name="nothing").as_tool()


@pytest.mark.requirement("AG5")
async def test_agents_of_every_kind_are_base_agents() -> None:
    workflow = SequentialBuilder(participants=[agent_of([])[0]]).build()
    for agent in (agent_of([])[0], workflow.as_agent("flow"), A2AAgent(name="far", url="http://127.0.0.1:1")):
        assert isinstance(agent, BaseAgent) and agent.as_tool().name == agent.name


@pytest.mark.requirement("AG7")
async def test_extra_values_become_additional_properties() -> None:
    message = Message("user", ["hi"], additional_properties={"some.Feature": {"deep": 1}})
    agent, client = agent_of(["ok"], additional_properties={"owner": "me"})
    await run(agent, False, message)
    assert client.requests[0][0][0].additional_properties == {"some.Feature": {"deep": 1}}
    assert agent.additional_properties == {"owner": "me"}


@pytest.mark.requirement("AG9", "TY9")
async def test_options_of_a_clients_own_reach_it() -> None:
    class MyOptions(ChatOptions, total=False):
        reasoning_effort: str

    agent, client = agent_of(["ok"], default_options=MyOptions(reasoning_effort="low"))
    own: Any = MyOptions(seed=1, allow_multiple_tool_calls=False)
    await run(agent, False, options=own)
    sent: Any = client.requests[0][1]
    assert (sent["reasoning_effort"], sent["seed"], sent["allow_multiple_tool_calls"]) == ("low", 1, False)


@pytest.mark.requirement("C11", "TL2", "TL14")
async def test_loop_limits_of_run_override_agent_and_client() -> None:
    agent, client = agent_of([call("get_weather", {"location": "x"})] * 9, [get_weather], loop={"max_iterations": 3})
    client.function_invocation_configuration["max_iterations"] = 5
    await run(agent, False)
    assert len(client.requests) == 4
    await run(agent, False, options={"loop": {"max_iterations": 1}})
    assert len(client.requests) == 6
    assert all("loop" not in options for _, options in client.requests)
    with pytest.raises(ValueError, match="max_iteration'"):
        await run(agent, False, options={"loop": {"max_iteration": 1}})


@pytest.mark.requirement("TL2")
async def test_loop_that_is_off_leaves_the_calls_to_the_caller() -> None:
    agent, client = agent_of([call("get_weather", {"location": "x"})], [get_weather], loop={"enabled": False})
    response = await run(agent, False)
    assert kinds_of(response) == [("assistant", ["function_call"])]
    assert [offered.name for offered in client.requests[0][1].get("tools") or ()] == ["get_weather"]


@both_ways
@pytest.mark.requirement("TL10", "C9")
async def test_forced_call_may_end_the_run_with_its_result(stream: bool) -> None:
    agent, client = agent_of([call("get_weather", {"location": "x"}), "never"], [get_weather], loop={"return_tool_results": True})
    choice: Any = {"mode": "required", "required_function_name": "get_weather"}
    response = await run(agent, stream, options={"tool_choice": choice})
    assert (results_of(response), len(client.requests)) == (["Sunny in x"], 1)
    assert client.requests[0][1].get("tool_choice") == choice


@pytest.mark.requirement("TY6", "C22")
def test_response_text_is_complete_and_clients_get_last_message() -> None:
    said = [Message("user", "q"), Message("assistant", "a"), Message("tool", "t"), Message("assistant", "b"), Message("user", "?")]
    response = AgentResponse(messages=said)
    assert (response.text, str(response)) == ("qatb?", "qatb?")
    assert to_complete(response, model=None, output=None).as_text() == "b"


async def test_entered_agent_opens_and_closes_client_and_tool_sources() -> None:
    log: list[str] = []

    class Entered:
        """A source of tools that is a context manager."""

        id = "s"

        async def tools(self) -> list[Any]:
            return []

        async def __aenter__(self) -> Entered:
            log.append("in")
            return self

        async def __aexit__(self, *exc: object) -> None:
            log.append("out")

    class EnteredClient(ScriptedChatClient):
        """A chat client that is a context manager."""

        async def __aenter__(self) -> Self:
            log.append("client in")
            return self

        async def __aexit__(self, *exc: object) -> None:
            log.append("client out")

    with pytest.raises(KeyError):
        async with Agent(EnteredClient(["hi"]), tools=Entered()) as agent:
            assert (await agent.run("x")).text == "hi"
            raise KeyError
    assert log == ["client in", "in", "out", "client out"]


async def test_agent_is_an_mcp_server_with_one_tool() -> None:
    agent = Agent(ScriptedChatClient(["Hello.", ModelError("no credit")]), name="Greeter 2", description="Greets.")
    async with Client(agent.as_mcp_server(server_name="greeting", version="3")) as client:
        [listed] = (await client.list_tools()).tools
        assert (listed.name, listed.description) == ("Greeter_2", "Greets.")
        assert (listed.input_schema["required"], listed.input_schema["additionalProperties"]) == (["task"], False)
        said: Any = await client.call_tool("Greeter_2", {"task": "Greet."})
        assert (said.content[0].text, said.is_error) == ("Hello.", False)
        for arguments, problem in (({"task": "Again."}, "no credit"), ({"job": "x"}, "task")):
            failed: Any = await client.call_tool("Greeter_2", arguments)
            assert failed.is_error and problem in failed.content[0].text
        with pytest.raises(MCPError, match="Unknown tool: other"):
            await client.call_tool("other", {})


def test_tool_name_of_an_agent_is_valid_for_models() -> None:
    names = {"My Agent": "My_Agent", "a--b!": "a_b", "123 go": "_123_go", "ägent": "gent"}
    assert {name: Agent(ScriptedChatClient([]), name=name).as_tool().name for name in names} == names
