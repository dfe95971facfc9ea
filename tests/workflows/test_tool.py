"""Workflow files as tools: called through a real gate, with tools, agents and functions from a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import WorkflowInvalid
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, ToolOutcome
from tests.workflows.scripted import ScriptedToolBox, chain, publish, run

BRIEF = """\
name: brief
description: Research, draft, review.
input: {topic: {type: string}, tone: {type: string, default: dry}}
executors:
  research: {agent: researcher, prompt: "Collect facts about {{topic}}."}
  draft: {agent: writer, prompt: "{{tone}}|{{research}}|{{draft}}|{{review.notes}}"}
  review: {agent: reviewer, output: {approved: {type: boolean}, notes: {type: string}}}
start: research
edges:
  - {from: research, to: draft}
  - {from: draft, to: review}
  - {from: review, to: draft, when: {approved: false}, max: 3}
output: draft
"""


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("wf_"):
            del sys.modules[name]


class Crew:
    """Three agents; the reviewer answers from a script."""

    def __init__(self, *verdicts: str) -> None:
        self.prompts: list[tuple[str, str]] = []
        self.verdicts = list(verdicts)

    def researcher(self, task: str) -> str:
        self.prompts.append(("researcher", task))
        return "FACTS"

    def writer(self, task: str) -> str:
        self.prompts.append(("writer", task))
        return f"draft {sum(who == 'writer' for who, _ in self.prompts)}"

    def reviewer(self, task: str) -> str:
        self.prompts.append(("reviewer", task))
        return self.verdicts.pop(0)

    def box(self) -> ScriptedToolBox:
        return ScriptedToolBox(agent__researcher=self.researcher, agent__writer=self.writer, agent__reviewer=self.reviewer)

    def said_to(self, who: str) -> list[str]:
        return [prompt for name, prompt in self.prompts if name == who]


def verdict(approved: bool, notes: str) -> str:
    return json.dumps({"approved": approved, "notes": notes})


# -- the definition ------------------------------------------------------------------------------------------------


async def test_workflow_is_published_with_a_closed_schema_from_its_inputs() -> None:
    definition = (await publish(BRIEF)).definition
    assert definition.name == "brief"
    assert definition.description == "Research, draft, review."
    assert definition.input_schema == {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "tone": {"type": "string", "default": "dry"}},
        "required": ["topic"],
        "additionalProperties": False,
    }
    assert definition.output_schema is None
    assert definition.task == "optional"
    assert definition.may_request_input


async def test_output_with_fields_has_output_schema_and_structured_content() -> None:
    text = BRIEF.replace("output: draft", "output: review")
    tool = await publish(text, box=Crew(verdict(True, "fine")).box())
    assert tool.definition.output_schema == {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}, "notes": {"type": "string"}},
        "required": ["approved", "notes"],
    }
    result = await run(tool, topic="tea")
    assert result.structured == {"approved": True, "notes": "fine"}
    assert json.loads(result.as_text()) == result.structured


# -- agents, loops, templates --------------------------------------------------------------------------------------


@pytest.mark.requirement("WF1")
async def test_agents_pass_on_answers_and_review_loops_until_approved() -> None:
    crew = Crew(verdict(False, "shorter"), verdict(True, ""))
    result = await run(await publish(BRIEF, box=crew.box()), topic="tea")
    assert result.as_text() == "draft 2"
    assert crew.said_to("researcher") == ["Collect facts about tea."]
    assert crew.said_to("writer") == ["dry|FACTS||", "dry|FACTS|draft 1|shorter"]
    assert crew.said_to("reviewer")[1].startswith("draft 2\n\nAnswer with one JSON object")


async def test_loop_ends_after_its_maximum_with_the_last_output() -> None:
    crew = Crew(*[verdict(False, str(n)) for n in range(9)])
    result = await run(await publish(BRIEF, box=crew.box()), topic="tea")
    assert result.as_text() == "draft 4"
    assert len(crew.said_to("reviewer")) == 4


@pytest.mark.parametrize(
    "answer",
    [
        '{"approved": true, "notes": "ok", "extra": 1}',
        'Sure!\n```json\n{"approved": true, "notes": "ok"}\n```\nDone.',
        'I think {"approved": true, "notes": "ok"} is right.',
    ],
)
async def test_fields_are_found_however_a_model_wraps_them(answer: str) -> None:
    tool = await publish(BRIEF.replace("output: draft", "output: review"), box=Crew(answer).box())
    assert (await run(tool, topic="tea")).structured == {"approved": True, "notes": "ok"}


async def test_answer_without_the_fields_is_requested_once_more() -> None:
    crew = Crew("Looks good to me!", verdict(True, "ok"))
    await run(await publish(BRIEF, box=crew.box()), topic="tea")
    assert "Your last answer was:\nLooks good to me!\n\nIt cannot be used: there is no JSON object in it." in crew.said_to("reviewer")[1]

    crew = Crew("no", '{"approved": "yes", "notes": ""}')
    result = await run(await publish(BRIEF, box=crew.box()), topic="tea")
    assert result.is_error
    assert result.as_text().startswith("Executor 'review' failed: The answer does not fit `output`: argument 'approved'")


async def test_agent_without_prompt_gets_what_came_before() -> None:
    heard: list[str] = []

    def echo(question: str, style: int = 1) -> str:
        heard.append(question)
        return "answer"

    box = ScriptedToolBox(agent__echo=echo)
    await run(await publish(chain("{agent: echo}"), box=box), x="only input")
    two = chain("{agent: echo}", head="input: {x: {}, y: {}}")
    await run(await publish(two, box=box), x=1, y=[2])
    assert heard == ["only input", '{"x": 1, "y": [2]}']


# -- tools and functions -------------------------------------------------------------------------------------------


async def test_tool_arguments_keep_json_types_and_results_have_fields() -> None:
    calls: list[JsonObject] = []

    def convert(value: float, to: list[str], note: str) -> dict[str, Any]:
        calls.append({"value": value, "to": to, "note": note})
        return {"value": value * 2, "unit": {"name": to[0]}}

    text = """\
