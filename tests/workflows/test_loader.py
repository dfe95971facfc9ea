"""Reading workflow files: what is accepted, and how each mistake is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config.json_schemas import schema_of
from gateway.errors import WorkflowInvalid
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.workflows.definition import AgentStep, PythonStep, ToolStep, WorkflowFile
from gateway.workflows.loader import load_workflow
from tests.workflows.scripted import workflow_of

BRIEF = """\
name: brief
description: Research a topic, draft a page, review it until approved.
input: {topic: {type: string, maxLength: 200}}
executors:
  research: {agent: researcher, prompt: "Collect facts about {{topic}}."}
  draft:    {agent: writer}
  review:   {agent: reviewer, output: {approved: {type: boolean}, notes: {type: string}}}
start: research
edges:
  - {from: research, to: draft}
  - {from: draft, to: review}
  - {from: review, to: draft, when: {approved: false}, max: 3}
output: draft
task: optional            # never | optional | required
"""

GRAPH = """\
name: x
description: d
input: {topic: {type: string}}
executors:
  a: {tool: docs/search, arguments: {q: "{{topic}}", deep: ["{{topic}}"]}}
  b: {agent: writer, prompt: "{{a.hits.0}}", output: {good: {type: boolean}}}
  c: {python: "pkg.mod:f", arguments: {v: "{{b.good}}"}}
start: a
edges:
  - {from: a, to: b}
  - {from: b, to: c, when: {good: true}}
  - {from: b, to: a, when: {good: false}, max: 2}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(WorkflowInvalid) as caught:
        workflow_of(text, name="x.workflow.yaml")
    return [re.sub(r"^\S*/(?=x\.workflow)", "", line) for line in str(caught.value).splitlines()]


def test_the_documented_example_is_read() -> None:
    file = workflow_of(BRIEF)
    assert (file.name, file.start, file.output_id, file.task) == ("brief", "research", "draft", "optional")
    assert isinstance(file.steps["research"], AgentStep)
    assert file.edges[2].when == {"approved": False}
    assert file.edges[2].max == 3


def test_executors_are_of_three_kinds_and_the_only_end_is_the_output() -> None:
    file = workflow_of(GRAPH)
    assert [type(step) for step in file.steps.values()] == [ToolStep, AgentStep, PythonStep]
    assert file.output_id == "c"


def test_graph_may_be_in_code() -> None:
    file = workflow_of("name: x\ndescription: d\npython: pkg.graphs:flow\n")
    assert file.python == "pkg.graphs:flow"
    assert file.steps == {}


