"""Evaluation of agents and workflows in code, as in programs written for agent-framework."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway import (
    Agent,
    AgentResponse,
    CheckResult,
    Content,
    ConversationSplit,
    EvalItem,
    EvalItemResult,
    EvalNotPassedError,
    EvalResults,
    EvalScoreResult,
    ExpectedToolCall,
    LocalEvaluator,
    Message,
    RubricScore,
    ScriptedChatClient,
    SequentialBuilder,
    Workflow,
    evaluate_agent,
    evaluate_workflow,
    evaluator,
    keyword_check,
    tool_call_args_match,
    tool_called_check,
    tool_calls_present,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*EVALS")


def get_weather(city: str) -> str:
    """The weather."""
    return f"Rain in {city}"


@evaluator
def is_short(response: str) -> bool:
    return len(response) < 40


@evaluator(name="grounded")
async def rests_on(query: str, context: str | None, tools: Sequence[object] | None) -> dict[str, object]:
    return {"score": 0.9 if context and tools and query else 0.1, "threshold": 0.8, "reason": "by the book"}


async def test_agent_answers_are_judged_by_local_checks() -> None:
    weather = Content.from_function_call("c", "get_weather", arguments='{"city": "Oslo", "days": 1}')
    agent = Agent(ScriptedChatClient([[weather], "Rain in Oslo", "Who knows?"]), name="helper", tools=get_weather)
    checks = (keyword_check("OSLO"), is_short, rests_on, tool_called_check("get_weather"), tool_calls_present, tool_call_args_match)

    [results] = await evaluate_agent(
        agent=agent,
        queries=["Weather?", "And now?"],
        expected_tool_calls=[[ExpectedToolCall("get_weather", {"city": "Oslo"})], []],
        context="A table of weather.",
        evaluators=checks,
    )

    assert [item.status for item in results.items] == ["pass", "fail"]
    assert (results.items[0].input_text, results.items[0].output_text) == ("Weather?", "Rain in Oslo")
    assert {score.name for score in results.items[1].scores if not score.passed} == {"keyword_check", "tool_called"}
    assert results.per_evaluator["grounded"] == {"passed": 2, "failed": 0, "errored": 0}
    assert results.items[0].scores[2].sample == {"reason": "by the book"}
    with pytest.raises(EvalNotPassedError, match="1 passed, 1 failed"):
        results.raise_for_status()
    with pytest.raises(EvalNotPassedError, match="1:fail"):
        results.assert_no_failed_items()


async def test_queries_are_repeated_and_existing_responses_are_judged() -> None:
    seen: list[tuple[str, str]] = []

    @evaluator
    def equals(response: str, expected_output: str) -> float:
        seen.append((response, expected_output))
        return 1.0 if response == expected_output else 0.2

    agent = Agent(ScriptedChatClient(["4", "6", "4", "5"]))
    [results] = await evaluate_agent(
        agent=agent, queries=["2+2", "3+3"], expected_output=["4", "6"], evaluators=equals, num_repetitions=2
    )
    assert seen == [("4", "4"), ("6", "6"), ("4", "4"), ("5", "6")] and (results.passed, results.failed) == (3, 1)
    given = AgentResponse(messages=[Message("assistant", ["four"])])
    [judged, local] = await evaluate_agent(queries="2+2", responses=given, evaluators=[LocalEvaluator(keyword_check("four")), is_short])
    judged.raise_for_status()
    assert local.run_id.endswith("(Local)") and local.all_passed


def need_verdict(verdict: bool) -> bool:
    return verdict


async def test_inconsistent_arguments_are_rejected_before_any_run() -> None:
    agent = Agent(ScriptedChatClient([]))
    answer = AgentResponse(messages=[Message("assistant", ["x"])])
    for match, arguments in (
        ("'queries'", {"agent": agent}),
        ("'agent'", {"queries": "x"}),
        ("alongside 'responses'", {"responses": answer}),
        ("1 queries but 2 responses", {"queries": "x", "responses": [answer, answer]}),
        ("1 queries but 2 expected_output", {"agent": agent, "queries": "x", "expected_output": ["a", "b"]}),
        ("num_repetitions", {"agent": agent, "queries": "x", "num_repetitions": 0}),
    ):
        with pytest.raises(ValueError, match=match):
            await evaluate_agent(evaluators=is_short, **arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"unknown required parameter.*verdict"):
        evaluator(need_verdict)


async def test_failing_check_ends_the_evaluation_with_its_error() -> None:
    item = EvalItem([Message("user", ["q"]), Message("assistant", ["a"])])
    for value, match in (("yes", "unsupported type str"), ({"score": "high"}, "non-numeric"), ({"passed": "no"}, "non-boolean")):
        def says(response: str, value: object = value) -> object:
            return value

        with pytest.raises(TypeError, match=match):
            await LocalEvaluator(evaluator(says)).evaluate([item])


def test_conversation_is_split_at_a_question_or_by_a_function() -> None:
    talk = [Message(role, [text]) for role, text in (("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))]
    assert (EvalItem(talk).query, EvalItem(talk).response) == ("q1 q2", "a2")
    full = EvalItem(talk, split_strategy=ConversationSplit.FULL)
    assert (full.query, full.response) == ("q1", "a1 a2")
    assert EvalItem(talk, split_strategy=lambda c: (c[:2], c[2:])).response == "a2"
    assert [(turn.query, turn.response) for turn in EvalItem.per_turn_items(talk)] == [("q1", "a1"), ("q1 q2", "a2")]


def test_scores_and_dimensions_can_be_gates() -> None:
    rubric = [RubricScore("clarity", 2, True, 1, "muddled"), RubricScore("tone", None, False, 1, "n/a")]
    sub = EvalResults(provider="p", items=[EvalItemResult("7", "pass", [EvalScoreResult("r", 0.4, True, dimensions=rubric)])])
    results = EvalResults(provider="p", sub_results={"writer": sub})
    results.assert_score_at_least(0.4)
    results.assert_dimension_score_at_least("tone", 5)
    for match, gate in (
        ("7/r=0.400", lambda: results.assert_score_at_least(0.5)),
        ("7/r/clarity=2", lambda: results.assert_dimension_score_at_least("clarity", 3)),
        ("not applicable on 1", lambda: results.assert_dimension_score_at_least("tone", 3, require_applicable=True)),
        ("not applicable on 1", lambda: results.assert_dimension_score_at_least("clarity", 1, evaluator="x", require_applicable=True)),
    ):
        with pytest.raises(EvalNotPassedError, match=match):
            gate()


async def test_workflow_is_judged_as_a_whole_and_agent_by_agent() -> None:
    def stage(name: str, *replies: str) -> Agent:
        return Agent(ScriptedChatClient(list(replies)), name=name)

    def build() -> Workflow:
        return SequentialBuilder(participants=[stage("draft", "rough"), stage("edit", "fine")]).build()

    def says_fine(item: EvalItem) -> CheckResult:
        return CheckResult("fine" in item.response, item.query, "fine")

    workflow = build()
    [results] = await evaluate_workflow(workflow=workflow, queries="Write", expected_output="x", evaluators=says_fine)
    assert (results.passed, results.failed) == (1, 0) and results.items[0].input_text == "Write"
    assert {name: sub.all_passed for name, sub in results.sub_results.items()} == {"draft": False, "edit": True}
    assert not results.all_passed
    done = await build().run("Write")
    [later] = await evaluate_workflow(workflow=workflow, workflow_result=done, include_overall=False, evaluators=says_fine)
    assert (later.eval_id, later.passed, later.failed) == ("aggregate", 1, 1)
    with pytest.raises(ValueError, match="workflow_result"):
        await evaluate_workflow(workflow=workflow, evaluators=says_fine)
