"""`WorkflowFile`: pydantic models of the file format `<name>.workflow.yaml`.

A file contains a graph (`executors`, `start`, `edges`, `output`), an orchestration of agents (`team_definition`), or a reference to a
workflow written in Python (`python`). `loader` reads files, `file_rules` checks them, `plan` and `file_graph` build their graphs. The CLI
generates a JSON Schema from these models, with their docstrings as descriptions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from gateway.config.executes import RunEntry, file_entry
from gateway.json_types import JsonObject, JsonValue, members_of
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
"""Keys of an executor in a workflow file that determine its kind. Each executor has exactly one of these keys."""


NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,49}$")
"""Pattern of the names of inputs and executors in a workflow file, so that templates such as `{{name}}` can refer to them."""


class AgentStep(Closed):
    """An executor that asks an agent and outputs its answer."""

    agent: Name
    """Name of the agent."""
    prompt: str | None = None
    """The agent's text, as a template with `{{name}}` references. Default: the outputs of the executors before it, or the input."""
    output: dict[str, JsonObject] | None = None
    """Fields that the agent's answer must have, each with its JSON Schema. The answer is then an object instead of text."""


class ToolStep(Closed):
    """An executor that calls a tool and outputs its result."""

    tool: ToolName
    """The tool as `source/tool`, such as `docs/search`; also `workflow/NAME`, `function/NAME` and `skill/NAME`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the tool. Strings are templates; a string that is only one `{{name}}` reference gets the JSON type of the value."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class PythonStep(Closed):
    """An executor that calls a Python function and outputs its result."""

    python: FunctionName
    """The function as `package.module:function`. Modules in the configuration file's folder can be imported too."""
    arguments: dict[str, JsonValue] | None = None
    """Arguments of the function, as for a tool. Default: the only parameter gets the outputs of the executors before it, or the input."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class WorkflowStep(Closed):
    """An executor that runs another workflow and outputs its result. Questions of that workflow go to the caller of this workflow."""

    workflow: Name
    """Name of the workflow."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Input of the other workflow, with templates as in the arguments of a tool."""
    output: dict[str, JsonObject] | None = None
    """Fields that the result must have, each with its JSON Schema."""


class AskStep(Closed):
    """An executor that asks a person, waits for the answer and outputs it."""

    ask: str = Field(min_length=1)
    """The question to the person, as a template with `{{name}}` references."""
    output: dict[str, JsonObject] | None = None
    """Fields of the person's answer, each with the JSON Schema of one value (text, number, boolean, `enum`). Without `output`, a text."""


Step = AgentStep | ToolStep | PythonStep | WorkflowStep | AskStep

STEP_MODELS: dict[str, type[Step]] = {
    "agent": AgentStep,
    "tool": ToolStep,
    "python": PythonStep,
    "workflow": WorkflowStep,
    "ask": AskStep,
}
"""Kind of executor (one of `KINDS`) → pydantic model of such an executor in a workflow file."""


def step_kind(value: Any) -> str | None:
    """Return the kind of an executor of a workflow file: the key that determines it, such as `agent` or `tool`.

    `value` is parsed YAML or a model. The result is `None` if the YAML contains none of the keys in `KINDS`.
    """
    if isinstance(value, Closed):
        return next(kind for kind, model in STEP_MODELS.items() if isinstance(value, model))
    return next((kind for kind in KINDS if kind in members_of(value)), None)


AnyStep = Annotated[
    Annotated[AgentStep, Tag("agent")]
    | Annotated[ToolStep, Tag("tool")]
    | Annotated[PythonStep, Tag("python")]
    | Annotated[WorkflowStep, Tag("workflow")]
    | Annotated[AskStep, Tag("ask")],
    Discriminator(step_kind),
]


class CaseEntry(Closed):
    """One case of an edge with `switch`: a condition, and the executor that runs if it is true."""

    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Output fields of the edge's source, and the values that they must have. The last case has no `when` and matches everything else."""
    to: str
    """Id of the executor that runs next if this case matches."""


EdgeKind = Literal["single", "fan-out", "fan-in", "switch", "select"]


class EdgeEntry(Closed):
    """An edge of the graph: from one executor to the next, from one executor to several, or from several executors to one."""

    sources: OneOrMore = Field(alias="from")
    """The executor whose output goes along this edge. With a list, the target runs when each of them has a new output."""
    targets: OneOrMore = Field(default=(), alias="to")
    """The executor that runs next. With a list, all listed executors run, or with `select` the selected ones."""
    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Output fields of the source, and the values that they must have for the edge to be taken. By default there is no condition."""
    max: int | None = Field(default=None, ge=1)
    """How often one run may take this edge. Unlimited by default."""
    switch: list[CaseEntry] | None = Field(default=None, min_length=2)
    """Cases instead of `to`. The first matching case determines the executor that runs next."""
    select: str | None = None
    """The output field whose value, an id or a list of ids, selects the executors of `to` that run next."""

    @property
    def kind(self) -> EdgeKind:
        """The kind of this edge, derived from its keys: `switch`, `select`, `fan-in` (several sources), `fan-out` or `single`."""
        if self.switch is not None:
            return "switch"
        if self.select is not None:
            return "select"
        if len(self.sources) > 1:
            return "fan-in"
        return "fan-out" if len(self.targets) > 1 else "single"

    @property
    def source(self) -> str:
        """Id of the executor at which this edge begins; the first id if there are several."""
        return self.sources[0]

    @property
    def target(self) -> str:
        """Id of the executor to which this edge leads; the first id if there are several. Not for edges with `switch`."""
        return self.targets[0]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of executor ids, source and target, that this edge connects."""
        targets = self.targets if self.switch is None else tuple(dict.fromkeys(case.to for case in self.switch))
        return [(source, target) for source in self.sources for target in targets]

    @property
    def is_always_taken(self) -> bool:
        """Whether this edge carries every output of its source: it has no condition, limit, `switch` or `select`."""
        return self.when is None and self.max is None and self.switch is None and self.select is None


