"""Middleware that returns, terminates or fails, before or after it calls `call_next`: which other layers still run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from gateway import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    MiddlewareException,
    MiddlewareTermination,
    ResponseStream,
    agent_middleware,
    chat_middleware,
    function_middleware,
)
from tests.agents.building import agent_of, both_ways, call, run

LAYERS: dict[str, Any] = {"agent": agent_middleware, "chat": chat_middleware, "function": function_middleware}
ANSWERS: dict[str, Any] = {
    "agent": lambda: AgentResponse(messages=[Message("assistant", ["instead"])]),
    "chat": lambda: ChatResponse(messages=[Message("assistant", ["instead"])]),
    "function": lambda: "instead",
}
TABLE: dict[str, tuple[bool, bool, bool]] = {
    "returns after the call": (True, True, True),
    "returns without a call": (False, False, True),
    "terminates without a call": (False, False, False),
    "terminates after the call": (True, True, False),
    "fails": (False, False, False),
}
"""Whether these ran: the inner middleware, the operation, and the part of the outer middleware after `call_next`."""


def outer(mark: Any, ran: list[str]) -> Any:
    """Return a middleware of the layer that records when the part after its `call_next` runs."""

    @mark
    async def around(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        ran.append("outer's second half")

    return around


@both_ways
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("behaviour", TABLE)
@pytest.mark.requirement("MW7", "MW8", "MW9", "MW10", "MW11", "MW12")
async def test_middleware_outcome_decides_which_layers_run(behaviour: str, layer: str, stream: bool) -> None:
    ran: list[str] = []
    mark = LAYERS[layer]

    @mark
    async def subject(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        if "after" in behaviour:
            await call_next()
        elif "without" in behaviour:
            context.result = ANSWERS[layer]()
        if behaviour.startswith("terminates"):
            raise MiddlewareTermination
        if behaviour == "fails":
            raise ValueError("broken")

    @mark
    async def inner(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        ran.append("inner")
        await call_next()

    def work() -> str:
        ran.append("operation")
        return "done"

    agent, client = agent_of([call("work"), "said"], [work], middleware=[outer(mark, ran), subject, inner])
    if behaviour == "fails" and layer != "function":
        with pytest.raises(ValueError, match="broken"):
            await run(agent, stream)
        response = None
    else:
        response = await run(agent, stream)

    further_in, operation, second_half = TABLE[behaviour]
    if layer == "function":
        assert ("operation" in ran) is operation
        assert len(client.requests) == (1 if behaviour.startswith("terminates") else 2)
    else:
        assert bool(client.requests) is operation
    assert ("inner" in ran) is further_in
    assert ("outer's second half" in ran) is second_half
    if response is not None and "without" in behaviour:
        shown = [str(c.result if c.type == "function_result" else c.text) for m in response.messages for c in m.contents]
        assert "instead" in shown


@both_ways
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("moment", ["with a result", "before the call", "after the call"])
@pytest.mark.requirement("MW8", "MW12")
async def test_terminate_skips_inner_layers(moment: str, layer: str, stream: bool) -> None:
    ran: list[str] = []
    mark = LAYERS[layer]

    @mark
    async def subject(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        if moment == "with a result":
            context.result = ANSWERS[layer]()
        if moment == "after the call":
            await call_next()
        context.terminate = True
        if moment == "before the call":
            await call_next()

    def work() -> str:
        ran.append("operation")
        return "done"

    agent, client = agent_of([call("work"), "said"], [work], middleware=[outer(mark, ran), subject])
    response = await run(agent, stream)

    assert "outer's second half" in ran
    if layer == "function":
        assert len(client.requests) == 1, "the model must not be asked again"
        assert ("operation" in ran) is (moment == "after the call")
    else:
        assert bool(client.requests) is (moment == "after the call")
    if moment == "with a result":
        shown = [str(c.result if c.type == "function_result" else c.text) for m in response.messages for c in m.contents]
        assert "instead" in shown


@both_ways
@pytest.mark.parametrize("layer", ["agent", "chat"])
@pytest.mark.parametrize("kind", ["text", "message", "whole", "stream", "parts"])
@pytest.mark.requirement("MW2", "MW3", "MW13")
async def test_result_can_be_set_in_every_form_of_a_response(kind: str, layer: str, stream: bool) -> None:
    part = AgentResponseUpdate if layer == "agent" else ChatResponseUpdate
    whole = AgentResponse if layer == "agent" else ChatResponse

    async def parts() -> AsyncIterator[Any]:
        yield part([Content.from_text("in")], "assistant")
        yield part([Content.from_text("stead")], "assistant")

    def answer() -> Any:
        match kind:
            case "text":
                return "instead"
            case "message":
                return Message("assistant", ["instead"])
            case "whole":
                return ANSWERS[layer]()
            case "stream":
                return ResponseStream(parts(), finalizer=whole.from_updates)
            case _:
                return parts()

    @LAYERS[layer]
    async def sets(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        context.result = answer()

    @LAYERS[layer]
    async def ends(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        raise MiddlewareTermination("enough", result=answer())

    for middleware in (sets, ends):
        agent, client = agent_of(["said"], middleware=[middleware])
        response = await run(agent, stream)
        assert (response.text, client.requests) == ("instead", [])


@pytest.mark.parametrize("layer", ["agent", "chat"])
async def test_result_of_a_wrong_type_is_rejected_by_name(layer: str) -> None:
    @LAYERS[layer]
    async def wrong(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        context.result = 42

    agent, _ = agent_of(["said"], middleware=[wrong])
    with pytest.raises(MiddlewareException, match=r"context\.result to int"):
        await run(agent, stream=False)


@both_ways
@pytest.mark.requirement("MW4", "MW8")
async def test_result_set_by_function_middleware_reaches_model_as_text(stream: bool) -> None:
    class Row(BaseModel):
        city: str

    @function_middleware
    async def instead(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        context.result = {"found": [Row(city="Rome")]} if context.function.name == "rows" else None

    def rows() -> str:
        return "never"

    def nothing() -> str:
        return "never"

    agent, client = agent_of([[call("rows", id="c1"), call("nothing", id="c2")], "said"], [rows, nothing], middleware=[instead])
    await run(agent, stream)
    results = [c.result for m in client.requests[1][0] for c in m.contents if c.type == "function_result"]
    assert results == ['{"found": [{"city": "Rome"}]}', ""]


@both_ways
@pytest.mark.requirement("MW2", "MW3", "MW4")
async def test_contexts_carry_session_and_middleware_metadata(stream: bool) -> None:
    sessions: list[Any] = []

    def layer(mark: Any) -> Any:
        @mark
        async def outer(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
            context.mine = "kept"
            await call_next()

        @mark
        async def inner(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
            assert context.mine == "kept"
            sessions.append(context.session)
            await call_next()

        return [outer, inner]

    def work() -> str:
        return "done"

    agent, _ = agent_of([call("work"), "said"], [work], middleware=[one for mark in LAYERS.values() for one in layer(mark)])
    session = agent.create_session()
    await run(agent, stream, session=session)
    assert sessions == [session] * 4, "the run's, two model calls', the tool call's"
