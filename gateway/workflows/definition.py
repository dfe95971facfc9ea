"""`WorkflowFile`: the format of `<name>.workflow.yaml`.

A file contains a graph (`executors`, `start`, `edges`, `output`), an orchestration (`team_definition`), or a reference to a workflow in
code (`python`). `loader` reads files, `file_rules` checks them, `plan` and `file_graph` build them. The CLI makes the JSON Schema of these
models, with their docstrings as descriptions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Discriminator, Field, Tag

from gateway.config.executes import RunEntry, file_entry
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import TaskSupport
from gateway.workflows.field_types import Closed, FunctionName, Name, Names, OneOrMore, ToolName
from gateway.workflows.team_definition import (
    TEAM_FUNCTIONS,
    ConcurrentTeam,
    GroupChatTeam,
    HandoffTeam,
    MagenticTeam,
    SequentialTeam,
    Team,
)

KINDS = ("agent", "tool", "python", "workflow", "ask")
"""Keys that say what an executor is. Each executor has exactly one of them."""


NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,49}$")
"""Names that templates can refer to: inputs and executors."""


class AgentStep(Closed):
    """Asks an agent."""

    agent: Name
    """Name of the agent."""
    prompt: str | None = None
    """The question, as a template. By default the agent gets the outputs of the executors before it."""
    output: dict[str, JsonObject] | None = None
    """Fields that the answer must have, each with its JSON Schema. The answer is then an object instead of text."""


class ToolStep(Closed):
    """Calls a tool."""

    tool: ToolName
    """The tool as `source/tool`; also `workflow/NAME`, `function/NAME` and `skill/NAME`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the tool. Texts are templates; a text that is a single reference keeps the JSON type of its value."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class PythonStep(Closed):
    """Calls a Python function."""

    python: FunctionName
    """The function as `package.module:function`. Modules in the configuration file's folder can be imported too."""
    arguments: dict[str, JsonValue] | None = None
    """Arguments of the function, as for a tool. By default the only parameter gets the output of the executors before."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class WorkflowStep(Closed):
    """Runs another workflow. Its questions go to the caller of this workflow."""

    workflow: Name
    """Name of the workflow."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Input of the workflow, as the arguments of a tool."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class AskStep(Closed):
    """Asks a person and waits for the answer."""

    ask: str = Field(min_length=1)
    """The question, as a template."""
    output: dict[str, JsonObject] | None = None
    """Fields of the answer, each with the JSON Schema of a single value: text, number, boolean or `enum`. By default one text."""


Step = AgentStep | ToolStep | PythonStep | WorkflowStep | AskStep

STEP_MODELS: dict[str, type[Step]] = {
    "agent": AgentStep,
    "tool": ToolStep,
    "python": PythonStep,
    "workflow": WorkflowStep,
    "ask": AskStep,
}
"""The model of each kind of executor."""


def step_kind(value: Any) -> str | None:
    """Return the kind of an executor, as raw YAML or as a model; `None` if it has no key of `KINDS`."""
    if isinstance(value, Closed):
        return next(kind for kind, model in STEP_MODELS.items() if isinstance(value, model))
    keys = cast("JsonObject", value) if isinstance(value, dict) else {}
    return next((kind for kind in KINDS if kind in keys), None)


AnyStep = Annotated[
    Annotated[AgentStep, Tag("agent")]
    | Annotated[ToolStep, Tag("tool")]
    | Annotated[PythonStep, Tag("python")]
    | Annotated[WorkflowStep, Tag("workflow")]
    | Annotated[AskStep, Tag("ask")],
    Discriminator(step_kind),
]