def test_json_schema_agrees_with_the_loader_on_the_examples() -> None:
    from gateway.config.documents import load_mapping

    check = SchemaCheck(schema_of(WorkflowFile, title="Moongate: *.workflow.yaml"))
    assert check.problem is None
    for text in (BRIEF, GRAPH, "name: x\ndescription: d\npython: pkg.graphs:flow\n"):
        document = load_mapping(text)
        assert check.find(document, measure(document)) is None
    for text in (BRIEF.replace("prompt:", "promt:"), BRIEF.replace("start: research\n", ""), BRIEF.replace("max: 3", "max: 0")):
        document = load_mapping(text)
        assert check.find(document, measure(document)) is not None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("start: a", "strat: a", "8: strat: unknown key 'strat'. Did you mean 'start'?"),
        ("name: x", "name: a b", "1: name: 'a b' is not a name: use up to 50 letters, digits, '_' and '-'"),
        ("name: x\n", "", "1: name: is required"),
        ("description: d\n", "", "1: description: is required"),
        ("prompt:", "promt:", "6: executors.b.promt: unknown key 'promt'. Did you mean 'prompt'?"),
        ("agent: writer", "agnet: writer", "6: executors.b: needs one of `agent`, `tool`, `python`, `workflow`, `ask` to say"),
        ("tool: docs/search,", "tool: docs/search, agent: z,", "5: executors.a.tool: an executor is one thing"),
        ("tool: docs/search,", "tool: docs/search, prompt: hi,", "5: executors.a.prompt: belongs to another kind of executor"),
        ("docs/search", "docs/*", "5: executors.a.tool: 'docs/*' is not one tool: write source/tool, e.g. docs/search"),
        ("pkg.mod:f", "pkg.mod", "7: executors.c.python: 'pkg.mod' is not a function: write package.module:function"),
        ("start: a", "start: z", "8: start: unknown executor 'z'."),
        ("start: a\n", "", "1: start: is required: the executor that runs first"),
        ("{from: a, to: b}", "{from: a, too: b}", "10: edges[0].too: unknown key 'too'. Did you mean 'to'?"),
        ("{from: a, to: b}", "{from: a, to: bb}", "10: edges[0].to: unknown executor 'bb'."),
        ("max: 2", "max: often", "12: edges[2].max: must be a whole number, not text"),
        ("start: a", "start: a\noutput: q", "9: output: unknown executor 'q'."),
        ("{topic: {type: string}}", "{topic: string}", "3: input.topic: must be an object, not text"),
        ("{topic: {type: string}}", "{topic: {type: strin}}", "3: input.topic: is not a valid JSON Schema"),
        ("{topic: {type: string}}", "{topic: {type: string, default: 3}}", "3: input.topic.default: does not fit its own schema"),
        ("{topic: {type: string}}", "{topic: {type: string}, 1st: {}}", "3: input.1st: is not a name"),
        ("{topic: {type: string}}", "{topic: {type: string}, a: {}}", "5: executors.a: an input has the same name"),
        ("when: {good: false}", "when: {goood: false}", "12: edges[2].when.goood: 'b' has no output field 'goood'. Did you mean 'good'?"),
        ("when: {good: false}", 'when: {good: "no"}', "12: edges[2].when.good: can never be true"),
        ("when: {good: false}", "when: {good: [false]}", "12: edges[2].when.good: must be one value"),
        (", output: {good: {type: boolean}}", "", "11: edges[1].when.good: agent 'b' answers in text; give it `output`"),
        ("{{topic}}", "{{topik}}", "5: executors.a.arguments.q: {{topik}}: unknown input or executor 'topik'. Did you mean 'topic'?"),
        ('["{{topic}}"]', '["{{nope}}"]', "5: executors.a.arguments.deep[0]: {{nope}}: unknown input or executor 'nope'. Known:"),
        ("{{b.good}}", "{{b.goood}}", "7: executors.c.arguments.v: {{b.goood}}: 'b' has no output field 'goood'. Did you mean 'good'?"),
        ("{{topic}}", "{{ topic | upper }}", "5: executors.a.arguments.q: '{{ topic | upper }}' is not a reference"),
        ("{{topic}}", "{{c}}", "5: executors.a.arguments.q: {{c}}: 'c' never runs before 'a'; no edges lead from it to here"),
        ("  - {from: b, to: c, when: {good: true}}\n", "", "7: executors.c: cannot be reached from `start: a`"),
        ("when: {good: true}", "when: {}", "11: edges[1].when:"),
        (", when: {good: false}, max: 2", "", "9: edges: the loop of 'a', 'b' would never end: give one of its edges `when`"),
        ("{from: a, to: b}", "{from: b, to: c}", "11: edges[1]: there already is an edge from 'b' to 'c'"),
        ("task: x", "", ""),
    ],
)  # fmt: skip
def test_mistake_is_named_with_file_line_key_and_fix(old: str, new: str, expected: str) -> None:
    if not expected:
        expected, text = "13: task: must be 'never', 'optional' or 'required'", GRAPH + "task: sometimes\n"
    else:
        assert old in GRAPH
        text = GRAPH.replace(old, new)
    found = mistakes(text)
    assert any(line.startswith(f"x.workflow.yaml:{expected}") for line in found), found


def test_all_mistakes_are_reported_at_once_in_file_order() -> None:
    text = GRAPH.replace("prompt:", "promt:").replace("start: a", "strat: a").replace("name: x", "name: 3")
    assert [line.split(":")[1] for line in mistakes(text)] == ["1", "6", "8"]


def test_graph_in_code_has_no_executors_beside_it() -> None:
    assert mistakes(GRAPH + "python: m:f\n")[0].endswith("cannot be combined with `python`: the graph is in code")
    assert mistakes("name: x\ndescription: d\n") == [
        "x.workflow.yaml:1: executors: is required: a workflow has at least one executor "
        "(or one of `python`, `sequential`, `concurrent`, `group-chat`, `handoff`, `magentic`)"
    ]


def test_two_ends_need_an_output() -> None:
    text = GRAPH.replace("{from: b, to: a, when: {good: false}, max: 2}", "{from: a, to: c}")
    text = text.replace("  - {from: b, to: c, when: {good: true}}\n", "").replace("{{b.good}}", "{{a}}")
    assert mistakes(text) == [
        "x.workflow.yaml:1: output: is required: name the executor whose output is the result (without an outgoing edge: b, c)"
    ]


