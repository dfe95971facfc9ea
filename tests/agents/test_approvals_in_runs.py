"""Tools that need approval, within a conversation: the request, the effect of each answer, and the calls that never run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import (
    AgentSession,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    InMemoryHistoryProvider,
    Message,
    ScriptedChatClient,
    UserInputRequiredException,
    tool,
)
from gateway.agents.run_approvals import NEVER_ANSWERED, REJECTED, UNKNOWN_REQUEST
from tests.agents.building import agent_of, both_ways, call, kinds_of, results_of, run


class Files:
    """Tools that record their calls in a list."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.tools: list[Any] = [
            FunctionTool(self.remove, name="remove", approval_mode="always_require"),
            FunctionTool(self.look, name="look"),
        ]

    def remove(self, path: str) -> str:
        self.done.append(f"remove {path}")
        return f"removed {path}"

    def look(self) -> str:
        self.done.append("look")
        return "seen"


def answers_to(response: Any, approved: bool = True) -> Message:
    return Message("user", [request.to_function_approval_response(approved) for request in response.user_input_requests])


@both_ways
@pytest.mark.requirement("AP1", "AP2", "AP3", "TY7")
async def test_call_with_approval_ends_run_and_executes_once_approved(stream: bool) -> None:
    files = Files()
    agent, client = agent_of([call("remove", {"path": "/x"}), "It is gone."], files.tools)
    session = agent.create_session()
    asked = await run(agent, stream, session=session)
    [request] = asked.user_input_requests
    assert kinds_of(asked) == [("assistant", ["function_call", "function_approval_request"])]
    assert (request.id, request.function_call and request.function_call.name) == ("c1", "remove")
    assert files.done == []

    # The session may have been stored meanwhile.
    session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    answer = await run(agent, stream, answers_to(asked), session=session)
    assert (files.done, answer.text) == (["remove /x"], "It is gone.")
    told = [(m.role, [c.type for c in m.contents]) for m in client.requests[1][0]]
    assert told == [("user", ["text"]), ("assistant", ["function_call"]), ("tool", ["function_result"])]


