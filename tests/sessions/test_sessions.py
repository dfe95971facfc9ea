"""Sessions over several runs of an agent: what providers remember and how it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from gateway import (
    Agent,
    AgentModeProvider,
    AgentSession,
    ChatOptions,
    Content,
    ContextProvider,
    FileAccessProvider,
    FileHistoryProvider,
    HistoryProvider,
    InlineSkill,
    InMemoryAgentFileStore,
    InMemoryHistoryProvider,
    Message,
    MiddlewareException,
    ScriptedChatClient,
    SessionContext,
    SkillFrontmatter,
    SkillsProvider,
    SupportsAgentRun,
    TodoProvider,
    ToolApprovalMiddleware,
    agent_middleware,
    chat_middleware,
    register_state_type,
)
from gateway.sessions.session_context import ATTRIBUTION_KEY
from gateway.tools.base import Complete, ToolDefinition


class Noting(ContextProvider):
    """A provider that adds an instruction and records its calls in order."""

    def __init__(self, source_id: str, log: list[str]) -> None:
        super().__init__(source_id)
        self.log = log
        self.seen: list[list[str]] = []

    async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
        self.log.append(f"{self.source_id}>")
        self.seen.append([message.text for message in context.get_messages(include_input=True)])
        assert state is session.state[self.source_id]
        state["runs"] = state.get("runs", 0) + 1
        state["agent"] = agent.name
        context.extend_instructions(self.source_id, f"I am {self.source_id}.")

    async def after_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
        assert context.response is not None
        self.log.append(f"<{self.source_id} {context.response.text}")


class Adding(ContextProvider):
    """Adds a message."""

    async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
        context.extend_messages(self, [Message("user", [f"from {self.source_id}"])])


class MarkedTool:
    """A tool that can carry attribution."""

    definition = ToolDefinition("marked")

    def __init__(self) -> None:
        self.additional_properties: dict[str, Any] = {}

    async def call(self, arguments: dict[str, Any], ctx: Any) -> Complete:
        return Complete.text("called")


class Kept(HistoryProvider):
    """A custom history with two methods, as in agent-framework's documentation."""

    def __init__(self, source_id: str, **flags: Any) -> None:
        super().__init__(source_id, **flags)
        self.stored: list[Message] = []
        self.loads = 0

    async def get_messages(self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any) -> list[Message]:
        self.loads += 1
        return list(self.stored)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        assert messages and session_id
        self.stored += messages


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.requirement("SE16")
async def test_session_without_providers_remembers_the_conversation() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    session = agent.create_session()
    await agent.run("first", session=session)
    await agent.run("second", session=session)
    assert texts(client.requests[1][0]) == ["first", "one", "second"]
    assert texts(session.state["in_memory"]["messages"]) == ["first", "one", "second", "two"]


async def test_runs_without_a_session_share_no_state() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    await agent.run("first")
    await agent.run("second")
    assert texts(client.requests[1][0]) == ["second"]


@pytest.mark.requirement("SE1", "SE18")
async def test_session_goes_through_json_and_on_from_there() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    session = agent.create_session(session_id="s-1")
    await agent.run("first", session=session)
    stored = json.loads(json.dumps(session.to_dict()))
    assert set(stored) == {"type", "session_id", "service_session_id", "state"} and stored["type"] == "session"
    restored = AgentSession.from_dict(stored)
    await agent.run("second", session=restored)
    assert restored.session_id == "s-1"
    assert texts(client.requests[1][0]) == ["first", "one", "second"]
    assert AgentSession().session_id != AgentSession().session_id


class Basket(BaseModel):
    fruit: list[str]


@register_state_type
class Mood:
    """A class with its JSON form."""

    def __init__(self, word: str) -> None:
        self.word = word

    def to_dict(self) -> dict[str, Any]:
        return {"type": "mood", "word": self.word}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Mood:
        return cls(data["word"])


@pytest.mark.requirement("SE18")
def test_objects_in_the_state_keep_their_type() -> None:
    session = AgentSession(session_id="s")
    session.state["p"] = {"basket": Basket(fruit=["fig"]), "mood": [Mood("calm")], "plain": {"type": "message", "no": "role"}, "n": (1, 2)}
    restored = AgentSession.from_dict(json.loads(json.dumps(session.to_dict()))).state["p"]
    assert restored["basket"] == Basket(fruit=["fig"])
    assert restored["mood"][0].word == "calm"
    assert restored["plain"] == {"type": "message", "no": "role"} and restored["n"] == [1, 2]


