"""The twelve hooks of a run: when each is called, in which order, and what it may change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace
from typing import Any

import anyio
import pytest

from gateway import (
    Agent,
    AgentLoopMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    LifecycleHooks,
    Message,
    ScriptedChatClient,
    lifecycle_middleware,
)
from gateway import lifecycle as contexts
from gateway.agents.lifecycle.sealed import MAY_ASSIGN
from gateway.errors import InputExpired, InputUnavailable, MiddlewareFailure, ModelError
from gateway.lifecycle import HookEvent, HookEvents
from tests.agents.hooked_agents import add, agent_of, call, fail, run
from tests.architecture.documents import code_of, read, rows, section

pytestmark = pytest.mark.filterwarnings("ignore::gateway.staging.ExperimentalWarning")


class Notes(LifecycleHooks):
    """Hooks that each record their call under a name."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def note(self, what: str) -> None:
        self._notes.append(f"{self._name} {what}")

    async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
        self.note(f"turn {context.user_message}")

    async def after_message_turn(self, context: contexts.MessageTurnContext) -> None:
        self.note(f"turned {context.response.text if context.response else repr(context.error)}")

    async def before_iteration(self, context: contexts.IterationContext) -> None:
        self.note(f"iteration {context.iteration}")

    async def wrap_model_call(self, request: contexts.ModelRequest, handler: contexts.ModelHandler) -> ChatResponse:
        self.note("model>")
        response = await handler(request)
        self.note("<model")
        return response

    async def before_tool_execution(self, context: contexts.ToolExecutionContext) -> None:
        self.note(f"tools {len(context.calls)}")

    async def before_parallel_batch(self, context: contexts.ParallelBatchContext) -> None:
        self.note(f"batch {len(context.calls)}")

    async def before_function(self, context: contexts.FunctionContext) -> None:
        self.note(f"function {context.function_name}")

    async def wrap_function_call(self, request: contexts.FunctionRequest, handler: contexts.FunctionHandler) -> Any:
        self.note("call>")
        result = await handler(request)
        self.note("<call")
        return result

    async def after_function(self, context: contexts.FunctionContext) -> None:
        self.note(f"functioned {context.error or context.result}")

    async def after_iteration(self, context: contexts.IterationContext) -> None:
        self.note(f"iterated {context.iteration} {[str(result.result or '') for result in context.tool_results]}")

    async def on_error(self, context: contexts.ErrorContext) -> None:
        self.note(f"error {context.source} {context.error}")


@pytest.mark.requirement("HK1", "HK2", "HK3", "HK4", "HK5", "HK7", "HK9", "HK10", "HK11", "HK12")
@pytest.mark.parametrize("stream", [False, True])
async def test_before_hooks_run_in_order_and_after_hooks_in_reverse(stream: bool) -> None:
    notes: list[str] = []
    client = ScriptedChatClient([call("add", a=1, b=2), "three"])
    response = await run(agent_of(client, Notes("A", notes), Notes("B", notes)), stream=stream)
    assert response.text == "three"
    assert notes == [
        *("A turn go", "B turn go", "A iteration 0", "B iteration 0"),
        *("B model>", "A model>", "A <model", "B <model", "A tools 1", "B tools 1"),
        *("A function add", "B function add", "B call>", "A call>", "A <call", "B <call", "B functioned 3", "A functioned 3"),
        *("B iterated 0 ['3']", "A iterated 0 ['3']", "A iteration 1", "B iteration 1"),
        *("B model>", "A model>", "A <model", "B <model", "B iterated 1 []", "A iterated 1 []", "B turned three", "A turned three"),
    ]