TEAM_KEYS = ("sequential", "concurrent", "group-chat", "handoff", "magentic")
"""Keys of a workflow file that define an orchestration (agents that work together by a predefined pattern)."""


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
    """Arguments of the workflow's tool, each with its JSON Schema. An argument is required unless its schema has a `default`."""
    executors: dict[str, AnyStep] | None = None
    """The nodes of the graph, by id."""
    start: str | None = None
    """The executor that runs first."""
    edges: list[EdgeEntry] = Field(default_factory=list[EdgeEntry])
    """The edges, which determine the executors that run next. Executors reached in the same round run concurrently, each once."""
    output: str | None = None
    """The executor whose last output is the result. Optional with `output-from`, or if exactly one executor has no outgoing edge."""
    output_from: Names | None = Field(default=None, alias="output-from")
    """Instead of `output`: the executors or participants whose outputs are all part of the result, or `all`."""
    intermediate_output_from: Names | None = Field(default=None, alias="intermediate-output-from")
    """Executors or participants whose outputs are reported as progress: a list, `all` or `all_other`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1, le=10_000)
    """Maximum number of rounds of a run. In a round, all executors that edges have reached run concurrently. The default is 100."""
    sequential: SequentialTeam | None = None
    """An orchestration: participants run one after the other, each with the conversation so far."""
    concurrent: ConcurrentTeam | None = None
    """An orchestration: all participants get the same message and run concurrently, and their answers are combined."""
    group_chat: GroupChatTeam | None = Field(default=None, alias="group-chat")
    """An orchestration: a conversation in which a function or an agent chooses the next speaker."""
    handoff: HandoffTeam | None = None
    """An orchestration: participants hand the conversation over to each other, or ask the user."""
    magentic: MagenticTeam | None = None
    """An orchestration: a manager makes a plan, follows the progress and plans again."""
    prompt: str | None = None
    """The task that an orchestration gets, as a template with references to the input. Default: the only argument, or all of them."""
    python: FunctionName | None = None
    """A workflow in Python as `package.module:name`: a `Workflow`, a `@workflow` function, or a function that returns one of these."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run the workflow in the background."""
    runs_as: Literal["file", "caller"] = Field(default="file", alias="runs-as")
    """`file`: a run may use everything that the file names, whoever calls the workflow. `caller`: only what the caller may use, too."""

    @property
    def python_references(self) -> set[str]:
        """Every Python function and workflow that the file names, as `module:name`."""
        named = [self.python, *(step.python for step in self.steps.values() if isinstance(step, PythonStep))]
        named += [getattr(self.team, key, None) for key in TEAM_FUNCTIONS]
        return {reference for reference in named if reference is not None and ":" in reference}

    def run_entry(self, path: Path) -> RunEntry | None:
        """Return a description of the Python objects that this file names, for the person who must accept them before they are imported.

        A person must accept them because an import runs code. `path` is the file's path. The result is `None` if the file names no Python
        object.
        """
        names = self.python_references
        return file_entry(f"workflow/{self.name}", path, self.model_dump(mode="json", exclude_defaults=True), names) if names else None

    @property
    def team(self) -> Team | None:
        """The file's orchestration of agents, or `None` if it defines a graph or names a workflow in Python."""
        return self.sequential or self.concurrent or self.group_chat or self.handoff or self.magentic

    @property
    def steps(self) -> dict[str, Step]:
        """The executors of the graph, by id; empty for an orchestration and for a workflow in Python."""
        return self.executors or {}

    @property
    def output_id(self) -> str:
        """Id of the executor whose last output is the workflow's result: `output`, or the only executor without an outgoing edge.

        Only for graphs without `output-from`.
        """
        return self.output or self.last_ids[0]

    @property
    def last_ids(self) -> list[str]:
        """Ids of the executors of the graph that have no outgoing edge."""
        sources = {source for edge in self.edges for source in edge.sources}
        return [name for name in self.steps if name not in sources]


def object_schema(fields: dict[str, JsonObject], *, is_closed: bool) -> JsonObject:
    """Return the JSON Schema of an object with these fields, given as name → JSON Schema.

    A field is required unless its schema has a `default`. With `is_closed`, other fields are not allowed.
    """
    schema: JsonObject = {"type": "object", "properties": dict(fields)}
    required = [name for name, field in fields.items() if "default" not in field]
    if required:
        schema["required"] = required
    if is_closed:
        schema["additionalProperties"] = False
    return schema