@pytest.mark.requirement("SE3")
def test_agent_makes_sessions_and_takes_up_those_of_a_service() -> None:
    agent = Agent(ScriptedChatClient([]))
    assert isinstance(agent, SupportsAgentRun)
    assert agent.create_session(session_id="mine").session_id == "mine"
    found = agent.get_session("thread-9")
    assert found.service_session_id == "thread-9" and found.session_id != "thread-9"
    assert agent.get_session("thread-9", session_id="mine").session_id == "mine"


@pytest.mark.requirement("SE4", "SE5", "SE6")
async def test_providers_run_in_order_before_and_in_reverse_after() -> None:
    log: list[str] = []
    client = ScriptedChatClient(["hi", "hi"])
    agent = Agent(client, "Base.", name="helper", context_providers=[Noting("a", log), Noting("b", log)])
    session = agent.create_session()
    await agent.run("x", session=session)
    await agent.run("y", session=session)
    assert log[:4] == ["a>", "b>", "<b hi", "<a hi"]
    expected = {"runs": 2, "agent": "helper"}
    assert {key: session.state[key] for key in ("a", "b")} == {"a": expected, "b": expected}
    instructions = client.requests[0][1].get("instructions") or ""
    assert [instructions.index(part) for part in ("Base.", "I am a.", "I am b.")] == sorted(
        instructions.index(part) for part in ("Base.", "I am a.", "I am b.")
    )


@pytest.mark.requirement("SE2")
async def test_sessions_share_providers_but_not_state() -> None:
    log: list[str] = []
    agent = Agent(ScriptedChatClient(["hi"] * 3), context_providers=[InMemoryHistoryProvider(), Noting("a", log)])
    first, second = agent.create_session(), agent.create_session()
    await agent.run("x", session=first)
    await agent.run("y", session=second)
    await agent.run("z", session=first)
    assert (first.state["a"]["runs"], second.state["a"]["runs"]) == (2, 1)
    assert texts(second.state["in_memory"]["messages"]) == ["y", "hi"]


@pytest.mark.requirement("SE7")
async def test_providers_get_a_run_session_if_the_caller_passes_no_session() -> None:
    log: list[str] = []
    agent = Agent(ScriptedChatClient(["hi", "hi"]), context_providers=[Noting("a", log)])
    await agent.run("x")
    await agent.run("x")
    assert log == ["a>", "<a hi"] * 2


@pytest.mark.requirement("SE12", "SE14")
async def test_history_stores_what_its_flags_select_in_order() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["ask", "answer"]),
        ({"store_inputs": False}, ["answer"]),
        ({"store_outputs": False}, ["ask"]),
        ({"store_inputs": False, "store_outputs": False}, []),
        ({"store_context_messages": True}, ["from a", "from b", "ask", "answer"]),
        ({"store_context_messages": True, "store_context_from": {"b"}}, ["from b", "ask", "answer"]),
        ({"store_context_from": {"b"}}, ["ask", "answer"]),
    ]
    for flags, kept in cases:
        history = Kept("kept", **flags)
        agent = Agent(ScriptedChatClient(["answer"]), context_providers=[history, Adding("a"), Adding("b")])
        await agent.run("ask", session=agent.create_session())
        assert texts(history.stored) == kept, flags


@pytest.mark.requirement("SE13")
async def test_history_that_does_not_load_still_stores() -> None:
    memory, audit = Kept("memory"), Kept("audit", load_messages=False)
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client, context_providers=[memory, audit])
    session = agent.create_session()
    await agent.run("first", session=session)
    await agent.run("second", session=session)
    assert (memory.loads, audit.loads) == (2, 0)
    assert texts(client.requests[1][0]) == ["first", "one", "second"]
    assert texts(audit.stored) == ["first", "one", "second", "two"]


