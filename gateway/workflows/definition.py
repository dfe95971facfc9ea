"""`WorkflowFile`: the format of `<name>.workflow.yaml`.

A file is a graph (`executors`, `start`, `edges`, `output`), an orchestration (`team_files`), or points to a graph in code
(`python`). Only shapes live here: files are read by `loader`, judged by `checks`, built by `plan` and run by `steps`. Used
by those, and by the CLI for the JSON Schema.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Discriminator, Field, Tag

from gateway.config.executes import RunEntry, file_entry
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import TaskSupport
from gateway.workflows.shapes import FUNCTION, FUNCTION_SCHEMA, NAME, NAME_SCHEMA, TOOL, TOOL_SCHEMA, Closed, Names, OneOrMore
from gateway.workflows.team_files import (
    TEAM_FUNCTIONS,
    ConcurrentTeam,
    GroupChatTeam,
    HandoffTeam,
    MagenticTeam,
    SequentialTeam,
    Team,
)

KINDS = ("agent", "tool", "python", "workflow", "ask")
"""Keys that say what an executor is; it has exactly one of them."""


NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,49}$")
"""Names that templates can refer to: inputs and executors."""


class AgentStep(Closed):
    """Asks an agent."""

    agent: Annotated[str, NAME, NAME_SCHEMA]
    """Name of the agent."""
    prompt: str | None = None
    """What to ask, a template; left out, the agent gets what the executors before it gave."""
    output: dict[str, JsonObject] | None = None
    """Fields the answer must have, each with its JSON Schema; the answer then is an object instead of text."""


class ToolStep(Closed):
    """Calls a tool."""

    tool: Annotated[str, TOOL, TOOL_SCHEMA]
    """The tool as `source/tool`; also `workflow/NAME`, `function/NAME` and `skill/NAME`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments; texts are templates, and a text that is one reference keeps the JSON type of its value."""
    output: dict[str, JsonObject] | None = None
    """Fields the result must have, each with its JSON Schema."""


class PythonStep(Closed):
    """Calls a Python function."""

    python: Annotated[str, FUNCTION, FUNCTION_SCHEMA]
    """The function as `package.module:function`; modules beside the configuration file are found too."""
    arguments: dict[str, JsonValue] | None = None
    """Its arguments, as those of a tool; left out, a function with one parameter gets what came before."""
    output: dict[str, JsonObject] | None = None
    """Fields the result must have, each with its JSON Schema."""


class WorkflowStep(Closed):
    """Runs another workflow; what it asks goes to whoever runs this one."""

    workflow: Annotated[str, NAME, NAME_SCHEMA]
    """Name of the workflow."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its input, as the arguments of a tool."""
    output: dict[str, JsonObject] | None = None
    """Fields the result must have, each with its JSON Schema."""


class AskStep(Closed):
    """Asks a person, and waits for the answer."""

    ask: str = Field(min_length=1)
    """The question, a template."""
    output: dict[str, JsonObject] | None = None
    """Fields of the answer, each with the JSON Schema of one value: text, a number, true or false, or one of a list; left out, a text."""


Step = AgentStep | ToolStep | PythonStep | WorkflowStep | AskStep

STEP_MODELS: dict[str, type[Step]] = {
    "agent": AgentStep,
    "tool": ToolStep,
    "python": PythonStep,
    "workflow": WorkflowStep,
    "ask": AskStep,
}
"""The model of each kind."""


def step_kind(value: Any) -> str | None:
    """Which of `KINDS` an executor is, as written or as read; `None` when it does not say."""
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
    """Fields of the output and the values they must all have; the last case has none and takes what no other took."""
    to: str
    """Executor that runs next."""


EdgeKind = Literal["single", "fan-out", "fan-in", "switch", "select"]


class EdgeEntry(Closed):
    """From one executor to the next, from one to several, or from several to one."""

    sources: OneOrMore = Field(alias="from")
    """Executor whose output goes along this edge; of a list all, the next one runs when each of them has given something."""
    targets: OneOrMore = Field(default=(), alias="to")
    """Executor that runs next; of a list all."""
    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Fields of the output and the values they must all have; left out, the edge is always taken."""
    max: int | None = Field(default=None, ge=1)
    """How often one run may take this edge; left out, any number of times."""
    switch: list[CaseEntry] | None = Field(default=None, min_length=2)
    """Cases instead of `to`: the first that holds says what runs next."""
    select: str | None = None
    """Field of the output that names which of `to` run next: one id or a list of ids."""

    @property
    def kind(self) -> EdgeKind:
        """What sort of edge it is."""
        if self.switch is not None:
            return "switch"
        if self.select is not None:
            return "select"
        if len(self.sources) > 1:
            return "fan-in"
        return "fan-out" if len(self.targets) > 1 else "single"

    @property
    def source(self) -> str:
        """Its source; of a fan-in the first."""
        return self.sources[0]

    @property
    def target(self) -> str:
        """Its target; of a fan-out the first."""
        return self.targets[0]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Everything it connects."""
        targets = self.targets if self.switch is None else tuple(dict.fromkeys(case.to for case in self.switch))
        return [(source, target) for source in self.sources for target in targets]

    @property
    def is_always_taken(self) -> bool:
        """Whether nothing ever stops a message on it."""
        return self.when is None and self.max is None and self.switch is None and self.select is None


