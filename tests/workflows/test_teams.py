"""Orchestrations and richer graphs of workflow files, called as tools through a real gate, with scripted agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.json_types import JsonObject
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from tests.workflows.scripted import Listener, ScriptedToolBox, guard, publish, run, workflow_of

HEAD = "name: x\ndescription: d\n"


class Cast:
    """Agents that answer from a script, by name, and remember what they were asked."""

    def __init__(self, **answers: list[str]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers = answers

    def box(self, **more: Any) -> ScriptedToolBox:
        return ScriptedToolBox(**{f"agent__{name}": self._agent(name) for name in self._answers}, **more)

    def _agent(self, name: str) -> Any:
        def answer(task: str) -> str:
            self.asked.append((name, task))
            return self._answers[name].pop(0)

        answer.__doc__ = f"The {name}."
        return answer


def shout(text: str) -> str:
    return text.upper() + "!"


def accepted(**content: Any) -> JsonObject:
    return {"action": "accept", "content": content}


# -- orchestrations ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF13")
async def test_sequence_passes_the_conversation_and_gives_the_last_answer() -> None:
    cast = Cast(writer=["DRAFT"], editor=["FINAL"])
    text = HEAD + "sequential: {participants: [writer, s/upper, editor]}\nintermediate-output-from: all_other\n"
    listener = Listener()
    tool = await publish(text, box=cast.box(s__upper=shout))
    assert tool.definition.input_schema["required"] == ["message"]
    result = await run(tool, listener.context(), message="tea")
    assert result.as_text() == "FINAL"
    assert cast.asked[0] == ("writer", "tea")
    asked = cast.asked[1][1]
    assert asked.index("You are editor") < asked.index("user: tea") < asked.index("writer: DRAFT") < asked.index("upper: DRAFT!")
    assert "writer: DRAFT" in [message for _, message in listener.heard]


async def test_all_participants_answer_at_once_and_a_function_joins_them(tmp_path: Path) -> None:
    (tmp_path / "wf_join.py").write_text("def join(answers):\n    return ' | '.join(a.agent_response.text for a in answers)\n")
    text = HEAD + 'input: {topic: {type: string}}\nprompt: "About {{topic}}."\nconcurrent: {participants: [a, b]MORE}\n'
    cast = Cast(a=["A1", "A2"], b=["B1", "B2"])
    plain = await publish(text.replace("MORE", ""), box=cast.box())
    result = await run(plain, topic="tea")
    assert sorted(block["text"] for block in result.content) == ["A1", "B1"]
    assert sorted(cast.asked) == [("a", "About tea."), ("b", "About tea.")]
    joined = await publish(text.replace("MORE", ', aggregator: "wf_join:join"'), base_dir=tmp_path, box=cast.box())
    assert (await run(joined, topic="tea")).as_text() == "A2 | B2"


async def test_group_chat_is_led_by_turns_or_by_an_agent() -> None:
    cast = Cast(a=["a1", "a2"], b=["b1"], boss=[])
    turns = await publish(HEAD + "group-chat: {participants: [a, b], selection: round-robin, max-rounds: 3}\n", box=cast.box())
    assert "maximum number of rounds" in (await run(turns, message="go")).as_text()
    assert [name for name, _ in cast.asked] == ["a", "b", "a"]
    assert "b: b1" in cast.asked[-1][1]

    decisions = [{"terminate": False, "next_speaker": "b"}, {"terminate": True, "final_message": "Settled."}]
    cast = Cast(a=[], b=["b1"], boss=["nonsense", *map(json.dumps, decisions)])
    led = await publish(HEAD + "group-chat: {participants: [a, b], orchestrator: boss}\n", box=cast.box())
    assert (await run(led, message="go")).as_text() == "Settled."
    assert [name for name, _ in cast.asked] == ["boss", "boss", "b", "boss"]
    assert "a: The a." in cast.asked[0][1] or "- a: The a." in cast.asked[0][1]


@pytest.mark.requirement("WF9")
async def test_handoff_passes_the_conversation_until_an_empty_answer() -> None:
    cast = Cast(triage=['{"call": "handoff_to_refunds"}'], refunds=["Which order?", "Refunded 42."])
    text = HEAD + "handoff: {participants: [triage, refunds], handoffs: {triage: [refunds]}}\n"
    listener = Listener(accepted(answer="42"), accepted())
    result = await run(await publish(text, box=cast.box()), listener.context(), message="my money")
    assert [block["text"] for block in result.content] == ["Which order?", "Refunded 42."]
    assert [request["params"]["message"] for request in listener.asked] == ["Which order?", "Refunded 42."]
    assert "handoff_to_refunds" in cast.asked[0][1]
    assert "handoff_to" not in cast.asked[1][1]
    assert "user: 42" in cast.asked[2][1]


async def test_magentic_team_plans_shows_its_plan_and_tracks_progress() -> None:
    def ledger(is_done: bool) -> str:
        said = {"is_request_satisfied": is_done, "is_in_loop": False, "is_progress_being_made": True, "next_speaker": "a"}
        return json.dumps({key: {"reason": "", "answer": value} for key, value in {**said, "instruction_or_question": "dig"}.items()})

    cast = Cast(a=["found"], boss=["facts", "the plan", "facts", "a better plan", ledger(False), ledger(True), "done: found"])
    listener = Listener(accepted(answer="shorter"), accepted())
    text = HEAD + "magentic: {participants: [a], manager: boss, max-rounds: 5, review-plan: true}\n"
    result = await run(await publish(text, box=cast.box()), listener.context(), message="task")
    assert result.as_text() == "done: found"
    assert ["the plan" in listener.asked[0]["params"]["message"], "a better plan" in listener.asked[1]["params"]["message"]] == [True, True]


async def test_person_reviews_answers_before_they_go_on() -> None:
    cast = Cast(a=["draft", "better"], b=["final"])
    listener = Listener(accepted(answer="more facts"), accepted(answer=""))
    text = HEAD + "sequential: {participants: [a, b], review: [a]}\n"
    result = await run(await publish(text, box=cast.box()), listener.context(), message="tea")
    assert result.as_text() == "final"
    assert [request["params"]["message"] for request in listener.asked] == ["draft", "better"]
    assert "more facts" in cast.asked[1][1]


async def test_failing_participant_is_an_error_result_that_names_it() -> None:
    cast = Cast(a=[], b=["x"])
    result = await run(await publish(HEAD + "sequential: {participants: [a, b]}\n", box=cast.box()), message="tea")
    assert result.is_error
    assert result.as_text().startswith("Executor 'a' failed")
    gone = await run(await publish(HEAD + "sequential: {participants: [a, ghost]}\n", box=cast.box()), message="tea")
    assert gone.as_text().startswith("Executor 'ghost' needs 'agent/ghost', which is not available")


async def test_orchestration_function_that_cannot_be_imported_is_named() -> None:
    from gateway.errors import WorkflowInvalid

    file = workflow_of(HEAD + 'group-chat: {participants: [a], selection: "wf_absent:f", until: "json:decoder"}\n')
    with pytest.raises(WorkflowInvalid) as caught:
        await WorkflowPlan.prepare(file, base_dir=Path())
    first, second = str(caught.value).splitlines()
    assert first.startswith("group-chat.selection: No module 'wf_absent'")
    assert second == "group-chat.until: json:decoder is module, not a function."


# -- edges and people --------------------------------------------------------------------------------------------------

ROUTED = """\
name: routed
description: d
input: {text: {type: string}}
executors:
  triage: {agent: triage, output: {kind: {type: string}, teams: {type: array, items: {type: string}}}}
  bug: {agent: bug}
  left: {agent: left}
  right: {agent: right}
  both: {agent: both, prompt: "{{left}}+{{right}}"}
  rest: {agent: rest}
