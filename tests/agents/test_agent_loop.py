"""`AgentLoopMiddleware`: the end of a loop, the input of each round, and the response."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway import Agent, AgentResponse, AgentSession, Content, Message, ScriptedChatClient, TodoProvider, tool
from gateway.agents.middleware.loop import AgentLoopMiddleware, todos_remaining


def texts(messages: list[Message]) -> list[str]:
    return [f"{message.role}: {message.text}" for message in messages]


def until(last: int) -> Callable[..., bool]:
    def goes_on(*, iteration: int) -> bool:
        return iteration < last

    return goes_on


def after(*, last_result: AgentResponse) -> str:
    return f"after {last_result.text}"


def inputs(client: ScriptedChatClient) -> list[list[str]]:
    return [texts(messages) for messages, _ in client.requests]


async def run(agent: Agent, *, stream: bool, session: AgentSession | None = None) -> AgentResponse:
    if not stream:
        return await agent.run("go", session=session)
    return await agent.run("go", stream=True, session=session).get_final_response()


@pytest.mark.requirement("LP1")
@pytest.mark.parametrize("stream", [False, True])
async def test_limit_precedes_predicate_and_progress_is_recorded_last(stream: bool) -> None:
    order: list[str] = []

    def goes_on(*, iteration: int) -> tuple[bool, str]:
        order.append(f"predicate {iteration}")
        return True, f"said {iteration}"

    async def record(*, iteration: int, feedback: str | None) -> str:
        order.append(f"record {iteration} {feedback}")
        return f"entry {iteration}"

    client = ScriptedChatClient(["a", "b", "c", "d"])
    agent = Agent(client, middleware=[AgentLoopMiddleware(goes_on, max_iterations=3, record_feedback=record)])
    await run(agent, stream=stream)

    assert order == ["predicate 1", "record 1 said 1", "predicate 2", "record 2 said 2", "record 3 None"]
    assert len(client.requests) == 3


@pytest.mark.requirement("LP1")
async def test_limit_is_ten_by_default_and_must_be_positive() -> None:
    client = ScriptedChatClient(["again"] * 30)
    await Agent(client, middleware=[AgentLoopMiddleware(lambda: True)]).run("go")
    assert len(client.requests) == 10

    client = ScriptedChatClient(["again"] * 30)
    await Agent(client, middleware=[AgentLoopMiddleware(until(25), max_iterations=None)]).run("go")
    assert len(client.requests) == 25
    for cap in (0, -1):
        with pytest.raises(ValueError, match="max_iterations"):
            AgentLoopMiddleware(lambda: True, max_iterations=cap)


@pytest.mark.requirement("LP2")
async def test_callbacks_get_all_of_the_loops_values_by_name() -> None:
    seen: list[dict[str, Any]] = []

    def goes_on(**values: Any) -> bool:
        values["progress"].append("not the loop's own list")
        seen.append(values)
        return values["iteration"] < 2

    client = ScriptedChatClient(["first", "second"])
    agent = Agent(client, middleware=[AgentLoopMiddleware(goes_on, next_message=after)])
    session = agent.create_session()
    await agent.run("go", session=session)

    names = {"iteration", "last_result", "messages", "original_messages", "session", "agent", "progress", "feedback"}
    assert [set(values) for values in seen] == [names, names]
    assert (seen[0]["agent"], seen[0]["session"], seen[0]["feedback"]) == (agent, session, None)
    assert [texts(values["messages"]) for values in seen] == [["user: go"], ["user: Progress so far:\n- first", "user: after first"]]
    assert texts(seen[1]["original_messages"]) == ["user: go"]
    assert seen[1]["progress"] == ["first", "not the loop's own list"]


@pytest.mark.requirement("LP3")
async def test_response_has_all_rounds_and_inputs_unless_final_only() -> None:
    def made(*, final_only: bool) -> Agent:
        loop = AgentLoopMiddleware(until(2), inject_progress=False, return_final_only=final_only)
        return Agent(ScriptedChatClient(["one", "two"]), middleware=[loop])

    everything = await made(final_only=False).run("go")
    last = await made(final_only=True).run("go")
    assert texts(everything.messages) == ["assistant: one", "user: Go on with the task. If it is complete, say so.", "assistant: two"]
    assert texts(last.messages) == ["assistant: two"]


@pytest.mark.requirement("LP3")
@pytest.mark.parametrize("final_only", [False, True])
async def test_stream_yields_all_rounds_and_final_response_is_the_last(final_only: bool) -> None:
    loop = AgentLoopMiddleware(until(2), next_message=lambda: "next", return_final_only=final_only)
    stream = Agent(ScriptedChatClient(["one", "two"]), middleware=[loop]).run("go", stream=True)
    parts = [f"{update.role}: {update.text}" async for update in stream if update.text]
    assert parts == ["assistant: one", "user: Progress so far:\n- one", "user: next", "assistant: two"]
    assert texts((await stream.get_final_response()).messages) == ["assistant: two"]


@pytest.mark.requirement("LP4")
@pytest.mark.parametrize("stream", [False, True])
async def test_judge_ends_the_loop_and_its_reasons_reach_the_agent(stream: bool) -> None:
    judge = ScriptedChatClient([json.dumps({"answered": False, "reasoning": "no sources"}), json.dumps({"answered": True})])
    client = ScriptedChatClient(["draft", "final"])
    loop = AgentLoopMiddleware.with_judge(judge, criteria=["cites sources", "is short"])
    picture = Content.from_uri("https://example.com/x.png", "image/png")
    agent = Agent(client, middleware=[loop])
    question = Message("user", ["describe", picture])

    if stream:
        await agent.run([question], stream=True).get_final_response()
    else:
        await agent.run([question])

    told = inputs(client)
    assert told[0][0] == "system: Your answer must meet all of these criteria:\n- cites sources\n- is short"
    assert "no sources" in told[1][-1]
    asked, options = judge.requests[0]
    assert "- cites sources" in asked[0].text and "{{criteria}}" not in asked[0].text
    assert any(picture in message.contents for message in asked)
    assert "draft" in " ".join(texts(asked))
    assert options.get("response_format") is not None
    assert len(judge.requests) == 2


@pytest.mark.requirement("LP4")
async def test_unstructured_verdict_is_read_from_last_line_and_else_no() -> None:
    answers = ["Looks fine. VERDICT: MORE or VERDICT: DONE", "who knows", '{"answered": "maybe"}', "Good.\nVerdict: done"]
    judge, client = ScriptedChatClient(answers), ScriptedChatClient(["x"] * 9)
    await Agent(client, middleware=[AgentLoopMiddleware.with_judge(judge)]).run("go")
    assert len(client.requests) == 4

    judge, client = ScriptedChatClient(["VERDICT: MORE"] * 9), ScriptedChatClient(["x"] * 9)
    await Agent(client, middleware=[AgentLoopMiddleware.with_judge(judge, instructions="Only {{criteria}}", criteria=["c"])]).run("go")
    assert (len(client.requests), len(judge.requests)) == (5, 4)
    assert judge.requests[0][0][0].text.startswith("Only \n\nThe answer must")


@pytest.mark.requirement("LP5")
async def test_progress_log_is_whole_without_session_and_else_last_entry() -> None:
    def made() -> tuple[ScriptedChatClient, Agent]:
        client = ScriptedChatClient(["one", "two", "three"])
        return client, Agent(client, middleware=[AgentLoopMiddleware(until(3), next_message=lambda: "next")])

    client, agent = made()
    await agent.run("go")
    assert inputs(client)[2] == ["user: Progress so far:\n- one\n- two", "user: next"]

    client, agent = made()
    await agent.run("go", session=agent.create_session())
    assert inputs(client)[2][-2:] == ["user: Progress so far:\n- two", "user: next"]
    assert inputs(client)[2][0] == "user: go"


@pytest.mark.requirement("LP5")
async def test_fresh_context_restores_messages_and_session_each_round() -> None:
    client = ScriptedChatClient(["before", "one", "two"])
    agent = Agent(client)
    session = agent.create_session()
    await agent.run("earlier", session=session)
    session.state["mine"] = {"kept": [1]}

    def goes_on(*, iteration: int, session: AgentSession) -> bool:
        session.state["mine"]["kept"].append(2)
        return iteration < 2

    agent.middleware.append(AgentLoopMiddleware(goes_on, fresh_context=True, next_message=lambda: None))
    await agent.run("go", session=session)

    second = inputs(client)[2]
    assert second[:3] == ["user: earlier", "assistant: before", "user: go"]
    assert second[3:] == ["user: Progress so far:\n- one", "user: Go on with the task. If it is complete, say so."]
    assert session.state["mine"] == {"kept": [1, 2]}


@pytest.mark.requirement("LP5")
async def test_loop_reuses_messages_without_next_message() -> None:
    client = ScriptedChatClient(["one", "two"])
    await Agent(client, middleware=[AgentLoopMiddleware(until(2), next_message=lambda: None)]).run("go")
    assert inputs(client) == [["user: go"], ["user: go"]]


@pytest.mark.requirement("LP6")
@pytest.mark.parametrize("stream", [False, True])
async def test_question_to_a_person_ends_the_loop_at_once(stream: bool) -> None:
    @tool(approval_mode="always_require")
    async def pay() -> str:
        """Pay."""
        return "paid"

    client = ScriptedChatClient([Content.from_function_call("1", "pay", {}), "never"])
    response = await run(Agent(client, tools=[pay], middleware=[AgentLoopMiddleware(lambda: True)]), stream=stream)
    assert len(client.requests) == 1
    assert [request.type for request in response.user_input_requests] == ["function_approval_request"]


@pytest.mark.requirement("LP7")
async def test_loop_goes_on_while_the_todo_list_has_open_items() -> None:
    def call(name: str, arguments: dict[str, Any]) -> Content:
        return Content.from_function_call("c", name, arguments)

    done = {"items": [{"id": 1, "reason": "r"}]}
    client = ScriptedChatClient(
        [call("todos_add", {"todos": [{"title": "a"}]}), "added", call("todos_complete", done), "finished", "never"]
    )
    todos = TodoProvider()
    agent = Agent(client, context_providers=[todos], middleware=[AgentLoopMiddleware(todos_remaining(todos))])
    response = await agent.run("go", session=agent.create_session())
    assert [message.text for message in response.messages if message.role == "assistant" and message.text] == ["added", "finished"]
    assert len(client.requests) == 4

    client = ScriptedChatClient(["at once"])
    assert (await Agent(client, middleware=[AgentLoopMiddleware(todos_remaining(todos))]).run("go")).text == "at once"
