"""`WorkflowFile`: the format of `<name>.workflow.yaml`.

A file is either a graph (`executors`, `start`, `edges`, `output`) or points to one in code (`python`). Only shapes
live here: files are read by `loader`, judged by `checks`, built and run by `steps`. Used by those, and by the CLI
for the JSON Schema.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import TaskSupport

KINDS = ("agent", "tool", "python")
"""Keys that say what an executor is; it has exactly one of them."""


def _matching(pattern: str, words: str) -> tuple[AfterValidator, Any]:
    """Text of a given form, refused in plain words; the pattern goes into the JSON Schema."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.match(value):
            raise ValueError(f"{value!r} is not {words}")
        return value

    return AfterValidator(check), Field(json_schema_extra={"pattern": pattern})


_NAME, _NAME_SCHEMA = _matching(r"^[A-Za-z0-9_-]{1,50}$", "a name: use up to 50 letters, digits, '_' and '-'")
_TOOL, _TOOL_SCHEMA = _matching(r"^[A-Za-z0-9_-]+/[^\s*?\[\]]+$", "one tool: write source/tool, e.g. docs/search")
_FUNCTION, _FUNCTION_SCHEMA = _matching(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", "a function: write package.module:function")

NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,49}$")
"""Names that templates can refer to: inputs and executors."""


class Closed(BaseModel):
    """Base of the file's objects: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class AgentStep(Closed):
    """Asks an agent."""

    agent: Annotated[str, _NAME, _NAME_SCHEMA]
    """Name of the agent."""
    prompt: str | None = None
    """What to ask, a template; left out, the agent gets what the executors before it gave."""
    output: dict[str, JsonObject] | None = None
    """Fields the answer must have, each with its JSON Schema; the answer then is an object instead of text."""


class ToolStep(Closed):
    """Calls a tool."""

    tool: Annotated[str, _TOOL, _TOOL_SCHEMA]
    """The tool as `source/tool`; also `workflow/NAME`, `function/NAME` and `skill/NAME`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments; texts are templates, and a text that is one reference keeps the JSON type of its value."""
    output: dict[str, JsonObject] | None = None
    """Fields the result must have, each with its JSON Schema."""


class PythonStep(Closed):
    """Calls a Python function."""

    python: Annotated[str, _FUNCTION, _FUNCTION_SCHEMA]
    """The function as `package.module:function`; modules beside the configuration file are found too."""
    arguments: dict[str, JsonValue] | None = None
    """Its arguments, as those of a tool; left out, a function with one parameter gets what came before."""
    output: dict[str, JsonObject] | None = None
    """Fields the result must have, each with its JSON Schema."""


Step = AgentStep | ToolStep | PythonStep

STEP_MODELS: dict[str, type[AgentStep] | type[ToolStep] | type[PythonStep]] = {"agent": AgentStep, "tool": ToolStep, "python": PythonStep}
"""The model of each kind."""


def step_kind(value: Any) -> str | None:
    """Which of `KINDS` an executor is, as written or as read; `None` when it does not say."""
    if isinstance(value, Closed):
        return next(kind for kind, model in STEP_MODELS.items() if isinstance(value, model))
    keys = cast("JsonObject", value) if isinstance(value, dict) else {}
    return next((kind for kind in KINDS if kind in keys), None)


AnyStep = Annotated[
    Annotated[AgentStep, Tag("agent")] | Annotated[ToolStep, Tag("tool")] | Annotated[PythonStep, Tag("python")],
    Discriminator(step_kind),
]


class EdgeEntry(Closed):
    """From one executor to the next."""

    source: str = Field(alias="from")
    """Executor whose output goes along this edge."""
    target: str = Field(alias="to")
    """Executor that runs next."""
    when: dict[str, JsonValue] | None = Field(default=None, min_length=1)
    """Fields of the output and the values they must all have; left out, the edge is always taken."""
    max: int | None = Field(default=None, ge=1)
    """How often one run may take this edge; left out, any number of times."""


class WorkflowFile(Closed):
    """A workflow: a graph of agents, tools and functions, or one written in Python."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["executors", "start"]}, {"required": ["python"]}]})

    name: Annotated[str, _NAME, _NAME_SCHEMA]
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
    python: Annotated[str, _FUNCTION, _FUNCTION_SCHEMA] | None = None
    """A graph in code instead: `package.module:workflow`, a `Workflow` or a function that returns one."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run it in the background."""

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
        sources = {edge.source for edge in self.edges}
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