@both_ways
@pytest.mark.requirement("AP3", "AP5")
async def test_rejected_call_becomes_a_result_and_is_logged(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    files = Files()
    agent, client = agent_of([call("remove", {"path": "/x"}), "As you wish."], files.tools)
    session = agent.create_session()
    asked = await run(agent, stream, session=session)
    with caplog.at_level("INFO", logger="gateway.agents.approvals"):
        answer = await run(agent, stream, answers_to(asked, approved=False), session=session)
    assert (files.done, answer.text) == ([], "As you wish.")
    assert [c.result for m in client.requests[1][0] for c in m.contents if c.type == "function_result"] == [REJECTED]
    assert "approval changed outcome='rejected' tool=remove" in caplog.text


@pytest.mark.parametrize("kept_by", ["provider", "nobody"])
@pytest.mark.requirement("AP5")
async def test_approvals_are_logged_and_stored_if_a_provider_keeps_history(
    kept_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files()
    audit = InMemoryHistoryProvider("audit", load_messages=False)
    providers = [InMemoryHistoryProvider(), audit] if kept_by == "provider" else []
    agent, client = agent_of([call("remove", {"path": "/x"}), "It is gone."], files.tools, context_providers=providers)
    session = agent.get_session("thread-1", session_id="ours") if kept_by == "provider" else None
    with caplog.at_level("INFO", logger="gateway.agents.approvals"):
        asked = await run(agent, False, session=session)
        before = [] if session else asked.messages
        await run(agent, False, [*before, answers_to(asked)], session=session)

    whose = "ours" if session else "-"
    told = [line for line in caplog.messages if " call=c1 " in line]
    assert told == [
        f"approval changed outcome={outcome!r} tool=remove call=c1 request=c1 session={whose}"
        for outcome in ("requested", "approved")
    ]
    assert "/x" not in caplog.text and files.done == ["remove /x"]
    if session is not None:
        assert client.requests[-1][1].get("conversation_id") == "thread-1"
        stored = await audit.get_messages(None, state=session.state["audit"])
        kinds = [content.type for message in stored for content in message.contents]
        assert kinds.index("function_approval_request") < kinds.index("function_approval_response") < kinds.index("function_result")


@pytest.mark.requirement("AP5")
async def test_approvals_of_provider_tools_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    agent, _ = agent_of(["ran it", "again"])
    hosted = Content.from_function_call("h1", "wipe", {"disk": "a"}, additional_properties={"server_label": "disks"})
    answer = Message("user", [Content.from_function_approval_response(False, "r1", hosted)])
    session = agent.create_session()
    with caplog.at_level("INFO", logger="gateway.agents.approvals"):
        await run(agent, False, answer, session=session)
        await run(agent, False, "and now?", session=session)
    told = [line for line in caplog.messages if " call=h1 " in line]
    assert told == [f"approval changed outcome='rejected' tool=wipe call=h1 request=r1 session={session.session_id}"]


@both_ways
@pytest.mark.requirement("AP4", "C7")
async def test_session_holds_free_calls_until_approved_ones_execute(stream: bool) -> None:
    files = Files()
    agent, client = agent_of([[call("look", id="c1"), call("remove", {"path": "/x"}, "c2")], "done"], files.tools)
    session = agent.create_session()
    asked = await run(agent, stream, session=session)
    assert [request.id for request in asked.user_input_requests] == ["c2"]
    assert files.done == []
    await run(agent, stream, answers_to(asked), session=session)
    assert sorted(files.done) == ["look", "remove /x"]
    assert sorted(c.result for m in client.requests[1][0] for c in m.contents if c.type == "function_result") == ["removed /x", "seen"]


@pytest.mark.requirement("AP4", "C7")
async def test_without_session_every_call_of_the_batch_is_requested() -> None:
    files = Files()
    agent, _ = agent_of([[call("look", id="c1"), call("remove", {"path": "/x"}, "c2")], "done"], files.tools)
    asked = await run(agent, False)
    assert [request.id for request in asked.user_input_requests] == ["c1", "c2"]
    answer = await run(agent, False, [Message("user", "go"), *asked.messages, answers_to(asked)])
    assert (sorted(files.done), answer.text) == (["look", "remove /x"], "done")
    # The caller's messages are unchanged.
    assert kinds_of(asked) == [("assistant", ["function_call", "function_call", "function_approval_request", "function_approval_request"])]


@pytest.mark.parametrize("change", ["id", "arguments", "twice"])
@pytest.mark.requirement("AP13")
async def test_answer_counts_once_and_only_for_a_request_of_its_session(change: str) -> None:
    files = Files()
    agent, client = agent_of([call("remove", {"path": "/x"}), "first", "second"], files.tools)
    session = agent.create_session()
    asked = await run(agent, False, session=session)
    [request] = asked.user_input_requests
    assert request.function_call is not None
    if change == "twice":
        await run(agent, False, answers_to(asked), session=session)
        forged = call("remove", {"path": "/x"}, "c9")
        answer = Content.from_function_approval_response(True, "c1", forged)
    elif change == "id":
        answer = Content.from_function_approval_response(True, "other", call("remove", {"path": "/x"}, "c9"))
    else:
        answer = Content.from_function_approval_response(True, "c1", call("remove", {"path": "/etc"}))
    await run(agent, False, Message("user", [answer]), session=session)
    assert files.done == (["remove /x"] if change == "twice" else [])
    assert UNKNOWN_REQUEST in [c.result for m in client.requests[-1][0] for c in m.contents if c.type == "function_result"]


@pytest.mark.requirement("AP2")
async def test_unanswered_call_gets_an_error_result_in_the_next_run() -> None:
    files = Files()
    agent, client = agent_of([call("remove", {"path": "/x"}), "something else then"], files.tools)
    session = agent.create_session()
    await run(agent, False, session=session)
    answer = await run(agent, False, "never mind, hello", session=session)
    assert (answer.text, files.done) == ("something else then", [])
    told = client.requests[1][0]
    assert [(m.role, [c.type for c in m.contents]) for m in told][1:3] == [("assistant", ["function_call"]), ("tool", ["function_result"])]
    assert told[2].contents[0].result == NEVER_ANSWERED


@pytest.mark.requirement("AP6")
async def test_model_that_asks_in_prose_has_answered() -> None:
    agent, _ = agent_of(["Shall I remove it?"], Files().tools)
    response = await run(agent, False)
    assert (response.user_input_requests, response.text) == ([], "Shall I remove it?")


@both_ways
@pytest.mark.requirement("TL9")
async def test_approval_request_precedes_error_for_unknown_tool(stream: bool) -> None:
    batch = [call("nope", id="c1"), call("remove", {"path": "/x"}, "c2")]
    agent, _ = agent_of([batch], Files().tools, loop={"terminate_on_unknown_calls": True})
    response = await run(agent, stream)
    assert [request.id for request in response.user_input_requests] == ["c1", "c2"]


@both_ways
@pytest.mark.requirement("TL11", "C10", "TY7")
async def test_batch_with_caller_tools_is_returned_without_execution(stream: bool) -> None:
    files = Files()
    declared = FunctionTool[..., Any](name="open_file", description="Opens a file.", input_model={"type": "object", "properties": {}})
    agent, client = agent_of([[call("open_file", id="c1"), call("look", id="c2")], "ok"], [declared, *files.tools])
    response = await run(agent, stream)
    assert [(c.name, c.id) for c in response.user_input_requests] == [("open_file", "c1"), ("look", "c2")]
    assert kinds_of(response) == [("assistant", ["function_call", "function_call"])]
    assert files.done == []
    results = Message("tool", [Content.from_function_result("c1", "opened"), Content.from_function_result("c2", "seen")])
    assert (await run(agent, stream, [Message("user", "go"), *response.messages, results])).text == "ok"
    assert len(client.requests) == 2


@both_ways
@pytest.mark.parametrize("visible", [True, False], ids=["beside tools", "alone"])
@pytest.mark.requirement("TL11", "C10")
async def test_additional_tools_run_and_are_not_shown_to_the_model(stream: bool, visible: bool) -> None:
    files = Files()
    hidden = FunctionTool(files.look, name="hidden")
    agent, client = agent_of([call("hidden"), "ok"], files.tools if visible else [], loop={"additional_tools": [hidden]})
    response = await run(agent, stream)
    assert (response.text, results_of(response), response.user_input_requests) == ("ok", ["seen"], [])
    for _, options in client.requests:
        assert "hidden" not in [offered.name for offered in options.get("tools") or ()]


@both_ways
@pytest.mark.requirement("TL11", "C10", "AP1")
async def test_additional_tools_need_approval_and_run_after_it(stream: bool) -> None:
    files = Files()
    hidden = FunctionTool(files.look, name="hidden", approval_mode="always_require")
    agent, _ = agent_of([call("hidden"), "ok"], [], loop={"additional_tools": [hidden]})
    session = agent.create_session()
    asked = await run(agent, stream, session=session)
    assert [request.type for request in asked.user_input_requests] == ["function_approval_request"]
    assert results_of(await run(agent, stream, answers_to(asked), session=session)) == ["seen"]


@both_ways
@pytest.mark.requirement("TL11", "C10")
async def test_declared_only_additional_tools_are_returned_to_the_caller(stream: bool) -> None:
    declared = FunctionTool[..., Any](name="hidden", description="Opens a file.", input_model={"type": "object", "properties": {}})
    agent, _ = agent_of([call("hidden")], Files().tools, loop={"additional_tools": [declared]})
    response = await run(agent, stream)
    assert [(c.type, c.name) for c in response.user_input_requests] == [("function_call", "hidden")]


@pytest.mark.requirement("TL11")
async def test_client_executes_additional_tools_and_rejects_provider_tools() -> None:
    files = Files()
    client = ScriptedChatClient([call("hidden"), "ok"])
    hidden = FunctionTool(files.look, name="hidden")
    answer = await client.get_response("go", options={"loop": {"additional_tools": [hidden]}})
    assert (answer.messages[-1].text, files.done) == ("ok", ["look"])
    with pytest.raises(ValueError, match="additional_tools must be functions and tools, not dict"):
        agent_of([], loop={"additional_tools": [{"type": "web_search"}]})


@both_ways
@pytest.mark.requirement("TL15")
async def test_tool_that_needs_a_person_ends_the_run_with_its_requests(stream: bool) -> None:
    @tool
    def sign_in() -> str:
        raise UserInputRequiredException([Content.from_oauth_consent_request("https://login.example/consent")])

    agent, client = agent_of([[call("sign_in", id="c1"), call("look", id="c2")], "never"], [sign_in, *Files().tools])
    response = await run(agent, stream)
    [request] = response.user_input_requests
    assert (request.type, request.call_id, request.consent_link) == ("oauth_consent_request", "c1", "https://login.example/consent")
    assert results_of(response) == ["seen"]
    assert len(client.requests) == 1


@pytest.mark.requirement("AP3")
async def test_middleware_can_read_the_approval_of_a_call() -> None:
    seen: list[Any] = []

    async def look(context: FunctionInvocationContext, call_next: Any) -> None:
        seen.append(context.metadata.get("approval_response"))
        await call_next()

    files = Files()
    agent, _ = agent_of([call("remove", {"path": "/x"}), "done"], files.tools, middleware=[look])
    session = agent.create_session()
    asked = await run(agent, False, session=session)
    await run(agent, False, answers_to(asked), session=session)
    assert [answer.approved for answer in seen] == [True]


@both_ways
@pytest.mark.requirement("AP3", "TL12")
async def test_answered_calls_get_results_in_the_order_of_the_calls(stream: bool) -> None:
    files = Files()
    agent, client = agent_of([[call("remove", {"path": "/x"}, "c1"), call("remove", {"path": "/y"}, "c2")], "Done."], files.tools)
    session = agent.create_session()
    asked = await run(agent, stream, session=session)
    first, second = asked.user_input_requests
    answers = Message("user", [second.to_function_approval_response(False), first.to_function_approval_response(True)])
    response = await run(agent, stream, answers, session=session)
    assert [content.call_id for content in response.messages[0].contents] == ["c1", "c2"]
    assert [c.call_id for m in client.requests[1][0] for c in m.contents if c.type == "function_result"] == ["c1", "c2"]
    assert files.done == ["remove /x"]


@both_ways
@pytest.mark.requirement("AP3")
async def test_rejection_without_its_request_leaves_call_and_result(stream: bool) -> None:
    files = Files()
    agent, client = agent_of([call("remove", {"path": "/x"}), "As you wish."], files.tools)
    (request,) = (await run(agent, stream)).user_input_requests
    await run(agent, stream, [Message("user", ["go"]), Message("user", [request.to_function_approval_response(False)])])
    shown = [(m.role, [(c.type, c.call_id) for c in m.contents]) for m in client.requests[1][0]]
    assert shown == [("user", [("text", None)]), ("assistant", [("function_call", "c1")]), ("tool", [("function_result", "c1")])]


@both_ways
@pytest.mark.requirement("AP3")
async def test_provider_that_keeps_conversation_gets_results_only(stream: bool) -> None:
    files = Files()
    agent, client = agent_of([[call("remove", {"path": "/x"}, "c1"), call("remove", {"path": "/y"}, "c2")], "Done."], files.tools)
    session = agent.get_session("kept-elsewhere")
    first, second = (await run(agent, stream, session=session)).user_input_requests
    answers = Message("user", [first.to_function_approval_response(True), second.to_function_approval_response(False)])
    await run(agent, stream, answers, session=session)
    assert [(m.role, [c.call_id for c in m.contents]) for m in client.requests[1][0]] == [("tool", ["c1", "c2"])]
