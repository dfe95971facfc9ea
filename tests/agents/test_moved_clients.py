"""Chat clients written for agent-framework, with only the import changed: agents use the facts that such a client returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import pytest

from gateway import (
    Agent,
    AgentMiddlewareLayer,
    BaseChatClient,
    ChatContext,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    chat_middleware,
    function_middleware,
)
from tests.agents.building import both_ways, call, run


class KeepingClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A client of a provider that stores the conversation, and whose response has `conversation_id` only at the end of a stream.

    `where` is the place that sets the id: the stream's finalizer or a result hook.
    """

    def __init__(self, replies: Sequence[str | Content], where: str = "finalizer", **settings: Any) -> None:
        super().__init__(**settings)
        self.replies = list(replies)
        self.where = where
        self.asked: list[tuple[int, Any]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        self.asked.append((len(messages), options.get("conversation_id")))
        reply = self.replies.pop(0)
        contents = [reply if isinstance(reply, Content) else Content.from_text(reply)]

        async def whole() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", contents)], conversation_id="conv-1")

        async def parts() -> AsyncIterator[ChatResponseUpdate]:
            yield ChatResponseUpdate(contents=contents, role="assistant")

        def keep(response: ChatResponse) -> ChatResponse:
            response.conversation_id = "conv-1"
            return response

        if not stream:
            return whole()
        match self.where:
            case "finalizer":
                return ResponseStream(parts(), finalizer=lambda updates: keep(ChatResponse.from_updates(updates)))
            case "hook":
                return ResponseStream(parts(), finalizer=ChatResponse.from_updates).with_result_hook(keep)
            case _:
                return ResponseStream(parts(), finalizer=lambda updates: keep(ChatResponse(messages=[])))


@chat_middleware
async def passes(context: ChatContext, call_next: Any) -> None:
    await call_next()


@both_ways
@pytest.mark.parametrize("middleware", [[], [passes]], ids=["bare", "with middleware"])
@pytest.mark.parametrize("where", ["finalizer", "hook", "a finalizer without messages"])
@pytest.mark.requirement("CL3", "SE1")
async def test_session_takes_conversation_id_from_the_end_of_a_stream(
    where: str, middleware: list[Any], stream: bool
) -> None:
    def work() -> str:
        return "done"

    client = KeepingClient([call("work"), "first", "second"], where)
    agent = Agent(client=client, tools=[work], middleware=middleware)
    session = agent.create_session()
    response = await run(agent, stream, session=session)
    assert (response.text, session.service_session_id) == ("first", "conv-1")
    await run(agent, stream, "and now?", session=session)
    assert client.asked == [(1, None), (1, "conv-1"), (1, "conv-1")], "the provider is only told what is new"


@both_ways
@pytest.mark.requirement("CL2")
async def test_session_passed_to_a_client_reaches_its_middleware_only(stream: bool) -> None:
    given: list[Any] = []

    @chat_middleware
    async def looks(context: ChatContext, call_next: Any) -> None:
        given.append((context.session, dict(context.kwargs)))
        await call_next()

    class Strict(KeepingClient):
        def _inner_get_response(  # pyright: ignore[reportIncompatibleMethodOverride]  # takes this keyword and no other
            self, *, messages: Any, stream: bool, options: Any, user: str = ""
        ) -> Any:
            return super()._inner_get_response(messages=messages, stream=stream, options=options)

    client = Strict(["hi"], middleware=[looks])
    session = Agent(client=client).create_session()
    answer: Any = client.get_response("hello", stream=stream, client_kwargs={"session": session, "user": "ann"})
    assert (await (answer.get_final_response() if stream else answer)).text == "hi"
    assert given == [(session, {"user": "ann"})]


class Foreign:
    """A client class that has `get_response` but is not a `BaseChatClient`."""

    def __init__(self, replies: Sequence[str | Content], **settings: Any) -> None:
        assert settings == {"region": "eu"}
        self.replies = list(replies)
        self.asked: list[tuple[list[str], Mapping[str, Any]]] = []

    def get_response(self, messages: Sequence[Message], *, stream: bool = False, options: Any = None, **kwargs: Any) -> Any:
        async def parts() -> AsyncIterator[ChatResponseUpdate]:
            self.asked.append(([message.text for message in messages], dict(options or {})))
            yield ChatResponseUpdate(contents=[self.replies.pop(0)], role="assistant")

        answer = ResponseStream[ChatResponseUpdate, ChatResponse](parts(), ChatResponse.from_updates)
        return answer if stream else answer.get_final_response()


class Layered(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], Foreign):
    """The layers of agent-framework over the class `Foreign`."""


@both_ways
@pytest.mark.requirement("MW1", "MW6", "MW18", "CL4", "TL3")
async def test_layers_work_over_other_client_classes(stream: bool) -> None:
    log: list[str] = []

    @chat_middleware
    async def around_model(context: ChatContext, call_next: Any) -> None:
        log.append("model")
        await call_next()

    @function_middleware
    async def around_tool(context: FunctionInvocationContext, call_next: Any) -> None:
        log.append("tool")
        await call_next()

    def work() -> str:
        return "done"

    replies = [call("work"), call("work", id="c2"), "enough"]
    middleware = [around_tool, around_model]
    client = Layered(replies, middleware=middleware, function_invocation_configuration={"max_iterations": 2}, region="eu")
    asked: Any = client.get_response([Message("user", ["go"])], stream=stream, options={"tools": [work]})
    response: ChatResponse = await (asked.get_final_response() if stream else asked)
    assert response.messages[-1].text == "enough"
    assert log == ["model", "tool", "model", "tool", "model"]
    assert client.asked[-1][1]["tool_choice"] == "none"


@pytest.mark.requirement("MW5", "MW18")
def test_layers_alone_keep_arguments_and_refuse_to_wrap_an_object() -> None:
    assert ChatMiddlewareLayer[Any](middleware=[passes]).chat_middleware == [passes]
    limits = FunctionInvocationLayer[Any](function_invocation_configuration={"max_iterations": 3}).function_invocation_configuration
    assert limits.get("max_iterations") == 3
    client = Foreign([], region="eu")
    agent = Agent(KeepingClient([]))
    for wrap in (
        lambda: ChatMiddlewareLayer[Any](client, middleware=[passes]),
        lambda: FunctionInvocationLayer[Any](client),
        lambda: AgentMiddlewareLayer(agent, middleware=[passes]),
        lambda: AgentMiddlewareLayer(middleware=[passes]),
    ):
        with pytest.raises(TypeError, match=r"does not wrap an object\. List it as a base class"):
            wrap()
