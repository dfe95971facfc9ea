"""The five orchestrations, each with agents that answer from a script."""

from __future__ import annotations

import json
from typing import Any, Never

import pytest

import gateway
from gateway.agents.agent import Agent
from gateway.chat.scripted import Reply, ScriptedChatClient
from gateway.errors import WorkflowError
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import AgentExecutorResponse
from gateway.workflows.checkpoints import InMemoryCheckpointStorage
from gateway.workflows.events import WorkflowRunState
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.concurrent import ConcurrentBuilder
from gateway.workflows.orchestrations.group_chat import (
    GroupChatBuilder,
    GroupChatOrchestrator,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
    GroupChatState,
)
from gateway.workflows.orchestrations.handoff import HandoffAgentUserRequest, HandoffBuilder
from gateway.workflows.orchestrations.magentic import MagenticBuilder, MagenticPlanReviewRequest
from gateway.workflows.orchestrations.magentic_manager import StandardMagenticManager
from gateway.workflows.orchestrations.participants import AgentRequestInfoResponse
from gateway.workflows.orchestrations.sequential import SequentialBuilder
from gateway.workflows.workflow_context import WorkflowContext


def agent(name: str, *replies: Reply, description: str | None = None) -> Agent:
    return Agent(ScriptedChatClient(replies), f"You are {name}.", name=name, description=description)


def heard(one: Agent, call: int = -1) -> list[str]:
    assert isinstance(one.client, ScriptedChatClient)
    return [message.text for message in one.client.requests[call][0] if message.role != "system"]


def texts(outputs: list[Any]) -> list[str]:
    return [output.text if isinstance(output, AgentResponse) else output for output in outputs]


# -- sequential ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF13")
async def test_sequential_participants_build_on_each_other() -> None:
    class Count(Executor):
        @handler
        async def run(self, message: AgentExecutorResponse, ctx: WorkflowContext[list[Message], str]) -> None:
            await ctx.send_message([*message.full_conversation, Message("user", f"{len(message.full_conversation)} so far")])

    one, two = agent("one", "first"), agent("two", "second")
    workflow = SequentialBuilder(participants=[one, Count("count"), two]).build()
    assert texts((await workflow.run("go")).get_outputs()) == ["second"]
    assert heard(two) == ["go", "first", "2 so far"]


@pytest.mark.requirement("WF13")
async def test_sequential_participants_may_get_only_the_last_answer() -> None:
    one, two = agent("one", "first"), agent("two", "second")
    builder = SequentialBuilder(participants=[one, two], chain_only_agent_responses=True, intermediate_output_from=[one])
    result = await builder.build().run("go")
    assert (texts(result.get_outputs()), texts(result.get_intermediate_outputs())) == (["second"], ["first"])
    assert heard(two) == ["first"]


@pytest.mark.requirement("WF13")
async def test_participants_that_cannot_be_meant_are_refused() -> None:
    one = agent("one")
    wrong: Any = 7
    with pytest.raises(ValueError, match="cannot be empty"):
        SequentialBuilder(participants=[])
    with pytest.raises(ValueError, match="Duplicate participant name 'one'"):
        ConcurrentBuilder(participants=[one, agent("one")])
    with pytest.raises(TypeError, match="Got int"):
        SequentialBuilder(participants=[wrong])
    selections: list[tuple[dict[str, Any], str]] = [
        ({"output_from": ["two"]}, "Unknown output participant 'two'"),
        ({"output_from": ["one", "one"]}, "Duplicate output participant 'one'"),
        ({"output_from": ["one"], "intermediate_output_from": ["one"]}, "cannot be both output and intermediate"),
        ({"output_from": "all_other"}, "output_from='all_other' is not a selection"),
        ({"intermediate_output_from": "some"}, "intermediate_output_from='some' is not a selection"),
        ({"output_from": [], "intermediate_output_from": []}, "cannot both be empty"),
    ]
    for selection, text in selections:
        with pytest.raises(ValueError, match=text):
            SequentialBuilder(participants=[one], **selection).build()
    with pytest.raises(ValueError, match="not agents of this"):
        SequentialBuilder(participants=[one]).with_request_info(agents=["two"])


