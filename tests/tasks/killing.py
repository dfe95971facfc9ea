"""Workflows that are killed again and again, and the person who answers their questions. For tests of what a task asks.

`Fuse` counts the events of one process and kills it at a given one. The person answers a question with the question's own durable
key, so that a result shows which answer each question got.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from gateway.config.policies import SourcePolicy
from gateway.gate.approvals import Approvals
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import IDEMPOTENCY_KEY, CallContext
from gateway.tools.function import FunctionTool
from gateway.tools.ports import ClientProfile
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from tests.tasks.dying import Journal, die, in_a_process, running
from tests.workflows.scripted import ScriptedToolBox, guard, workflow_of

ASKABLE = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
SECONDS = 30


@dataclass
class Fuse:
    """Kills the process at event `kill_at`, counted from 1; `None` never."""

    kill_at: int | None = None
    events: int = 0

    def event(self) -> None:
        """Count an event, and kill the process if its number is `kill_at`."""
        self.events += 1
        if self.events == self.kill_at:
            die()


@dataclass
class Ledger:
    """What happened in all processes: effects by idempotency key, and answered questions by durable key."""

    folder: Path
    effects: Journal = field(init=False)
    answers: Journal = field(init=False)
    decisions: Journal = field(init=False)
    """Kinds of the events about approvals."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.effects = Journal(self.folder / "effects")
        self.answers = Journal(self.folder / "answers")
        self.decisions = Journal(self.folder / "decisions")

    def answered(self) -> list[tuple[str, str]]:
        """Durable key and text of each answered question."""
        return [(key, text) for key, text in map(json.loads, self.answers.lines())]


def tools(ledger: Ledger, fuse: Fuse, act: JsonObject, records: Records | None = None) -> ScriptedToolBox:
    """Return three tools: `t/act` must not be repeated unless a person decides so, `t/look` may be, `t/pay` needs approval for each call.

    `act` is the policy of `t/act`. Approvals wait in `records` if the client does not support elicitation.
    """
    events = EventStream()
    events.subscribe(lambda event: ledger.decisions.write(event.kind) if event.kind.startswith("approval.") else None)

    async def effect(x: str, ctx: CallContext) -> str:
        """Writes a line to the ledger."""
        fuse.event()
        ledger.effects.write(f"{str(ctx.facts.meta[IDEMPOTENCY_KEY]).partition(':')[2]} {x}")
        fuse.event()
        return f"did({x})"

    box = ScriptedToolBox()
    gate = SourceGate("t", GateServices(events, Approvals(records, events)))
    policies: dict[str, JsonObject] = {"act": act, "look": {"idempotent": ["look"]}, "pay": {"approval": "always"}}
    for name, keys in policies.items():
        tool: FunctionTool[..., Any] = FunctionTool(effect, name=name)
        rules = ToolRules.build(tool.definition, SourcePolicy.model_validate(keys))
        box.add(f"t/{name}", GuardedTool(tool, rules, gate, exposed_name=f"t__{name}"))
    return box


Work = Callable[[Ledger, Fuse], CallTool]
"""Makes the call of a task for one process."""


def in_file(form: Mapping[str, object], act: JsonObject | None = None, records: Records | None = None) -> Work:
    """Return the call of the workflow file `form`; `act` and `records` are the parameters of `tools`."""

    def make(ledger: Ledger, fuse: Fuse) -> CallTool:
        async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
            text = json.dumps({"name": "x", "description": "d", **form})  # JSON is YAML too
            plan = await WorkflowPlan.prepare(workflow_of(text), base_dir=Path())
            return await called(WorkflowTool(plan, toolbox=tools(ledger, fuse, act or {}, records)), ctx)

        return call

    return make


def in_code(build: Callable[[ScriptedToolBox, Fuse], Any]) -> Work:
    """Return the call of the workflow that `build` makes in each process from the tool box and the fuse."""

    def make(ledger: Ledger, fuse: Fuse) -> CallTool:
        async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
            box = tools(ledger, fuse, {})
            made = build(box, fuse)
            plan = WorkflowPlan(workflow_of("name: x\ndescription: d\npython: here:made\n"), code=made, sample=made)
            return await called(WorkflowTool(plan, toolbox=box), ctx)

        return call

    return make