name: twice
description: d
input: {amount: {type: number}, units: {type: array}}
executors:
  first: {tool: units/convert, arguments: {value: "{{amount}}", to: "{{units}}", note: "n={{amount}}"}}
  second: {tool: units/convert, arguments: {value: "{{first.value}}", to: ["{{first.unit.name}}"], note: fixed}}
start: first
edges: [{from: first, to: second}]
"""
    result = await run(await publish(text, box=ScriptedToolBox(units__convert=convert)), amount=2.5, units=["m", "ft"])
    assert calls == [{"value": 2.5, "to": ["m", "ft"], "note": "n=2.5"}, {"value": 5.0, "to": ["m"], "note": "fixed"}]
    assert result.structured == {"value": 10.0, "unit": {"name": "m"}}


async def test_content_of_the_last_tool_reaches_the_caller_unchanged() -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}

    def draw() -> ToolOutcome:
        return Complete({"content": [image, {"type": "text", "text": "a"}], "_meta": {"inner": 1}})

    result = await run(await publish(chain("{tool: art/draw}"), box=ScriptedToolBox(art__draw=draw)), x=1)
    assert result.result == {"content": [image, {"type": "text", "text": "a"}]}


async def test_python_functions_are_imported_from_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "wf_pkg").mkdir()
    (tmp_path / "wf_pkg" / "__init__.py").write_text("")
    (tmp_path / "wf_pkg" / "work.py").write_text(
        "from gateway.tools.function import tool\n"
        "def split(text: str) -> list[str]:\n    return text.split()\n"
        "@tool\nasync def count(words: list[str], bonus: int = 0) -> int:\n    return len(words) + bonus\n"
        "def label(n): return {'n': n, 'kind': type(n).__name__}\n"
    )
    text = """\
name: words
description: d
input: {text: {type: string}}
executors:
  split: {python: "wf_pkg.work:split", arguments: {text: "{{text}}"}}
  count: {python: "wf_pkg.work:count", arguments: {words: "{{split}}"}}
  label: {python: "wf_pkg.work:label"}