@pytest.mark.requirement("WF13")
@pytest.mark.requirement("WF9")
async def test_person_can_review_answers_before_the_run_continues() -> None:
    one, two = agent("one", "bad", "good"), agent("two", "second")
    workflow = SequentialBuilder(participants=[one, two]).with_request_info(agents=[one]).build()
    (request,) = (await workflow.run("go")).get_request_info_events()
    assert request.data.agent_response.text == "bad"
    (request,) = (
        await workflow.run(responses={request.request_id: AgentRequestInfoResponse.from_strings(["again"])})
    ).get_request_info_events()
    assert request.data.agent_response.text == "good"
    result = await workflow.run(responses={request.request_id: AgentRequestInfoResponse.approve()})
    assert texts(result.get_outputs()) == ["second"]


# -- concurrent ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF13")
async def test_concurrent_answers_are_joined_in_participant_order() -> None:
    workflow = ConcurrentBuilder(participants=[agent("one", "first"), agent("two", "second")]).build()
    (response,) = (await workflow.run("go")).get_outputs()
    assert [(message.author_name, message.text) for message in response.messages] == [("one", "first"), ("two", "second")]


@pytest.mark.requirement("WF13")
async def test_concurrent_answers_may_be_joined_by_function_or_executor() -> None:
    def join(results: list[AgentExecutorResponse]) -> str:
        return " and ".join(item.agent_response.text for item in results)

    class Join(Executor):
        @handler
        async def run(self, message: list[AgentExecutorResponse], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(join(message))

    for aggregator in (join, Join("j")):
        builder = ConcurrentBuilder(participants=[agent("one", "first"), agent("two", "second")]).with_aggregator(aggregator)
        assert (await builder.build().run("go")).get_outputs() == ["first and second"]
        with pytest.raises(ValueError, match="already been called"):
            builder.with_aggregator(aggregator)
    assert (await ConcurrentBuilder(participants=[agent("one", "only")]).with_aggregator(join).build().run("go")).get_outputs() == ["only"]


# -- group chat ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF13")
async def test_function_chooses_the_speaker_and_all_get_every_message() -> None:
    states: list[tuple[int, list[str]]] = []

    def choose(state: GroupChatState) -> str:
        states.append((state.current_round, [message.text for message in state.conversation]))
        return list(state.participants)[state.current_round % 2]

    one, two = agent("one", "a", "c"), agent("two", "b")
    workflow = GroupChatBuilder(participants=[one, two], selection_func=choose, max_rounds=3).build()
    result = await workflow.run("topic")
    assert texts(result.get_outputs()) == ["The group chat has reached the maximum number of rounds."]
    assert states == [(0, ["topic"]), (1, ["topic", "a"]), (2, ["topic", "a", "b"])]
    assert heard(two) == ["topic", "a"]
    assert heard(one) == ["topic", "a", "b"]
    told = [(type(event.data).__name__, event.data.participant_name) for event in result if event.type == "group_chat"]
    assert told[:3] == [
        ("GroupChatRequestSentEvent", "one"),
        ("GroupChatResponseReceivedEvent", "one"),
        ("GroupChatRequestSentEvent", "two"),
    ]


@pytest.mark.requirement("WF13")
async def test_condition_ends_a_group_chat_and_executors_may_take_part() -> None:
    class Echo(Executor):
        heard: int = 0

        @handler
        async def hear(self, message: GroupChatParticipantMessage, ctx: WorkflowContext[Never]) -> None:
            self.heard += len(message.messages)

        @handler
        async def speak(self, message: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
            await ctx.send_message(GroupChatResponseMessage(Message("assistant", f"heard {self.heard}")))

    builder = GroupChatBuilder(
        participants=[agent("one", "a"), Echo("echo")],
        selection_func=lambda state: ["one", "echo"][state.current_round],
        termination_condition=lambda conversation: conversation[-1].text == "heard 2",
        orchestrator_name="chair",
    )
    (response,) = (await builder.build().run("topic")).get_outputs()
    assert (response.messages[0].author_name, response.text) == ("chair", "The group chat has reached its termination condition.")


def decision(speaker: str | None, final: str | None = None) -> str:
    return json.dumps({"terminate": speaker is None, "reason": "r", "next_speaker": speaker, "final_message": final})


@pytest.mark.requirement("WF13")
async def test_agent_chooses_the_speaker_and_gets_feedback_on_a_bad_choice() -> None:
    chair = agent("chair", decision("nobody"), decision("two"), decision(None, "all said"))
    two = agent("two", "b")
    workflow = GroupChatBuilder(participants=[agent("one"), two], orchestrator_agent=chair).build()
    assert texts((await workflow.run("topic")).get_outputs()) == ["all said"]
    assert "next_speaker is 'nobody'" in heard(chair, 1)[-1]
    assert heard(chair, 2)[-2] == "b"
    stubborn = agent("chair", "no", "no", "no")
    with pytest.raises(WorkflowError, match="'chair' did not choose a speaker: there is no JSON object in it"):
        await GroupChatBuilder(participants=[agent("one")], orchestrator_agent=stubborn).build().run("topic")
    with pytest.raises(ValueError, match="No orchestrator has been configured"):
        GroupChatBuilder(participants=[two]).build()
    with pytest.raises(ValueError, match="Exactly one"):
        GroupChatBuilder(participants=[two], orchestrator_agent=stubborn, selection_func=first_of)
    with pytest.raises(RuntimeError, match="chose the unknown participant 'nobody'"):
        await GroupChatBuilder(participants=[two], selection_func=nobody).build().run("topic")


@pytest.mark.requirement("WF13")
async def test_leader_may_be_created_for_each_workflow() -> None:
    made: list[Any] = []

    def chair() -> Agent:
        made.append(agent("chair", '{"terminate": true, "final_message": "done"}'))
        return made[-1]

    def leader() -> GroupChatOrchestrator:
        made.append(GroupChatOrchestrator("leader", first_of, max_rounds=1))
        return made[-1]

    def boss() -> Agent:
        made.append(agent("boss", "facts", "plan", ledger("one", done=True), "done"))
        return made[-1]

    def manager() -> StandardMagenticManager:
        return StandardMagenticManager(boss(), task_ledger_facts_prompt="Facts on {task}?", final_answer_prompt="Answer {task}!")

    one = agent("one", *["spoken"] * 8)
    builders: list[Any] = [
        GroupChatBuilder(participants=[one], orchestrator_agent=chair),
        GroupChatBuilder(participants=[one], orchestrator=leader),
        MagenticBuilder(participants=[one], manager_agent_factory=boss),
        MagenticBuilder(participants=[one], manager_factory=manager),
    ]
    for builder in builders:
        made.clear()
        for _ in range(2):
            assert len((await builder.build().run("tea")).get_outputs()) == 1
        assert len(made) == 2
    assert (heard(made[0], 0)[-1], heard(made[0], 3)[-1]) == ("Facts on tea?", "Answer tea!")
    with pytest.raises(TypeError, match="must return Agent or BaseGroupChatOrchestrator"):
        GroupChatBuilder(participants=[one], orchestrator=lambda: "x").build()  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="No manager configured"):
        MagenticBuilder(participants=[one]).build()
    with pytest.raises(ValueError, match="Exactly one"):
        MagenticBuilder(participants=[one], manager_agent=boss(), manager_factory=manager)


def first_of(state: GroupChatState) -> str:
    return next(iter(state.participants))


def nobody(state: GroupChatState) -> str:
    return "nobody"


@pytest.mark.requirement("WF12")
@pytest.mark.requirement("WF13")
async def test_group_chat_goes_on_from_a_checkpoint() -> None:
    def build(*answers: str) -> Any:
        one = agent("one", *answers)
        builder = GroupChatBuilder(participants=[one], selection_func=lambda state: "one", max_rounds=2, checkpoint_storage=storage)
        return one, builder.build()

    storage = InMemoryCheckpointStorage()
    _, workflow = build("a", "b")
    await workflow.run("topic")
    checkpoints = await storage.list_checkpoints(workflow_name="GroupChat")
    middle = next(item for item in checkpoints if item.iteration_count == 2)
    one, fresh = build("c")
    result = await fresh.run(checkpoint_id=middle.checkpoint_id)
    assert texts(result.get_outputs()) == ["The group chat has reached the maximum number of rounds."]
    assert heard(one) == ["topic", "a"]


# -- handoff -------------------------------------------------------------------------------------------------------


def hand(target: str) -> list[Content | str]:
    return ["Let me pass you on.", Content.from_function_call(f"to-{target}", f"handoff_to_{target}", {})]


@pytest.mark.requirement("WF13")
async def test_agents_hand_over_the_conversation_or_ask_the_user() -> None:
    triage, billing = agent("triage", hand("billing")), agent("billing", "Which invoice?", "Done.", description="Invoices.")
    builder = HandoffBuilder(participants=[triage, billing]).with_start_agent(triage)
    workflow = builder.with_termination_condition(lambda conversation: conversation[-1].text == "Done.").build()
    result = await workflow.run("My bill is wrong")
    assert [(event.data.source, event.data.target) for event in result if event.type == "handoff_sent"] == [("triage", "billing")]
    assert heard(billing) == ["My bill is wrong", "Let me pass you on."]
    (request,) = result.get_request_info_events()
    assert request.data.agent_response.text == "Which invoice?"
    assert isinstance(triage.client, ScriptedChatClient)
    offered = [tool.definition.name for tool in triage.client.requests[0][1].get("tools") or ()]
    assert offered == ["handoff_to_billing"]
    result = await workflow.run(responses={request.request_id: HandoffAgentUserRequest.create_response("number 7")})
    assert texts(result.get_outputs()) == ["Done."]
    assert heard(billing) == ["My bill is wrong", "Let me pass you on.", "Which invoice?", "number 7"]
    assert result.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF13")
async def test_handoffs_may_be_limited_and_an_agent_may_continue_alone() -> None:
    one, two, three = agent("one", "thinking", "still", "enough"), agent("two"), agent("three")
    builder = HandoffBuilder(participants=[one, two, three]).with_start_agent(one).add_handoff(one, [two], description="when asked")
    workflow = builder.with_autonomous_mode(agents=[one], prompts={"one": "Go on."}, turn_limits={"one": 2}).build()
    result = await workflow.run("go")
    assert texts(result.get_outputs()) == ["thinking", "still", "enough"]
    assert heard(one) == ["go", "thinking", "Go on.", "still", "Go on."]
    assert isinstance(one.client, ScriptedChatClient)
    assert [tool.definition.description for tool in one.client.requests[0][1].get("tools") or ()] == ["when asked"]
    (request,) = result.get_request_info_events()
    ended = await workflow.run(responses={request.request_id: HandoffAgentUserRequest.terminate()})
    assert (ended.get_outputs(), ended.get_final_state()) == ([], WorkflowRunState.IDLE)


def test_handoff_that_cannot_work_is_refused() -> None:
    class Node(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[Never]) -> None: ...

    one, node = agent("one"), Node("n")
    with pytest.raises(TypeError, match="must be Agent instances"):
        HandoffBuilder(participants=[node])  # pyright: ignore[reportArgumentType]  # the point of the test
    with pytest.raises(ValueError, match="with_start_agent"):
        HandoffBuilder().participants([one]).build()
    with pytest.raises(ValueError, match="given already"):
        HandoffBuilder(participants=[one]).participants([one])
    with pytest.raises(ValueError, match="No participants"):
        HandoffBuilder().build()
    with pytest.raises(ValueError, match="not in the participants"):
        HandoffBuilder(participants=[one]).with_start_agent(agent("two"))


# -- magentic ------------------------------------------------------------------------------------------------------


def ledger(speaker: str, instruction: str = "do it", *, done: bool = False, progress: bool = True) -> str:
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": progress,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return json.dumps({name: {"reason": "r", "answer": answer} for name, answer in answers.items()})


@pytest.mark.requirement("WF13")
async def test_manager_plans_instructs_and_answers_in_the_end() -> None:
    boss = agent("boss", "facts", "plan", "no json", ledger("coder", "write code"), ledger("coder", done=True), "the answer")
    coder = agent("coder", "code", description="Writes code.")
    workflow = MagenticBuilder(participants=[coder], manager_agent=boss).build()
    result = await workflow.run("build it")
    assert texts(result.get_outputs()) == ["the answer"]
    assert heard(coder) == ["write code"]
    kinds = [event.data.event_type.value for event in result if event.type == "magentic_orchestrator"]
    assert kinds == ["plan_created", "progress_ledger_updated", "progress_ledger_updated"]
    assert "there is no JSON object in it" in heard(boss, 3)[-1]
    assert "- coder: Writes code." in heard(boss, 1)[-1]


@pytest.mark.requirement("WF13")
async def test_plan_that_stalls_is_made_again_and_limits_end_the_work() -> None:
    boss = agent("boss", "facts", "plan", ledger("coder", progress=False), "new facts", "new plan")
    manager = StandardMagenticManager(boss, max_stall_count=0, max_reset_count=1)
    result = await MagenticBuilder(participants=[agent("coder")], manager=manager).build().run("build it")
    assert texts(result.get_outputs()) == ["Workflow terminated due to reaching maximum reset count."]
    kinds = [event.data.event_type.value for event in result if event.type == "magentic_orchestrator"]
    assert kinds == ["plan_created", "progress_ledger_updated", "replanned"]
    boss = agent("boss", "facts", "plan", ledger("coder"))
    workflow = MagenticBuilder(participants=[agent("coder", "x")], manager_agent=boss, max_round_count=1).build()
    assert texts((await workflow.run("go")).get_outputs()) == ["Workflow terminated due to reaching maximum round count."]


@pytest.mark.requirement("WF13")
@pytest.mark.requirement("WF9")
async def test_person_may_send_a_plan_back() -> None:
    boss = agent("boss", "facts", "plan", "facts 2", "plan 2", ledger("coder", done=True), "the answer")
    workflow = MagenticBuilder(participants=[agent("coder")], manager_agent=boss).with_plan_review().build()
    (request,) = (await workflow.run("go")).get_request_info_events()
    plan: MagenticPlanReviewRequest = request.data
    assert "plan" in plan.plan.text
    (again,) = (await workflow.run(responses={request.request_id: plan.revise("cheaper")})).get_request_info_events()
    assert "plan 2" in again.data.plan.text
    assert "cheaper" in heard(boss, 2)
    assert texts((await workflow.run(responses={again.request_id: plan.approve()})).get_outputs()) == ["the answer"]


@pytest.mark.requirement("C29")
@pytest.mark.parametrize("name", ["Sequential", "Concurrent", "GroupChat", "Handoff", "Magentic"])
def test_orchestrations_are_builders_under_the_framework_names(name: str) -> None:
    one, two = (Agent(ScriptedChatClient([]), name=item) for item in ("one", "two"))
    extra: dict[str, dict[str, Any]] = {
        "GroupChat": {"selection_func": lambda state: "one"},  # pyright: ignore[reportUnknownLambdaType]
        "Magentic": {"manager_agent": Agent(ScriptedChatClient([]), name="boss")},
    }
    builder = getattr(gateway, f"{name}Builder")(participants=[one, two], **extra.get(name, {}))
    if name == "Handoff":
        builder.with_start_agent(one)
    assert isinstance(builder.build(), gateway.Workflow)