@pytest.mark.requirement("HK2", "HK3", "HK4")
async def test_hooks_change_message_history_call_and_turn_messages() -> None:
    class Changes(LifecycleHooks):
        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            context.user_message = context.user_message.upper()
            context.history.pop(0)
            assert context.options["temperature"] == 0.5

        async def before_iteration(self, context: contexts.IterationContext) -> None:
            context.messages.insert(0, Message("system", ["be kind"]))
            context.options["temperature"] = 0.1

        async def after_message_turn(self, context: contexts.MessageTurnContext) -> None:
            context.turn_history.append(Message("assistant", ["(checked)"]))

    client = ScriptedChatClient(["hello"])
    given = [Message("user", ["secret"]), Message("assistant", ["hi"]), Message("user", ["go"])]
    response = await agent_of(client, Changes()).run(given, options={"temperature": 0.5})
    messages, options = client.requests[0]
    assert [message.text for message in messages] == ["be kind", "hi", "GO"]
    assert options.get("temperature") == 0.1
    assert [message.text for message in response.messages] == ["hello", "(checked)"]


@pytest.mark.requirement("HK2", "HK3", "HK16")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by_call", [False, True], ids=["stored by run", "stored by call"])
async def test_hooks_read_and_change_the_session_history(stream: bool, by_call: bool) -> None:
    seen: list[list[str]] = []

    class Changes(LifecycleHooks):
        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            seen.append([message.text for message in context.history])
            if context.user_message == "second":
                del context.history[0]
                context.history.insert(0, Message("system", ["a note"]))
                context.history.append(Message("user", ["by the way"]))

    client = ScriptedChatClient(["one", call("add", a=1, b=2), "two", "three"])
    agent = Agent(client, tools=[add], middleware=lifecycle_middleware(Changes()), require_per_service_call_history_persistence=by_call)
    session = agent.create_session()
    for text in ("first", "second", "third"):
        work: Any = agent.run(text, session=session, stream=stream)
        await (work.get_final_response() if stream else work)
    asked = [[message.text for message in messages if message.text] for messages, _ in client.requests]
    assert asked[1] == ["a note", "one", "by the way", "second"]
    assert asked[2] == asked[1], "the change holds for the turn"
    assert seen[:2] == [[], ["first", "one"]]
    assert [text for text in seen[2] if text] == ["first", "one", "second", "two"], "what is stored stays as it was"


@pytest.mark.requirement("HK2", "HK16", "SE12")
async def test_history_is_loaded_once_with_and_without_history_hooks() -> None:
    loads: list[str | None] = []

    class Counting(InMemoryHistoryProvider):
        async def get_messages(self, session_id: str | None, **kwargs: Any) -> list[Message]:
            loads.append(session_id)
            return await super().get_messages(session_id, **kwargs)

    for hooks in (Notes("A", []), LifecycleHooks()):
        client = ScriptedChatClient(["one", "two"])
        agent = Agent(client, context_providers=[Counting()], middleware=lifecycle_middleware(hooks))
        session = agent.create_session(session_id="s1")
        await agent.run("a", session=session)
        await agent.run("b", session=session)
        assert (loads, [message.text for message in client.requests[1][0]]) == (["s1", "s1"], ["a", "one", "b"])
        loads.clear()


@pytest.mark.requirement("HK2", "LP1")
@pytest.mark.parametrize("stream", [False, True])
async def test_loop_inside_hooks_passes_earlier_rounds_on(stream: bool) -> None:
    def once_more(iteration: int) -> bool:
        return iteration < 2

    client = ScriptedChatClient(["one", "two"])
    loop = AgentLoopMiddleware(once_more, next_message=lambda: "on", inject_progress=False)
    agent = Agent(client, middleware=[*lifecycle_middleware(Notes("A", [])), loop])
    work: Any = agent.run("go", session=agent.create_session(), stream=stream)
    await (work.get_final_response() if stream else work)
    assert [message.text for message in client.requests[1][0]] == ["go", "one", "on"]


@pytest.mark.requirement("HK3", "HK16")
@pytest.mark.parametrize("stream", [False, True])
async def test_final_response_has_the_messages_that_hooks_set(stream: bool) -> None:
    class Cuts(LifecycleHooks):
        async def after_message_turn(self, context: contexts.MessageTurnContext) -> None:
            assert [message.text for message in context.turn_history] == ["hello"]
            context.turn_history[:] = [Message("assistant", ["(cut)"])]

    response = await run(agent_of(ScriptedChatClient(["hello"]), Cuts()), stream=stream)
    assert [message.text for message in response.messages] == ["(cut)"]