TEAM_KEYS = ("sequential", "concurrent", "group-chat", "handoff", "magentic")
"""Keys of orchestrations."""


class WorkflowFile(Closed):
    """A workflow: a graph of agents, tools and functions, an orchestration of agents, or a graph written in Python."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["executors", "start"]}, *({"required": [key]} for key in ("python", *TEAM_KEYS))]}
    )

    name: Annotated[str, NAME, NAME_SCHEMA]
    """Name of the workflow and of its tool."""
    description: str = Field(min_length=1)
    """What it does and when to use it; shown to models."""
    input: dict[str, JsonObject] = Field(default_factory=dict)
    """Arguments of the tool, each with its JSON Schema; required unless the schema has a `default`."""
    executors: dict[str, AnyStep] | None = None
    """The nodes of the graph, by id."""
    start: str | None = None
    """Executor that runs first."""
    edges: list[EdgeEntry] = Field(default_factory=list[EdgeEntry])
    """What runs after what. Executors reached in one round run at the same time, each once."""
    output: str | None = None
    """Executor whose last output is the result; may be left out when only one has no outgoing edge."""
    output_from: Names | None = Field(default=None, alias="output-from")
    """Instead of `output`: executors or participants whose outputs, all of them, are the result; or `all`."""
    intermediate_output_from: Names | None = Field(default=None, alias="intermediate-output-from")
    """Those whose outputs are told as progress: a list, `all` or `all_other`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1, le=10_000)
    """Rounds after which a run counts as endless; left out, 100."""
    sequential: SequentialTeam | None = None
    """An orchestration: one after the other, each with what was said before."""
    concurrent: ConcurrentTeam | None = None
    """An orchestration: all at once on the same message, then their answers together."""
    group_chat: GroupChatTeam | None = Field(default=None, alias="group-chat")
    """An orchestration: a conversation in which somebody chooses who speaks next."""
    handoff: HandoffTeam | None = None
    """An orchestration: the conversation is passed on, and the user asked otherwise."""
    magentic: MagenticTeam | None = None
    """An orchestration: a manager plans, follows the progress and plans again."""
    prompt: str | None = None
    """What an orchestration is asked, a template of the input; left out: the only argument, or all of them."""
    python: Annotated[str, FUNCTION, FUNCTION_SCHEMA] | None = None
    """A workflow in code instead: `package.module:workflow`, a `Workflow`, a function with steps, or one that returns either."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run it in the background."""

    @property
    def python_references(self) -> set[str]:
        """Everything that it names in Python, as `module:name`."""
        named = [self.python, *(step.python for step in self.steps.values() if isinstance(step, PythonStep))]
        named += [getattr(self.team, key, None) for key in TEAM_FUNCTIONS]
        return {reference for reference in named if reference is not None and ":" in reference}

    def run_entry(self, path: Path) -> RunEntry | None:
        """What must be accepted before the Python names of the file at `path` are imported; `None` if it has none."""
        names = self.python_references
        return file_entry(f"workflow/{self.name}", path, self.model_dump(mode="json", exclude_defaults=True), names) if names else None

    @property
    def team(self) -> Team | None:
        """The orchestration; `None` for other files."""
        return self.sequential or self.concurrent or self.group_chat or self.handoff or self.magentic

    @property
    def steps(self) -> dict[str, Step]:
        """The executors; none for a graph in code."""
        return self.executors or {}

    @property
    def output_id(self) -> str:
        """The executor whose output is the result."""
        return self.output or self.last_ids[0]

    @property
    def last_ids(self) -> list[str]:
        """Executors without an outgoing edge."""
        sources = {source for edge in self.edges for source in edge.sources}
        return [name for name in self.steps if name not in sources]


def object_schema(fields: dict[str, JsonObject], *, is_closed: bool) -> JsonObject:
    """The schema of an object with these fields; one with a `default` may be left out."""
    schema: JsonObject = {"type": "object", "properties": dict(fields)}
    required = [name for name, field in fields.items() if "default" not in field]
    if required:
        schema["required"] = required
    if is_closed:
        schema["additionalProperties"] = False
    return schema
