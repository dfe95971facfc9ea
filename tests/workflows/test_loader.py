"""Reading workflow files: what is accepted, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.schema import schema_of
from gateway.errors import WorkflowInvalid
from gateway.policy.checking import SchemaCheck, measure
from gateway.workflows.definition import AgentStep, PythonStep, ToolStep, WorkflowFile
from gateway.workflows.loader import load_workflow, parse_workflow

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
        parse_workflow(text, name="x.workflow.yaml")
    return str(caught.value).splitlines()


def test_the_documented_example_is_read() -> None:
    file = parse_workflow(BRIEF)
    assert (file.name, file.start, file.output_id, file.task) == ("brief", "research", "draft", "optional")
    assert isinstance(file.steps["research"], AgentStep)
    assert file.edges[2].when == {"approved": False}
    assert file.edges[2].max == 3


def test_executors_are_agents_tools_or_functions_and_output_defaults_to_the_only_end() -> None:
    file = parse_workflow(GRAPH)
    assert [type(step) for step in file.steps.values()] == [ToolStep, AgentStep, PythonStep]
    assert file.output_id == "c"


def test_a_graph_may_be_in_code() -> None:
    file = parse_workflow("name: x\ndescription: d\npython: pkg.graphs:flow\n")
    assert file.python == "pkg.graphs:flow"
    assert file.steps == {}


def test_the_json_schema_accepts_the_examples_and_refuses_what_the_loader_refuses() -> None:
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
        ("agent: writer", "agnet: writer", "6: executors.b: needs one of `agent`, `tool`, `python` to say what it is. Did you mean"),
        ("tool: docs/search,", "tool: docs/search, agent: z,", "5: executors.a.tool: an executor is one thing"),
        ("tool: docs/search,", "tool: docs/search, prompt: hi,", "5: executors.a.prompt: belongs to another kind of executor"),
        ("docs/search", "docs/*", "5: executors.a.tool: 'docs/*' is not one tool: write source/tool, e.g. docs/search"),
        ("pkg.mod:f", "pkg.mod", "7: executors.c.python: 'pkg.mod' is not a function: write package.module:function"),
        ("start: a", "start: z", "8: start: there is no executor 'z'."),
        ("start: a\n", "", "1: start: is required: the executor that runs first"),
        ("{from: a, to: b}", "{from: a, too: b}", "10: edges[0].too: unknown key 'too'. Did you mean 'to'?"),
        ("{from: a, to: b}", "{from: a, to: bb}", "10: edges[0].to: there is no executor 'bb'."),
        ("max: 2", "max: often", "12: edges[2].max: must be a whole number, not text"),
        ("start: a", "start: a\noutput: q", "9: output: there is no executor 'q'."),
        ("{topic: {type: string}}", "{topic: string}", "3: input.topic: must be an object, not text"),
        ("{topic: {type: string}}", "{topic: {type: strin}}", "3: input.topic: is not a valid JSON Schema"),
        ("{topic: {type: string}}", "{topic: {type: string, default: 3}}", "3: input.topic.default: does not fit its own schema"),
        ("{topic: {type: string}}", "{topic: {type: string}, 1st: {}}", "3: input.1st: is not a name"),
        ("{topic: {type: string}}", "{topic: {type: string}, a: {}}", "5: executors.a: an input has the same name"),
        ("when: {good: false}", "when: {goood: false}", "12: edges[2].when.goood: 'b' has no output field 'goood'. Did you mean 'good'?"),
        ("when: {good: false}", 'when: {good: "no"}', "12: edges[2].when.good: can never be true"),
        ("when: {good: false}", "when: {good: [false]}", "12: edges[2].when.good: must be one value"),
        (", output: {good: {type: boolean}}", "", "11: edges[1].when.good: agent 'b' answers in text; give it `output`"),
        ("{{topic}}", "{{topik}}", "5: executors.a.arguments.q: {{topik}}: there is no input or executor 'topik'. Did you mean 'topic'?"),
        ('["{{topic}}"]', '["{{nope}}"]', "5: executors.a.arguments.deep[0]: {{nope}}: there is no input or executor 'nope'. Known:"),
        ("{{b.good}}", "{{b.goood}}", "7: executors.c.arguments.v: {{b.goood}}: 'b' has no output field 'goood'. Did you mean 'good'?"),
        ("{{topic}}", "{{ topic | upper }}", "5: executors.a.arguments.q: '{{ topic | upper }}' is not a reference"),
        ("{{topic}}", "{{c}}", "5: executors.a.arguments.q: {{c}}: 'c' never runs before 'a'; no edges lead from it to here"),
        ("  - {from: b, to: c, when: {good: true}}\n", "", "7: executors.c: cannot be reached from `start: a`"),
        ("when: {good: true}", "when: {}", "11: edges[1].when:"),
        (", when: {good: false}, max: 2", "", "9: edges: the loop of 'a', 'b' would never end: give one of its edges `when` or `max`"),
        ("{from: a, to: b}", "{from: b, to: c}", "11: edges[1]: there already is an edge from 'b' to 'c'"),
        ("task: x", "", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_file_line_key_and_fix(old: str, new: str, expected: str) -> None:
    if not expected:
        expected, text = "13: task: must be 'never', 'optional' or 'required'", GRAPH + "task: sometimes\n"
    else:
        assert old in GRAPH
        text = GRAPH.replace(old, new)
    found = mistakes(text)
    assert any(line.startswith(f"x.workflow.yaml:{expected}") for line in found), found


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = GRAPH.replace("prompt:", "promt:").replace("start: a", "strat: a").replace("name: x", "name: 3")
    assert [line.split(":")[1] for line in mistakes(text)] == ["1", "6", "8"]


def test_a_graph_in_code_has_no_executors_beside_it() -> None:
    assert mistakes(GRAPH + "python: m:f\n")[0].endswith("cannot stand beside `python`: the graph is in code")
    assert mistakes("name: x\ndescription: d\n") == [
        "x.workflow.yaml:1: executors: is required: a workflow has at least one executor (or `python`)"
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