@pytest.mark.requirement("HK2", "HK3", "HK4", "HK5", "HK7", "HK8", "HK9", "HK10", "HK11", "HK12", "HK13", "HK16")
async def test_every_hook_has_agent_conversation_and_run_options() -> None:
    seen: dict[str, tuple[Any, ...]] = {}

    def noted(name: str) -> Any:
        async def hook(self: LifecycleHooks, context: Any, handler: Any = None) -> Any:
            seen[name] = (context.agent_name, context.conversation_id, dict(context.run_options))
            with pytest.raises(MiddlewareFailure, match="`run_options` cannot be changed here"):
                context.run_options["temperature"] = 1
            return None if handler is None else await handler(context)

        return hook

    names = [name for name in vars(LifecycleHooks) if not name.startswith("_") and name != "wrap_model_call_streaming"]
    everything = type("Everything", (LifecycleHooks,), {name: noted(name) for name in names})
    client = ScriptedChatClient([[call("add", "1", a=1, b=2), call("fail", "2")], "done", "bye"])
    agent = Agent(client, name="helper", tools=[add, fail], middleware=lifecycle_middleware(everything()))
    session = agent.create_session(session_id="s1")
    await agent.run("go", session=session, options={"temperature": 0.5})
    assert seen == dict.fromkeys(names, ("helper", "s1", {"temperature": 0.5}))
    await agent.run("go")
    assert seen["before_message_turn"] == ("helper", None, {})


@pytest.mark.requirement("HK2", "HK9", "HK10")
async def test_hooks_see_the_users_message_and_the_function_itself() -> None:
    picture = Content.from_data(b"x", "image/png")
    seen: list[Any] = []

    class Looks(LifecycleHooks):
        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            seen.append((context.user_message, context.message and context.message.contents))

        async def before_function(self, context: contexts.FunctionContext) -> None:
            seen.append((context.function, context.arguments))

        async def wrap_function_call(self, request: contexts.FunctionRequest, handler: contexts.FunctionHandler) -> Any:
            seen.append((request.function, request.toolkit, dict(request.arguments)))
            return await handler(request)

    client = ScriptedChatClient([call("add", a="1", b=2), "done"])
    await agent_of(client, Looks()).run(Message("user", ["look", picture]))
    arguments = {"a": 1, "b": 2}
    assert seen == [("look", [Content.from_text("look"), picture]), (add, arguments), (add, None, arguments)]


@pytest.mark.requirement("HK4")
@pytest.mark.parametrize("stream", [False, True])
async def test_model_call_may_be_skipped_with_an_answer_in_its_place(stream: bool) -> None:
    class Canned(LifecycleHooks):
        async def before_iteration(self, context: contexts.IterationContext) -> None:
            if context.iteration == 1:
                context.skip_llm_call = True
                context.override_response = ChatResponse(messages=[Message("assistant", ["canned"])])

    client = ScriptedChatClient([call("add", a=1, b=2), "never"])
    assert (await run(agent_of(client, Canned()), stream=stream)).text == "canned"
    assert len(client.requests) == 1


@pytest.mark.requirement("HK5")
@pytest.mark.parametrize("stream", [False, True])
async def test_wrap_hook_retries_with_a_changed_request(stream: bool) -> None:
    class Fallback(LifecycleHooks):
        async def wrap_model_call(self, request: contexts.ModelRequest, handler: contexts.ModelHandler) -> ChatResponse:
            try:
                return await handler(request)
            except ModelError:
                changed = request.override(model="other", messages=[*request.messages, Message("user", ["again"])])
                assert request.model != "other" and len(request.messages) == 1
                return await handler(changed)

    client = ScriptedChatClient([ModelError("down"), "up"])
    assert (await run(agent_of(client, Fallback()), stream=stream)).text == "up"
    messages, options = client.requests[1]
    assert ([message.text for message in messages], options.get("model")) == (["go", "again"], "other")