class CaseEntry(Closed):
    """One case of a switch."""

    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Output fields and the values that they must have. The last case has no `when` and matches everything else."""
    to: str
    """The executor that runs next."""


EdgeKind = Literal["single", "fan-out", "fan-in", "switch", "select"]


class EdgeEntry(Closed):
    """An edge from one executor to the next, from one to several, or from several to one."""

    sources: OneOrMore = Field(alias="from")
    """The executor whose output goes along this edge. With a list, the target runs when all of them have an output."""
    targets: OneOrMore = Field(default=(), alias="to")
    """The executor that runs next. With a list, all of them run."""
    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Output fields and the values that they must have. By default the edge is always taken."""
    max: int | None = Field(default=None, ge=1)
    """How often one run may take this edge. Unlimited by default."""
    switch: list[CaseEntry] | None = Field(default=None, min_length=2)
    """Cases instead of `to`. The first matching case says what runs next."""
    select: str | None = None
    """The output field that names which executors of `to` run next: an id or a list of ids."""

    @property
    def kind(self) -> EdgeKind:
        """The kind of edge."""
        if self.switch is not None:
            return "switch"
        if self.select is not None:
            return "select"
        if len(self.sources) > 1:
            return "fan-in"
        return "fan-out" if len(self.targets) > 1 else "single"

    @property
    def source(self) -> str:
        """The source; the first source of a fan-in."""
        return self.sources[0]

    @property
    def target(self) -> str:
        """The target; the first target of a fan-out."""
        return self.targets[0]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of source and target that the edge connects."""
        targets = self.targets if self.switch is None else tuple(dict.fromkeys(case.to for case in self.switch))
        return [(source, target) for source in self.sources for target in targets]

    @property
    def is_always_taken(self) -> bool:
        """Whether the edge carries every message."""
        return self.when is None and self.max is None and self.switch is None and self.select is None


TEAM_KEYS = ("sequential", "concurrent", "group-chat", "handoff", "magentic")
"""Keys of orchestrations."""


class WorkflowFile(Closed):
    """A workflow: a graph of agents, tools and functions, an orchestration of agents, or a graph written in Python."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["executors", "start"]}, *({"required": [key]} for key in ("python", *TEAM_KEYS))]}
    )

    name: Name
    """Name of the workflow and of its tool."""
    description: str = Field(min_length=1)
    """What the workflow does and when to use it. Models read it."""
    input: dict[str, JsonObject] = Field(default_factory=dict)
    """Arguments of the tool, each with its JSON Schema. An argument is required unless its schema has a `default`."""
    executors: dict[str, AnyStep] | None = None
    """The nodes of the graph, by id."""
    start: str | None = None
    """The executor that runs first."""
    edges: list[EdgeEntry] = Field(default_factory=list[EdgeEntry])
    """What runs after what. Executors reached in the same round run concurrently, each once."""
    output: str | None = None
    """The executor whose last output is the result. May be omitted if only one executor has no outgoing edge."""
    output_from: Names | None = Field(default=None, alias="output-from")
    """Instead of `output`: the executors or participants whose outputs are all part of the result, or `all`."""
    intermediate_output_from: Names | None = Field(default=None, alias="intermediate-output-from")
    """Executors or participants whose outputs are reported as progress: a list, `all` or `all_other`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1, le=10_000)
    """Maximum number of rounds of a run. The default is 100."""
    sequential: SequentialTeam | None = None
    """An orchestration: participants run one after the other, each with the conversation so far."""
    concurrent: ConcurrentTeam | None = None
    """An orchestration: all participants get the same message at once, and their answers are combined."""
    group_chat: GroupChatTeam | None = Field(default=None, alias="group-chat")
    """An orchestration: a conversation in which a function or an agent chooses the next speaker."""
    handoff: HandoffTeam | None = None
    """An orchestration: participants hand the conversation over to each other, or ask the user."""
    magentic: MagenticTeam | None = None
    """An orchestration: a manager makes a plan, follows the progress and plans again."""
    prompt: str | None = None
    """The task of an orchestration, as a template of the input. By default the only argument, or all arguments."""
    python: FunctionName | None = None
    """A workflow in code as `package.module:name`: a `Workflow`, a function with steps, or a function that returns either."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run the workflow in the background."""

    @property
    def python_references(self) -> set[str]:
        """Every Python object that the file names, as `module:name`."""
        named = [self.python, *(step.python for step in self.steps.values() if isinstance(step, PythonStep))]
        named += [getattr(self.team, key, None) for key in TEAM_FUNCTIONS]
        return {reference for reference in named if reference is not None and ":" in reference}

    def run_entry(self, path: Path) -> RunEntry | None:
        """Return what a person must accept before the Python names of the file at `path` are imported; `None` if it has none."""
        names = self.python_references
        return file_entry(f"workflow/{self.name}", path, self.model_dump(mode="json", exclude_defaults=True), names) if names else None

    @property
    def team(self) -> Team | None:
        """The orchestration; `None` if the file has none."""
        return self.sequential or self.concurrent or self.group_chat or self.handoff or self.magentic

    @property
    def steps(self) -> dict[str, Step]:
        """The executors by id; empty for a workflow in code."""
        return self.executors or {}

    @property
    def output_id(self) -> str:
        """The id of the executor whose output is the result."""
        return self.output or self.last_ids[0]

    @property
    def last_ids(self) -> list[str]:
        """Ids of the executors without an outgoing edge."""
        sources = {source for edge in self.edges for source in edge.sources}
        return [name for name in self.steps if name not in sources]


def object_schema(fields: dict[str, JsonObject], *, is_closed: bool) -> JsonObject:
    """Return the schema of an object with these fields. A field with a `default` is optional."""
    schema: JsonObject = {"type": "object", "properties": dict(fields)}
    required = [name for name, field in fields.items() if "default" not in field]
    if required:
        schema["required"] = required
    if is_closed:
        schema["additionalProperties"] = False
    return schema