start: split
edges: [{from: split, to: count}, {from: count, to: label, when: {}}]
""".replace(", when: {}", "")
    result = await run(await publish(text, base_dir=tmp_path), text="a b c")
    assert result.structured == {"n": 3, "kind": "int"}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{python: 'wf_bad:nope'}", "executors.only.python: Module 'wf_bad' has no 'nope'"),
        ("{python: 'wf_none:f'}", "executors.only.python: No module 'wf_none'"),
        ("{python: 'wf_bad:VALUE'}", "executors.only.python: wf_bad:VALUE is int, not a function"),
        ("{python: 'wf_bad:two'}", "executors.only.python: wf_bad:two has several parameters (first, second); write `arguments`."),
        ("{python: 'wf_bad:two', arguments: {first: 1, secnd: 2}}", "has no parameter 'secnd'. Did you mean 'second'?"),
        ("{python: 'wf_bad:two', arguments: {first: 1}}", "also needs 'second' in `arguments`"),
        ("{python: 'wf_bad:star'}", "executors.only.python: function 'star' takes *args"),
    ],
)
async def test_unusable_functions_are_named_before_the_run(tmp_path: Path, step: str, reason: str) -> None:
    (tmp_path / "wf_bad.py").write_text("VALUE = 1\ndef two(first, second): ...\ndef star(*args): ...\n")
    with pytest.raises(WorkflowInvalid) as caught:
        await publish(chain(step), base_dir=tmp_path)
    assert reason in str(caught.value)


async def test_declared_fields_are_required_of_a_text_result_too() -> None:
    def good() -> str:
        return '{"n": 1, "other": 2}'

    def bad() -> str:
        return "n is 1"

    text = chain("{tool: s/TOOL, output: {n: {type: integer}, m: {type: integer, default: 7}}}")
    box = ScriptedToolBox(s__good=good, s__bad=bad)
    assert (await run(await publish(text.replace("TOOL", "good"), box=box), x=1)).structured == {"n": 1, "m": 7}
    result = await run(await publish(text.replace("TOOL", "bad"), box=box), x=1)
    assert result.as_text() == "Executor 'only' failed: The result does not fit `output`: there is no JSON object in it."


# -- edges ---------------------------------------------------------------------------------------------------------


FORK = """\
name: fork
description: d
input: {n: {}}
executors:
  judge: {tool: s/judge, arguments: {n: "{{n}}"}}
  yes: {tool: s/say, arguments: {text: "yes"}}
  no: {tool: s/say, arguments: {text: "no"}}
  end: {tool: s/say, arguments: {text: "<{{yes}}{{no}}>"}}
start: judge
edges:
  - {from: judge, to: "yes", when: {positive: true}}
  - {from: judge, to: "no", when: {positive: false}}
  - {from: "yes", to: end}
  - {from: "no", to: end}
"""


@pytest.mark.requirement("WF1")
async def test_conditions_compare_values_and_types() -> None:
    def judge(n: Any) -> dict[str, Any]:
        return {"positive": n}

    def say(text: str) -> str:
        return text

    box = ScriptedToolBox(s__judge=judge, s__say=say)
    tool = await publish(FORK, box=box)
    assert (await run(tool, n=True)).as_text() == "<yes>"
    assert (await run(tool, n=False)).as_text() == "<no>"
    assert (await run(tool, n=1)).as_text() == "The workflow ended without output."


async def test_condition_on_text_fails_naming_the_edge() -> None:
    def judge(n: Any) -> str:
        return "true"

    def say(text: str) -> str:
        return text

    result = await run(await publish(FORK, box=ScriptedToolBox(s__judge=judge, s__say=say)), n=1)
    assert result.is_error
    assert result.as_text() == "Executor 'judge' failed: The edge to 'yes' asks for the field 'positive', but the output is not an object."


@pytest.mark.requirement("WF2")
async def test_branches_of_a_round_run_at_the_same_time_and_meet_once() -> None:
    waiting = 0
    together = anyio.Event()
    ends: list[str] = []

    async def branch(n: Any) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            together.set()
        await together.wait()
        return str(n)

    def meet(text: str) -> str:
        ends.append(text)
        return text

    text = """\