@pytest.mark.requirement("HK6")
async def test_streaming_hook_receives_each_part_or_falls_back() -> None:
    class Shouting(LifecycleHooks):
        def wrap_model_call_streaming(
            self, request: contexts.ModelRequest, handler: contexts.ModelStreamHandler
        ) -> AsyncIterator[ChatResponseUpdate] | None:
            async def parts() -> AsyncIterator[ChatResponseUpdate]:
                async for update in handler(request):
                    yield replace(update, contents=[Content.from_text(update.text.upper())])

            return parts()

    class Simple(LifecycleHooks):
        async def wrap_model_call(self, request: contexts.ModelRequest, handler: contexts.ModelHandler) -> ChatResponse:
            response = await handler(request)
            response.messages[0].contents.append(Content.from_text("!"))
            return response

    parts = [u.text async for u in agent_of(ScriptedChatClient([["a", "b"]]), Shouting()).run("go", stream=True) if u.text]
    assert parts == ["A", "B"]
    parts = [u.text async for u in agent_of(ScriptedChatClient([["a", "b"]]), Simple()).run("go", stream=True) if u.text]
    assert parts == ["ab!"]
    assert (await agent_of(ScriptedChatClient([["a", "b"]]), Shouting(), Simple()).run("go")).text == "ab!"


@pytest.mark.requirement("HK3", "HK11", "HK12", "HK13")
@pytest.mark.parametrize("stream", [False, True])
async def test_error_hooks_run_once_in_reverse_and_after_hooks_still_run(stream: bool) -> None:
    notes: list[str] = []
    client = ScriptedChatClient([call("fail"), ModelError("down")])
    with pytest.raises(ModelError):
        await run(agent_of(client, Notes("A", notes), Notes("B", notes)), stream=stream)
    told = [note for note in notes if any(word in note for word in ("error", "functioned", "iterated", "turned"))]
    assert told == [
        *("B error tool_call broken", "A error tool_call broken", "B functioned broken", "A functioned broken"),
        *("B iterated 0 ['']", "A iterated 0 ['']", "B error model_call down", "A error model_call down"),
        *("B iterated 1 []", "A iterated 1 []", "B turned ModelError('down')", "A turned ModelError('down')"),
    ]


@pytest.mark.requirement("HK13")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("source", ["model_call", "tool_call", "iteration", "message_turn"])
async def test_error_hook_can_end_the_run_with_a_reason(source: str, stream: bool) -> None:
    class Ends(LifecycleHooks):
        async def before_iteration(self, context: contexts.IterationContext) -> None:
            if source == "iteration":
                raise ValueError("hook")

        async def before_message_turn(self, context: contexts.MessageTurnContext) -> None:
            if source == "message_turn":
                raise ValueError("hook")

        async def on_error(self, context: contexts.ErrorContext) -> None:
            assert context.source == source
            context.is_terminated, context.termination_reason = True, f"stopped at {context.source}"

    replies = {"model_call": [ModelError("down")], "tool_call": [call("fail"), "never"]}.get(source, ["never"])
    client = ScriptedChatClient(replies)
    response = await run(agent_of(client, Ends()), stream=stream)
    texts = [str(c.result) if c.type == "function_result" else c.text for m in response.messages for c in m.contents]
    assert texts[-1] == f"stopped at {source}"
    assert len(client.requests) <= 1


@dataclass(frozen=True)
class Count:
    calls: int = 0