def test_broken_yaml_names_the_line() -> None:
    assert mistakes("name: x\nexecutors: {a: [\n")[0].startswith("x.workflow.yaml:3: ")
    assert mistakes("name: x\nname: y\n") == ["x.workflow.yaml:2: key 'name' is written twice."]
    assert mistakes("- a\n")[0].startswith("x.workflow.yaml:1: ")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.workflow.yaml"
    with pytest.raises(WorkflowInvalid, match=r"no\.workflow\.yaml: cannot be read"):
        load_workflow(missing)
    missing.write_bytes(b"\xff\xfe")
    with pytest.raises(WorkflowInvalid, match="not UTF-8"):
        load_workflow(missing)
    missing.write_text("#" * 300_000)
    with pytest.raises(WorkflowInvalid, match="larger than"):
        load_workflow(missing)


# -- edges between several, people, sub-workflows, orchestrations ------------------------------------------------------

ROUTED = """\
name: routed
description: d
input: {text: {type: string}}
executors:
  triage: {agent: triage, output: {kind: {enum: [bug, wish]}, teams: {type: array, items: {type: string}}}}
  bug: {agent: a}
  wish: {agent: b}
  rest: {workflow: brief, arguments: {topic: "{{text}}"}}
  check: {ask: "Is {{bug}} right?", output: {ok: {type: boolean}, why: {type: string, default: ""}}}
  left: {agent: c}
  right: {agent: d}
  both: {agent: e}
start: triage
edges:
  - {from: triage, switch: [{when: {kind: bug}, to: bug}, {when: {kind: wish}, to: wish}, {to: rest}]}
  - {from: bug, to: check}
  - {from: check, to: [left, right]}
  - {from: [left, right], to: both}
output-from: [both, wish, rest]
intermediate-output-from: all_other
max-rounds: 20
"""

CHAT = """\
name: panel
description: d
input: {topic: {type: string}}
prompt: "Discuss {{topic}}."
group-chat: {participants: [ann, bob, docs/search], selection: round-robin, max-rounds: 4, review: [ann]}
intermediate-output-from: all
"""


@pytest.mark.requirement("WF1")
def test_edges_lead_to_several_from_several_and_by_cases() -> None:
    file = workflow_of(ROUTED)
    assert [edge.kind for edge in file.edges] == ["switch", "single", "fan-out", "fan-in"]
    assert file.output_from == ("both", "wish", "rest")
    chosen = workflow_of(ROUTED.replace("{from: check, to: [left, right]}", "{from: check, to: [left, right], select: ok}"))
    assert chosen.edges[2].kind == "select"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{to: rest}]", "{when: {kind: wish}, to: rest}]", "15: edges[0].switch: needs a last case without `when`, and only that one"),
        ("{kind: bug}", "{knd: bug}", "15: edges[0].switch[0].when.knd: 'triage' has no output field 'knd'. Did you mean 'kind'?"),
        ("{kind: bug}", "{kind: bugs}", "15: edges[0].switch[0].when.kind: can never be true"),
        ("{to: rest}]", "{to: rst}]", "15: edges[0].switch[2].to: unknown executor 'rst'. Did you mean 'rest'?"),
        ("{to: rest}]", "{too: rest}]", "15: edges[0].switch[2].too: unknown key 'too'. Did you mean 'to'?"),
        ("switch: [", "to: bug, switch: [", "15: edges[0].to: cannot be combined with `switch`, whose cases have a `to` each"),
        ("{from: bug, to: check}", "{from: bug}", "16: edges[1]: needs `to`, the executor that runs next (or `switch`)"),
        ("to: [left, right]", "to: [left, left]", "17: edges[2].to: names 'left' twice"),
        ("to: [left, right]", "to: {left: 1}", "17: edges[2].to: must be a name, or a list of names"),
        ("to: [left, right]", "to: [left, rihgt]", "17: edges[2].to[1]: unknown executor 'rihgt'. Did you mean 'right'?"),
        ("to: [left, right]", "to: [left, right], max: 2", "17: edges[2].max: is for an edge from one executor to one, and this is"),
        ("to: [left, right]", "to: [left, right], select: okay", "17: edges[2].select: 'check' has no output field 'okay'."),
        ("to: both}", "to: [both, wish]}", "18: edges[3].from: several sources lead to one executor; write an edge for each target"),
        ("output-from: [both,", "output: both\noutput-from: [both,", "20: output-from: cannot be combined with `output`"),
        ("[both, wish, rest]", "[both, wishes]", "19: output-from[1]: unknown executor 'wishes'. Did you mean 'wish'?"),
        ("[both, wish, rest]", "both", "19: output-from: must be a list of names, `all` or `all_other`"),
        ("[both, wish, rest]", "[]", "19: output-from: is empty, so the result would be empty"),
        ("[both, wish, rest]", "all_other", "19: output-from: must be a list of names, or `all`"),
        ("all_other", "[bug, wish]", "20: intermediate-output-from[1]: 'wish' is in `output-from` already"),
        ("max-rounds", "max_rounds", "21: max_rounds: unknown key 'max_rounds'. Did you mean 'max-rounds'?"),
        ("{type: boolean}", "{type: object}", "9: executors.check.output.ok: cannot be a field of a form (type 'object')"),
        ("{{bug}} right", "{{bugg}} right", "9: executors.check.ask: {{bugg}}: unknown input or executor 'bugg'. Did you mean 'bug'?"),
        ("workflow: brief", "workflow: a/b", "8: executors.rest.workflow: 'a/b' is not a name"),
        ("start: triage", "prompt: hi\nstart: triage", "13: prompt: is for orchestrations"),
    ],
)  # fmt: skip
def test_mistake_in_a_richer_graph_is_named_too(old: str, new: str, expected: str) -> None:
    assert old in ROUTED
    found = mistakes(ROUTED.replace(old, new, 1))
    assert any(line.startswith(f"x.workflow.yaml:{expected}") for line in found), found