start: triage
edges:
  - {from: triage, switch: [{when: {kind: bug}, to: bug}, {to: rest}]}
  - {from: bug, to: [left, right]}
  - {from: [left, right], to: both}
output-from: [both, rest]
intermediate-output-from: [bug]
"""


@pytest.mark.requirement("WF1")
@pytest.mark.requirement("WF7")
async def test_switch_fan_out_and_fan_in_lead_as_the_file_says() -> None:
    cast = Cast(
        triage=['{"kind": "bug", "teams": []}', '{"kind": "?", "teams": []}'],
        bug=["BUG"], left=["L"], right=["R"], both=["done"], rest=["rest"],
    )  # fmt: skip
    listener = Listener()
    tool = await publish(ROUTED, box=cast.box())
    assert (await run(tool, listener.context(), text="it broke")).as_text() == "done"
    assert ("both", "L+R") in cast.asked
    assert [name for name, _ in cast.asked].count("both") == 1
    assert "bug: BUG" in [message for _, message in listener.heard]
    assert (await run(tool, text="hello")).as_text() == "rest"


async def test_select_runs_the_executors_the_output_names() -> None:
    text = ROUTED.replace("switch: [{when: {kind: bug}, to: bug}, {to: rest}]", "to: [bug, rest], select: teams")
    text = text.replace("output-from: [both, rest]\nintermediate-output-from: [bug]", "output-from: all")
    cast = Cast(
        triage=['{"kind": "", "teams": ["bug", "rest"]}', '{"kind": "", "teams": ["nobody"]}'],
        bug=["BUG"], left=["L"], right=["R"], both=["done"], rest=["rest"],
    )  # fmt: skip
    tool = await publish(text, box=cast.box())
    result = await run(tool, text="x")
    said = [block["text"] for block in result.content][1:]
    assert (sorted(said[:2]), sorted(said[2:4]), said[4:]) == (["BUG", "rest"], ["L", "R"], ["done"])
    failed = await run(tool, text="x")
    assert failed.as_text().endswith("The field 'teams' of 'triage' chooses 'nobody', but the edge leads to 'bug', 'rest'.")


PUBLISH = """\
name: publish
description: d
input: {text: {type: string}}
executors:
  check: {ask: "Publish {{text}}?", output: {ok: {type: boolean}, notes: {type: string, default: ""}}}
  done: {agent: printer, prompt: "{{text}} {{check.notes}}"}
  name: {ask: "Under which name?"}
