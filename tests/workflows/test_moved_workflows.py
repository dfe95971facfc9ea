"""Old names of agent-framework's workflows, for code that moves over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import AgentResponseUpdate, Content, Executor, WorkflowAgent, WorkflowBuilder, WorkflowContext, WorkflowEvent, handler


class Tells(Executor):
    """An executor that reports progress with the deprecated `ctx.add_event`."""

    @handler
    async def tell(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        with pytest.warns(DeprecationWarning, match="yield_output"):
            await ctx.add_event(WorkflowEvent[Any].emit(self.id, text))
        await ctx.yield_output(text)


@pytest.mark.requirement("WF6")
async def test_deprecated_event_emits_a_warning() -> None:
    events = [event async for event in WorkflowBuilder(start_executor=Tells("t")).build().run("hi", stream=True)]
    [told] = [event for event in events if event.type == "data"]
    assert (told.executor_id, told.data) == ("t", "hi")


@pytest.mark.requirement("WF1")
def test_executor_goes_through_json() -> None:
    made = Tells.from_json(Tells("t").to_json())
    assert (made.id, made.to_dict()) == ("t", {"id": "t", "type": "Tells"})
    with pytest.raises(ValueError, match="mapping"):
        Tells.from_json("[]")


@pytest.mark.requirement("WF14")
def test_updates_of_several_agents_become_one_response() -> None:
    def update(text: str, answer: str | None) -> AgentResponseUpdate:
        message = f"m-{answer}"
        return AgentResponseUpdate(contents=[Content.from_text(text)], role="assistant", response_id=answer, message_id=message)

    told = [update("one ", "a"), update("alone", None), update("two ", "b"), update("more", "a"), update("again", "b")]
    merged = WorkflowAgent.merge_updates(told, "r")
    assert (merged.response_id, [message.text for message in merged.messages]) == ("r", ["one more", "two again", "alone"])