@pytest.mark.requirement("SE8")
def test_built_in_providers_have_replaceable_source_ids(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        ContextProvider()  # pyright: ignore[reportCallIssue]  # what a caller may do wrong
    assert InMemoryHistoryProvider.DEFAULT_SOURCE_ID == "in_memory"
    greet = InlineSkill(frontmatter=SkillFrontmatter(name="greet", description="Greets."), instructions="Say hello.")
    made: list[tuple[str, Callable[..., Any]]] = [
        ("in_memory", InMemoryHistoryProvider),
        ("file_history", partial(FileHistoryProvider, tmp_path)),
        ("file_access", partial(FileAccessProvider, store=InMemoryAgentFileStore())),
        ("agent_skills", partial(SkillsProvider, [greet])),
        ("tool_approval", ToolApprovalMiddleware),
        ("todo", TodoProvider),
        ("agent_mode", AgentModeProvider),
    ]
    assert [make().source_id for _, make in made] == [source_id for source_id, _ in made]
    assert {make(source_id="mine").source_id for _, make in made} == {"mine"}


@pytest.mark.requirement("SE9")
async def test_each_run_has_its_own_context_that_ends_with_the_response() -> None:
    seen: list[SessionContext] = []

    class First(ContextProvider):
        async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            seen.append(context)
            assert context.response is None and context.session_id == session.session_id
            context.metadata["noted"] = texts(context.input_messages)
            context.extend_instructions(self.source_id, "Be brief.")

    class Second(ContextProvider):
        async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            assert (context.metadata["noted"], context.instructions) == (texts(context.input_messages), ["Be brief."])
            assert context.options.get("temperature") == 0.5

    agent = Agent(ScriptedChatClient(["one", "two"]), context_providers=[First("first"), Second("second")])
    session = agent.create_session()
    for text in ("a", "b"):
        await agent.run(text, session=session, options={"temperature": 0.5})
    assert [texts(context.input_messages) for context in seen] == [["a"], ["b"]]
    assert [context.response.text for context in seen if context.response] == ["one", "two"]


@pytest.mark.requirement("SE9", "SE10", "SE11")
def test_additions_to_a_run_are_kept_by_source_and_can_be_filtered() -> None:
    given = Message("user", ["hello"])
    context = SessionContext(session_id="s", service_session_id="t", input_messages=[given], options={"temperature": 1})
    added = Message("user", ["b"])
    context.extend_messages("one", [Message("user", ["a"])])
    context.extend_messages(Adding("two"), [added])
    context.extend_messages("one", [Message("user", ["c"])])
    assert list(context.context_messages) == ["one", "two"]
    assert texts(context.get_messages()) == ["a", "c", "b"]
    assert texts(context.get_messages(sources={"one"})) == ["a", "c"]
    assert texts(context.get_messages(exclude_sources={"one"}, include_input=True)) == ["b", "hello"]
    [marked] = context.context_messages["two"]
    assert marked.additional_properties[ATTRIBUTION_KEY] == {"source_id": "two", "source_type": "Adding"}
    assert added.additional_properties == {}
    tool = MarkedTool()
    context.extend_tools("one", [tool])
    assert context.tools == [tool] and tool.additional_properties == {"context_source": "one"}
    context.extend_instructions("one", ["x", "y"])
    assert context.instructions == ["x", "y"]
    assert (context.session_id, context.service_session_id, context.response) == ("s", "t", None)
    with pytest.raises(AttributeError):
        context.response = None  # pyright: ignore[reportAttributeAccessIssue]  # read-only
    with pytest.raises(TypeError):
        context.options["temperature"] = 2  # pyright: ignore[reportIndexIssue]  # read-only


def test_run_middleware_keeps_the_order_of_the_providers() -> None:
    @chat_middleware
    async def one(context: Any, call_next: Any) -> None:
        await call_next()

    @agent_middleware
    async def around(context: Any, call_next: Any) -> None:
        await call_next()

    context = SessionContext(input_messages=[], middleware={"a": one})
    context.extend_middleware("b", [one, one])
    assert list(context.middleware) == ["a", "b"] and context.get_middleware() == [one] * 3
    for wrong in ("text", 3):
        with pytest.raises(TypeError, match="middleware"):
            context.extend_middleware("a", wrong)
    with pytest.raises(MiddlewareException, match="chat or function"):
        context.extend_middleware("a", around)


async def test_provider_middleware_wraps_the_model_calls_of_its_run_only() -> None:
    seen: list[int] = []

    @chat_middleware
    async def count(context: Any, call_next: Any) -> None:
        seen.append(len(context.messages))
        await call_next()

    class Watching(ContextProvider):
        async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            if not state:
                context.extend_middleware(self.source_id, count)
            state["ran"] = True

    agent = Agent(ScriptedChatClient(["one", "two"]), context_providers=[Watching("w")])
    session = agent.create_session()
    await agent.run("first", session=session)
    await agent.run("second", session=session)
    assert seen == [1]


@pytest.mark.requirement("SE16")
async def test_history_is_added_only_if_nothing_else_stores() -> None:
    async def added(options: dict[str, Any] | None = None, session: AgentSession | None = None, **settings: Any) -> int:
        agent = Agent(ScriptedChatClient(["hi"]), **settings)
        await agent.run("x", session=session, options=cast("ChatOptions | None", options))
        return sum(isinstance(provider, InMemoryHistoryProvider) for provider in agent.context_providers)

    assert await added(session=AgentSession()) == 1
    assert await added() == 0
    assert await added(session=AgentSession(), context_providers=[Adding("a")]) == 0
    assert await added(session=AgentSession(service_session_id="t")) == 0
    assert await added({"conversation_id": "c"}, AgentSession()) == 0
    assert await added({"store": True}, AgentSession()) == 0
    assert await added({"store": False}, AgentSession(), default_options={"store": True}) == 1
    assert await added(None, AgentSession(), default_options={"conversation_id": "c"}) == 0


@pytest.mark.requirement("SE15")
async def test_agent_warns_once_where_not_exactly_one_history_loads() -> None:
    both, neither = [Kept("a"), Kept("b")], [Kept("a", load_messages=False)]
    for histories, said in ((both, r"2 history providers .*\(a, b\)"), (neither, "No history provider")):
        agent = Agent(ScriptedChatClient(["x", "y"]), context_providers=histories)
        with pytest.warns(UserWarning, match=said):
            await agent.run("x", session=agent.create_session())
        await agent.run("y", session=agent.create_session())  # warnings are errors here


@pytest.mark.requirement("SE11")
async def test_marks_of_a_run_are_not_stored() -> None:
    history = Kept("kept", store_context_messages=True)
    client = ScriptedChatClient(["answer"])
    agent = Agent(client, context_providers=[history, Adding("a")])
    await agent.run("ask", session=agent.create_session())
    assert texts(history.stored)[0] == "from a"
    assert all(ATTRIBUTION_KEY not in message.additional_properties for message in history.stored)
    assert ATTRIBUTION_KEY in client.requests[0][0][0].additional_properties


@pytest.mark.requirement("SE21")
async def test_provider_sees_the_context_of_earlier_providers() -> None:
    log: list[str] = []
    early, late = Noting("early", log), Noting("late", log)
    agent = Agent(ScriptedChatClient(["one", "two"]), context_providers=[early, InMemoryHistoryProvider(), late])
    session = agent.create_session()
    await agent.run("first", session=session)
    await agent.run("second", session=session)
    assert early.seen[1] == ["second"]
    assert late.seen[1] == ["first", "one", "second"]


@pytest.mark.requirement("SE19")
async def test_provider_sees_the_whole_run_so_it_has_to_be_trusted() -> None:
    class Reading(ContextProvider):
        async def after_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            state["read"] = texts(context.get_messages(include_input=True, include_response=True))

    agent = Agent(ScriptedChatClient(["answer"]), context_providers=[Reading("r"), Adding("secret")])
    session = agent.create_session()
    await agent.run("ask", session=session)
    assert session.state["r"]["read"] == ["from secret", "ask", "answer"]


async def test_provider_service_keeps_its_own_history() -> None:
    agent = Agent(ScriptedChatClient(["hi"]))
    session = agent.get_session("thread-9")
    await agent.run("x", session=session)
    assert session.state == {}
    assert AgentSession.from_dict(session.to_dict()).service_session_id == "thread-9"


async def test_history_of_ones_own_needs_two_methods() -> None:
    with pytest.raises(NotImplementedError):
        await HistoryProvider("mine").get_messages("s")


@pytest.mark.requirement("SE12")
@pytest.mark.parametrize("stream", [False, True])
async def test_history_stores_after_each_model_call_if_configured(stream: bool) -> None:
    history, seen = Kept("kept"), cast("list[list[str]]", [])

    def look() -> str:
        seen.append([message.role for message in history.stored])
        return "found"

    client = ScriptedChatClient(
        [
            [Content.from_function_call("c", "look", arguments={})],
            "one",
            [Content.from_function_call("c", "look", arguments={})],
            RuntimeError("gone"),
        ]
    )
    agent = Agent(client, tools=[look], context_providers=[history], require_per_service_call_history_persistence=True)
    session = agent.create_session()

    async def run(text: str) -> None:
        await (agent.run(text, session=session, stream=True).get_final_response() if stream else agent.run(text, session=session))

    await run("first")
    first = ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in history.stored] == first and seen == [["user", "assistant"]]
    with pytest.raises(RuntimeError, match="gone"):
        await run("second")
    assert [message.role for message in history.stored] == [*first, "user", "assistant", "tool"], "what a tool did is not lost"
    assert [message.role for message in client.requests[2][0]] == [*first, "user"]