start: check
edges:
  - {from: check, to: name, when: {ok: true}}
  - {from: name, to: done}
output: done
"""


@pytest.mark.requirement("WF9")
async def test_question_waits_for_a_person_and_its_answer_decides() -> None:
    cast = Cast(printer=["printed"])
    listener = Listener(accepted(ok=True), accepted(answer="Ada"))
    result = await run(await publish(PUBLISH, box=cast.box()), listener.context(), text="it")
    assert result.as_text() == "printed"
    first, second = (request["params"] for request in listener.asked)
    assert first["message"] == "Publish it?"
    assert first["requestedSchema"]["required"] == ["ok"]
    assert second["requestedSchema"] == {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


async def test_declined_question_is_an_error_result() -> None:
    listener = Listener({"action": "decline"})
    result = await run(await publish(PUBLISH, box=Cast(printer=[]).box()), listener.context(), text="it")
    assert result.is_error
    assert "the answer was 'decline', so it did not continue" in result.as_text()


async def test_answer_that_does_not_fit_is_requested_again() -> None:
    listener = Listener(accepted(ok="yes"), {"action": "decline"})
    result = await run(await publish(PUBLISH, box=Cast(printer=[]).box()), listener.context(), text="it")
    assert result.is_error
    first, again = (request["params"]["message"] for request in listener.asked)
    assert (first, again.startswith("Publish it?\nYour last answer cannot be used: field 'ok'")) == ("Publish it?", True)


async def test_workflow_is_a_step_of_another_with_its_questions() -> None:
    cast = Cast(printer=["printed"])
    inner = WorkflowTool(await WorkflowPlan.prepare(workflow_of(PUBLISH), base_dir=Path()), toolbox=cast.box())
    box = ScriptedToolBox()
    box.add("workflow/publish", guard(inner))
    text = HEAD + "input: {t: {type: string}}\nexecutors: {sub: {workflow: publish, arguments: {text: '{{t}}'}}}\nstart: sub\n"
    listener = Listener(accepted(ok=True), accepted(answer="Ada"))
    assert (await run(await publish(text, box=box), listener.context(), t="page")).as_text() == "printed"
    assert listener.asked[0]["params"]["message"] == "Publish page?"