name: diamond
description: d
input: {n: {}}
executors:
  start: {tool: s/meet, arguments: {text: go}}
  left: {tool: s/branch, arguments: {n: "{{n}}"}}
  right: {tool: s/branch, arguments: {n: "-{{n}}"}}
  end: {tool: s/meet, arguments: {text: "{{left}} {{right}}"}}
start: start
edges: [{from: start, to: left}, {from: start, to: right}, {from: left, to: end}, {from: right, to: end}]
"""
    result = await run(await publish(text, box=ScriptedToolBox(s__branch=branch, s__meet=meet)), n=1)
    assert result.as_text() == "1 -1"
    assert ends == ["go", "1 -1"]


# -- failure -------------------------------------------------------------------------------------------------------


async def test_tool_that_is_not_there_is_named_before_anything_runs() -> None:
    ran: list[str] = []

    def researcher(task: str) -> str:
        ran.append(task)
        return ""

    result = await run(await publish(BRIEF, box=ScriptedToolBox(agent__researcher=researcher)), topic="tea")
    assert result.is_error
    assert result.as_text().startswith("Executor 'draft' needs 'agent/writer', which is not available")
    assert ran == []


# -- graphs in code ------------------------------------------------------------------------------------------------

CODE = """\
from typing import Any
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.workflow_context import WorkflowContext
from gateway.workflows.executor import Executor, handler
from gateway.workflows.function_executor import FunctionExecutor

class Count(Executor):
    def __init__(self):
        super().__init__("count")
        self.seen = 0
    @handler
    async def take(self, message: dict, ctx: WorkflowContext[Any, Any]) -> None:
        self.seen += 1
        await ctx.yield_output({"seen": self.seen, "got": message})

def upper(text: str) -> str:
    return text.upper()

def fresh():
    return WorkflowBuilder(start_executor=Count()).build()

single = WorkflowBuilder(start_executor=Count()).build()
texts = WorkflowBuilder(start_executor=FunctionExecutor(upper)).build()
not_a_workflow = 3
def wrong(): return 3
def broken(): raise KeyError("gone")
"""


async def test_graph_in_code_is_one_object_or_made_for_each_call(tmp_path: Path) -> None:
    (tmp_path / "wf_code.py").write_text(CODE)
    text = "name: coded\ndescription: d\ninput: {x: {}}\npython: wf_code:NAME\n"
    single = await publish(text.replace("NAME", "single"), base_dir=tmp_path)
    fresh = await publish(text.replace("NAME", "fresh"), base_dir=tmp_path)
    assert [(await run(single, x=n)).structured for n in (1, 2)] == [{"seen": 1, "got": {"x": 1}}, {"seen": 2, "got": {"x": 2}}]
    assert [(await run(fresh, x=n)).structured for n in (1, 2)] == [{"seen": 1, "got": {"x": 1}}, {"seen": 1, "got": {"x": 2}}]
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(run, single)


async def test_code_graph_that_takes_no_object_gets_the_only_argument(tmp_path: Path) -> None:
    (tmp_path / "wf_code.py").write_text(CODE)
    text = "name: coded\ndescription: d\ninput: {x: {}}\npython: wf_code:texts\n"
    tool = await publish(text, base_dir=tmp_path)
    assert (await run(tool, x="hi")).as_text() == "HI"
    result = await run(tool, x=3)
    assert result.is_error
    assert "Executor 'upper' takes neither" in result.as_text()


async def test_code_that_is_not_a_workflow_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "wf_code.py").write_text(CODE)
    text = "name: coded\ndescription: d\npython: wf_code:NAME\n"
    with pytest.raises(WorkflowInvalid, match="not_a_workflow is int"):
        await publish(text.replace("NAME", "not_a_workflow"), base_dir=tmp_path)
    with pytest.raises(WorkflowInvalid, match="No module 'wf_absent'"):
        await publish(text.replace("wf_code:NAME", "wf_absent:x"), base_dir=tmp_path)
    with pytest.raises(WorkflowInvalid, match="wf_code:wrong returned int; return a Workflow"):
        await publish(text.replace("NAME", "wrong"), base_dir=tmp_path)
    with pytest.raises(WorkflowInvalid, match="wf_code:broken failed: KeyError: 'gone'"):
        await publish(text.replace("NAME", "broken"), base_dir=tmp_path)