@pytest.mark.requirement("WF13")
@pytest.mark.parametrize(
    "team",
    [
        "sequential: {participants: [a, workflow/brief], answers-only: true, review: true}",
        'concurrent: {participants: [a, b], aggregator: "m:f"}',
        "group-chat: {participants: [a, b], orchestrator: boss, max-rounds: 3}",
        'group-chat: {participants: [a, b], selection: "m:f", until: "m:g"}',
        "handoff: {participants: [a, b, c], start: b, handoffs: {b: [a, c]}, return-to-start: true, autonomous-turns: 2}",
        "magentic: {participants: [a, b], manager: boss, max-rounds: 9, max-stalls: 1, max-resets: 1, review-plan: true}",
    ],
)
def test_orchestration_is_read_and_fits_the_json_schema(team: str) -> None:
    from gateway.config.documents import load_mapping

    text = f"name: x\ndescription: d\n{team}\n"
    assert workflow_of(text).team is not None
    check = SchemaCheck(schema_of(WorkflowFile, title="Moongate: *.workflow.yaml"))
    document = load_mapping(text)
    assert check.find(document, measure(document)) is None
    wrong = load_mapping(text.replace("participants", "members"))
    assert check.find(wrong, measure(wrong)) is not None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("group-chat", "groupchat", "5: groupchat: unknown key 'groupchat'. Did you mean 'group-chat'?"),
        ("selection", "selektion", "5: group-chat.selektion: unknown key 'selektion'. Did you mean 'selection'?"),
        ("docs/search", "docs/*", "5: group-chat.participants[2]: 'docs/*' is not a participant: write an agent's name, or source/tool"),
        ("docs/search", "x/ann", "5: group-chat.participants[2]: there already is a participant 'ann'; they need different names"),
        ("[ann]", "[anna]", "5: group-chat.review[0]: unknown participant 'anna'. Did you mean 'ann'?"),
        ("[ann]", "maybe", "5: group-chat.review: must be true, false, or a list of participants"),
        ("round-robin", "random", "5: group-chat.selection: 'random' is not a way to choose: write round-robin, or a function"),
        ("selection: round-robin, ", "", "5: group-chat: needs either `orchestrator`, an agent that chooses the next speaker"),
        ("selection: round-robin", "orchestrator: ann", "5: group-chat.orchestrator: is a participant already"),
        (", max-rounds: 4", "", "5: group-chat: would never end: give it `max-rounds` or `until`"),
        ("max-rounds: 4", "max-rounds: 0", "5: group-chat.max-rounds: must be at least 1"),
        ("{{topic}}", "{{topik}}", "4: prompt: {{topik}}: unknown input 'topik'. Did you mean 'topic'?"),
        ("from: all", "from: [bobb]", "6: intermediate-output-from[0]: unknown participant 'bobb'. Did you mean 'bob'?"),
        ("name: panel", "start: x\nname: panel", "1: start: cannot be combined with `group-chat`: a file is one graph or one"),
        ("name: panel", "python: m:f\nname: panel", "6: group-chat: cannot be combined with `python`: the graph is in code"),
        (
            "name: panel",
            "sequential: {participants: [a]}\nname: panel",
            "6: group-chat: cannot be combined with `sequential`: a file is one graph or one orchestration",
        ),
    ],
)
def test_orchestration_mistake_is_named_with_file_line_key_and_fix(old: str, new: str, expected: str) -> None:
    assert old in CHAT
    found = mistakes(CHAT.replace(old, new, 1))
    assert any(line.startswith(f"x.workflow.yaml:{expected}") for line in found), found
