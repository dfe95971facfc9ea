"""What a middleware does decides what runs: requirements' table of returns and terminations, in each layer, whole and streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway import AgentResponse, ChatResponse, Message, MiddlewareTermination, agent_middleware, chat_middleware, function_middleware
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
"""Whether what is further in, the operation, and the second half of what is further out ran."""


@both_ways
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("behaviour", TABLE)
@pytest.mark.requirement("MW7", "MW8", "MW9", "MW10", "MW11", "MW12")
async def test_what_a_middleware_does_decides_what_runs(behaviour: str, layer: str, stream: bool) -> None:
    ran: list[str] = []
    mark = LAYERS[layer]

    @mark
    async def outer(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        ran.append("outer's second half")

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

    agent, client = agent_of([call("work"), "said"], [work], middleware=[outer, subject, inner])
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