async def called(tool: WorkflowTool, ctx: CallContext) -> Complete:
    """The outcome of a call behind the gate."""
    outcome = await guard(tool).call({"input": "go"} if "input" in tool.definition.input_schema["properties"] else {}, ctx)
    assert isinstance(outcome, Complete)
    return outcome


def answer_to(item: JsonObject, decide: Callable[[], str]) -> JsonObject:
    """Return the answer to a stored question: `decide()` for an approval, `retry` for a step in doubt, else its own durable key."""
    fields = item["request"]["params"]["requestedSchema"]["properties"]
    said = {"outcome": "retry", **({"decision": decide()} if "decision" in fields else {})}
    return {"action": "accept", "content": {name: said.get(name, f"A {item.get('step')}") for name in fields}}


@dataclass(frozen=True)
class Person:
    """The order, delay and decisions of the person's answers."""

    last_first: bool = False
    """Whether the person answers the latest question first."""
    patience: float = 0.0
    """Seconds before each answer."""
    decide: Callable[[], str] = lambda: "approve"


EASY = Person()


async def answer_all(runner: TaskRunner, task: Task, ledger: Ledger, fuse: Fuse, person: Person = EASY) -> Task:
    """Answer the questions of a task until the task has ended."""
    with anyio.fail_after(SECONDS):
        while not task.is_over:
            await anyio.sleep(person.patience)
            if not task.open_requests:
                task = await runner.wait_for_change(task)
                continue
            name = list(task.open_requests)[-1 if person.last_first else 0]
            item = dict(task.row.asked[name])
            fuse.event()
            await runner.answer(task, {name: answer_to(item, person.decide)})
            ledger.answers.write(json.dumps([item.get("step"), item["request"]["params"]["message"]]))
            fuse.event()
            task = await runner.find(task.id, task.principal)
    return task


async def answer_while_down(folder: Path, url: str | None, ledger: Ledger) -> None:
    """Answer the task's open questions while no process runs the task."""
    records = Records(StateFolder(folder), audit_days=1, url=url)
    try:
        rows = await records.tasks()
        for row in await rows.all_of():
            for name, item in row.asked.items():
                if name in Task(row).open_requests:
                    await rows.answer(row.id, {name: answer_to(item, EASY.decide)})
                    ledger.answers.write(json.dumps([item.get("step"), item["request"]["params"]["message"]]))
    finally:
        await records.aclose()


@dataclass
class Ended:
    """How a task ended that was killed on the way."""

    task: Task
    events: int
    """Events of the last process."""
    kills: int

    @property
    def texts(self) -> list[str]:
        """The texts of the result, sorted, because outputs of one round may come in any order."""
        assert self.task.result is not None, self.task.error
        return sorted(str(block["text"]) for block in self.task.result["content"])


async def _attempt(folder: Path, url: str | None, work: Work, ledger: Ledger, fuse: Fuse, person: Person) -> Task:
    async with running(folder, work(ledger, fuse), url=url) as runner:
        known = await runner.all_of("local")
        task = known[0] if known else await runner.start("x", {}, ASKABLE)
        return await answer_all(runner, task, ledger, fuse, person)


def run_killed(
    folder: Path,
    work: Work,
    ledger: Ledger,
    kills: Sequence[int],
    person: Person = EASY,
    *,
    url: str | None = None,
    answer_down: bool = False,
) -> Ended:
    """Run the work as a task: each number of `kills` is a process that dies at that event; the last process finishes the task.

    With `answer_down` the person answers what is open after each kill, before the next process starts.
    """
    done = 0
    for number in kills:

        async def once(number: int = number) -> None:
            await _attempt(folder, url, work, ledger, Fuse(number), person)

        if in_a_process(once) != signal.SIGKILL:
            break
        done += 1
        if answer_down:
            anyio.run(answer_while_down, folder, url, ledger)
    fuse = Fuse()
    task = anyio.run(_attempt, folder, url, work, ledger, fuse, person)
    return Ended(task, fuse.events, done)