@pytest.mark.requirement("HK14")
async def test_state_updates_are_typed_atomic_and_seen_by_the_next_hook() -> None:
    seen: list[int] = []

    class Counts(LifecycleHooks):
        async def before_function(self, context: contexts.FunctionContext) -> None:
            before = context.state.value
            context.state.update(lambda state: state.having(Count(state.get(Count).calls + 1)).terminated("counted"))
            with pytest.raises(ZeroDivisionError):
                context.state.update(lambda state: state.having(Count(1 // 0)))
            assert (before.is_terminated, before.get(Count)) in ((False, Count(0)), (True, Count(2)))

    class Reads(LifecycleHooks):
        async def before_function(self, context: contexts.FunctionContext) -> None:
            seen.append(context.state.get(Count).calls)
            assert context.state.value.termination_reason == "counted"
            context.state.set(Count(context.state.get(Count).calls + 1))

    two = [call("add", "1", a=1, b=2), call("add", "2", a=1, b=2)]
    client = ScriptedChatClient([two, call("add", a=1, b=2), "never"])
    agent = agent_of(client, Counts(), Reads())
    assert (await agent.run("go")).text == "counted", "a terminated state ends the run before its next model call"
    assert seen == [1, 3]
    await agent.run("go")
    assert (seen, len(client.requests)) == ([1, 3, 1], 2)  # each turn has its own


@pytest.mark.requirement("HK15")
async def test_events_are_sent_and_requests_wait_for_their_response() -> None:
    told: list[HookEvent] = []

    async def listen(event: HookEvent) -> None:
        told.append(event)
        if event.request_id is not None:
            assert not events.respond("another", True)
            assert events.respond(event.request_id, event.data["a"] == 1)
            assert not events.respond(event.request_id, True)

    events = HookEvents(listen)

    class Permission(LifecycleHooks):
        async def before_function(self, context: contexts.FunctionContext) -> None:
            await context.events.emit(HookEvent("asking", {"name": context.function_name}))
            if not await context.events.request("permission", context.arguments):
                context.block_execution, context.override_result = True, "denied"

    client = ScriptedChatClient([[call("add", "1", a=1, b=2), call("add", "2", a=2, b=2)], "done"])
    await agent_of(client, Permission(), events=events).run("go")
    assert [str(c.result) for c in client.requests[-1][0][-1].contents] == ["3", "denied"]
    assert sorted(event.name for event in told) == ["asking", "asking", "permission", "permission"]
    with pytest.raises(InputUnavailable):
        await HookEvents().request("permission")
    with anyio.fail_after(20), pytest.raises(InputExpired):
        await HookEvents(lambda event: None).request("permission", timeout_seconds=0.01)


@pytest.mark.requirement("HK16")
def test_documented_properties_match_the_contexts() -> None:
    named = {cells[0].strip("`"): set(code_of(cells[2])) for cells in rows(section(read("docs/middleware.md"), "### Properties"))}
    kinds = [
        contexts.MessageTurnContext,
        contexts.IterationContext,
        contexts.ToolExecutionContext,
        contexts.ParallelBatchContext,
        contexts.FunctionContext,
        contexts.ErrorContext,
        contexts.ModelRequest,
        contexts.FunctionRequest,
    ]
    shared = {"state", "events", "facts", "agent_name", "conversation_id", "run_options"}
    actual = {kind.__name__: {field.name for field in fields(kind)} - shared for kind in kinds}
    assert all(hasattr(kind, name) for kind in kinds for name in shared - {"state", "events", "facts"})
    assert {name: properties - shared for name, properties in named.items() if name in actual} == actual
    documented = set(code_of(" ".join(cells[1] for cells in rows(section(read("docs/middleware.md"), "### Properties")))))
    assert documented == {name for name in vars(LifecycleHooks) if not name.startswith("_")}
    for cells in rows(section(read("docs/middleware.md"), "### Properties")):
        assignable = {name for hook in code_of(cells[1]) for name in MAY_ASSIGN.get(hook, ())}
        assert assignable == set(code_of(cells[3])) - {"override"}


@pytest.mark.requirement("HK1")
async def test_concurrent_and_nested_runs_have_their_own_turns() -> None:
    notes: list[str] = []
    inner = Agent(ScriptedChatClient(["inner"] * 4), name="inner", middleware=lifecycle_middleware(Notes("I", notes)))
    client = ScriptedChatClient([call("inner", task="x"), "outer"])
    outer = Agent(client, tools=[inner.as_tool()], middleware=lifecycle_middleware(Notes("O", notes)))
    await outer.run("go")
    order = [note for note in notes if "turn" in note]
    assert order == ["O turn go", "I turn x", "I turned inner", "O turned outer"]
