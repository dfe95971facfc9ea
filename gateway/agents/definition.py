"""`AgentFile`: the format of `<name>.agent.md`, and reading one.

YAML frontmatter with the prompt as the Markdown body, as other hosts have it; plain `*.md` files load too, so a
folder made for another host works. Only shapes and their errors live here; `source` runs what they say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from gateway.config.agents import FileAccess as AgentFiles
from gateway.config.agents import FlowSecurity, MiddlewareEntry, checked_middleware, checked_reference, reference_of
from gateway.config.base import FileModel
from gateway.config.documents import DocumentError, load_mapping, read_document, split_frontmatter
from gateway.config.executes import RunEntry, file_entry
from gateway.config.problems import problems_of
from gateway.config.suggest import did_you_mean
from gateway.errors import AgentError
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import TaskSupport

FOREIGN_KEYS = frozenset(
    {
        "argument-hint",
        "background",
        "color",
        "disallowedTools",
        "effort",
        "handoffs",
        "hooks",
        "infer",
        "isolation",
        "kind",
        "mcp-servers",
        "mcpServers",
        "mode",
        "permission",
        "permissionMode",
        "target",
        "temperature",
        "timeout_mins",
        "version",
    }
)
"""Keys other hosts use in the same files; ignored with a note, because they say nothing about running here."""

_ALIASES = {"max_turns": "max-turns", "maxTurns": "max-turns", "steps": "max-turns"}
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,50}$")


class _Part(FileModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WindowCompaction(_Part):
    """Keep within a model's context window: first old tool results are collapsed, then the oldest messages go."""

    strategy: Literal["context-window"]
    """`context-window`."""
    max_tokens: int = Field(ge=100, alias="max-tokens")
    """The model's context window, in tokens."""
    output_tokens: int = Field(default=4096, ge=0, alias="output-tokens")
    """Of that, room for the answer."""

    @model_validator(mode="after")
    def _leaves_room(self) -> WindowCompaction:
        if self.output_tokens >= self.max_tokens:
            raise ValueError("output-tokens must be less than max-tokens, which is the whole window")
        return self


class KeepingCompaction(_Part):
    """Keep only the newest part of the conversation, of some kind."""

    strategy: Literal["sliding-window", "tool-results", "tool-calls"]
    """`sliding-window` drops older turns, `tool-calls` older tool calls, `tool-results` says in a line what older tool calls gave."""
    keep: int = Field(default=20, ge=1)
    """Newest groups that stay: a message, or a tool call with its results."""


class SummaryCompaction(_Part):
    """Let the agent's model summarise the older part of the conversation."""

    strategy: Literal["summarization"]
    """`summarization`."""
    keep: int = Field(default=4, ge=1)
    """About how many of the newest messages stay as they are."""
    threshold: int = Field(default=2, ge=0)
    """How many more there may be before it happens."""


Compaction = Annotated[WindowCompaction | KeepingCompaction | SummaryCompaction, Field(discriminator="strategy")]


class RemoteAgent(_Part):
    """An agent that runs elsewhere: exactly one of its two addresses."""

    a2a: str | None = None
    """Base URL of an agent that speaks A2A; its card lies at `/.well-known/agent-card.json` below it."""
    ag_ui: str | None = Field(default=None, alias="ag-ui")
    """URL of an AG-UI endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request; `${VAR}`, `${file:PATH}` and `${keyring:SERVICE/USER}` are replaced, and are secrets."""

    @model_validator(mode="after")
    def _check(self) -> RemoteAgent:
        if (self.a2a is None) == (self.ag_ui is None):
            raise ValueError("needs exactly one of `a2a` and `ag-ui`")
        url = self.a2a or self.ag_ui or ""
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not an http(s) URL")
        return self


class LoopUntil(_Part):
    """Run the agent again until a second model says that the task is done."""

    criteria: list[str] = Field(min_length=1)
    """What the answer must satisfy; told to the agent and to the judge."""
    judge: str | None = None
    """The judge's model, as in `model`; left out: the agent's own."""
    max: int = Field(default=5, ge=1, le=20)
    """Runs at most."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class FileAccess(AgentFiles):
    """Tools for the files of a folder."""

    model_config = ConfigDict(alias_generator=_dashed)


class Security(FlowSecurity):
    """What may be called after content that somebody outside may have written; globs over `<source>/<tool>`. Experimental."""

    model_config = ConfigDict(alias_generator=_dashed)


class MemoryKey(_Part):
    """What is said is remembered beyond its session, and what fits a later task is put before it."""

    embedding: str = "openai:text-embedding-3-small"
    """Model that says what texts mean, at the endpoint of the agents' models: `openai:NAME`."""
    top: int = Field(default=5, ge=1, le=50)
    """Memories put before a task at most."""
    min_similarity: float = Field(default=0.3, ge=-1, le=1, alias="min-similarity")
    """How near a memory must be, as a cosine."""
    shared: bool = False
    """One memory for all callers, instead of one for each."""
    answers: bool = False
    """Remember the agent's answers too, beside what it was told."""


class LoopLimits(_Part):
    """Limits of the loop of model and tool calls (`docs/agent-loop.md`); what is left out is as there."""

    max_function_calls: int | None = Field(default=None, ge=1, alias="max-function-calls")
    """Tool calls of one run; then tools are off."""
    max_consecutive_errors: int | None = Field(default=None, ge=0, alias="max-consecutive-errors")
    """Batches in a row with a failing call, before tools are off; 3 where left out."""
    terminate_on_unknown_calls: bool | None = Field(default=None, alias="terminate-on-unknown-calls")
    """End the run with an error when the model calls a tool that does not exist."""
    include_detailed_errors: bool | None = Field(default=None, alias="include-detailed-errors")
    """Let the model read what an unexpected exception of a tool says."""

    def to_limits(self, *, by_alias: bool = False) -> JsonObject:
        """What is set, in the names of `LoopOptions`, or with `by_alias` in those of the file."""
        values = self.model_dump(exclude_none=True, by_alias=by_alias)
        if not by_alias and "max_consecutive_errors" in values:
            values["max_consecutive_errors_per_request"] = values.pop("max_consecutive_errors")
        return values


OPTION_PARAMETERS: dict[str, JsonObject] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": "How freely the model answers."},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "The share of likely words the model chooses from."},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "Length of each answer of the model at most."},
    "seed": {"type": "integer", "description": "The same seed makes similar answers."},
    "stop": {"type": "array", "items": {"type": "string"}, "maxItems": 4, "description": "Texts at which the model stops."},
}
"""Options of a model that an agent may let its callers set, as arguments of its tool."""


class AgentFile(FileModel):
    """The frontmatter of an agent file. The body below it is the agent's instructions."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str
    """Name of the agent: letters, digits, `_` and `-`, at most 50. Left out: the file's name."""
    description: str
    """What it does and when to use it; clients choose by this."""
    model: str = "auto"
    """`auto`, `openai:NAME` (Responses API) or `openai-chat:NAME` (Chat Completions)."""
    tools: list[str] = Field(default_factory=list)
    """Tools it may use, as `<source>/<glob>`: `docs/read_*`, `agent/editor`, `function/now`. Left out: none."""
    skills: list[str] = Field(default_factory=list)
    """Names of skills it is told about; it loads them with the skill tools."""
    narrow_to_skills: bool = Field(default=False, alias="narrow-to-skills")
    """Take away those of its tools that no skill of its `skills` names in `allowed-tools`; a skill without the field wants all."""
    max_turns: int = Field(default=12, ge=1, le=200, alias="max-turns")
    """Model calls of one run at most; the last is made without tools."""
    remote: RemoteAgent | None = None
    """Where the agent runs, when not here. It brings its own model and tools; an A2A agent its own instructions too."""
    loop: LoopLimits = Field(default_factory=LoopLimits)
    """Further limits of a run."""
    middleware: list[MiddlewareEntry] = Field(default_factory=list[MiddlewareEntry])
    """Middleware and lifecycle hooks, as `module:name` or `{module:name: arguments}`; the first is the outermost."""
    options: JsonObject = Field(default_factory=lambda: cast("JsonObject", {}))
    """Options for the model, such as `temperature`."""
    parameters: list[Literal["temperature", "top_p", "max_tokens", "seed", "stop"]] = Field(default_factory=lambda: cast("list[Any]", []))
    """Options that callers may set, as arguments of the agent's tool."""
    attachments: bool = True
    """Whether callers may give images, audio, files and links with a task."""
    output: JsonObject | None = None
    """JSON Schema of an object the answer must be; the tool then has structured output."""
    history: Literal["database", "none"] = "database"
    """Whether callers may have sessions with it, kept in the gateway's database."""
    session_ttl: float | None = Field(default=None, gt=0, alias="session-ttl")
    """Seconds after the last turn until a session is forgotten; left out: `sessions.ttlSeconds` of the configuration."""
    compaction: Compaction | None = None
    """What the model no longer sees of a conversation that grew long; left out: it sees everything."""
    memory: MemoryKey | None = None
    """What it remembers beyond a session."""
    context_providers: list[str] = Field(default_factory=list, alias="context-providers")
    """Context providers of your own, as `module:name` of an object or of what makes one; in the order they run."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run it in the background."""

    loop_until: LoopUntil | None = Field(default=None, alias="loop-until")
    """Run it again until a judge finds the task done."""
    files: FileAccess | None = None
    """A folder whose files it may use, with the tools `file_access_*`."""
    security: Security | None = None
    """What it may call after it has read what others may have written. Experimental."""

    @property
    def python_references(self) -> set[str]:
        """Everything that it names in Python, as `module:name`."""
        return {*map(reference_of, self.middleware), *self.context_providers}

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"{value!r} is not a name: use up to 50 letters, digits, '_' and '-'")
        return value

    @field_validator("description")
    @classmethod
    def _check_description(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must say what the agent does and when to use it")
        return value.strip()

    @model_validator(mode="after")
    def _check_remote(self) -> AgentFile:
        """A remote agent has its own model, tools and skills."""
        idle = sorted(self.model_fields_set & {"model", "tools", "skills", "max_turns"}) if self.remote is not None else []
        if idle:
            keys = ", ".join(f"`{name.replace('_', '-')}`" for name in idle)
            raise ValueError(f"{keys} can say nothing about a remote agent; leave them out")
        return self

    @field_validator("tools", "skills", "context_providers", "middleware", "parameters", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Other hosts write lists as `a, b`."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("middleware")
    @classmethod
    def _check_middleware(cls, value: list[MiddlewareEntry]) -> list[MiddlewareEntry]:
        return checked_middleware(value)

    @field_validator("context_providers")
    @classmethod
    def _check_context(cls, value: list[str]) -> list[str]:
        return [checked_reference(reference) for reference in value]


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """An agent file that was read."""

    file: AgentFile
    instructions: str
    path: Path
    notes: list[str]
    """What was ignored, for the log."""

    @property
    def run_entry(self) -> RunEntry | None:
        """What must be accepted before the file's Python names are imported; `None` if it has none."""
        names = self.file.python_references
        content: JsonObject = {"file": self.file.model_dump(mode="json", exclude_defaults=True), "instructions": self.instructions}
        return file_entry(f"agent/{self.file.name}", self.path, content, names) if names else None


def read_agent(path: Path) -> AgentDefinition:
    """Read one agent file.

    Raises:
        AgentError: It cannot be used; the text names the file, the key and the fix.
    """
    try:
        parts = split_frontmatter(read_document(path).decode())
        header = load_mapping(parts.header)
    except DocumentError as error:
        raise AgentError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise AgentError(f"{path}: is not UTF-8 text.") from None
    except OSError as error:
        raise AgentError(f"{path}: cannot be read: {error.strerror}.") from None
    notes: list[str] = []
    values = _own_keys(header, path, notes)
    values.setdefault("name", path.name.removesuffix(".md").removesuffix(".agent"))
    if not parts.body.strip() and "remote" not in values:
        raise AgentError(f"{path}: has no instructions; write them below the second `---` line.")
    try:
        file = AgentFile.model_validate(values)
    except ValidationError as error:
        raise AgentError(f"{path}: {'; '.join(problem.line() for problem in problems_of(error, AgentFile))}") from None
    return AgentDefinition(file, parts.body.strip(), path, notes)


def _own_keys(header: JsonObject, path: Path, notes: list[str]) -> JsonObject:
    """The keys that mean something here, in our spelling."""
    known = {field.alias or name for name, field in AgentFile.model_fields.items()}
    values: JsonObject = {}
    for key, value in header.items():
        name = _ALIASES.get(key, key)
        if name == "memory" and not isinstance(value, dict):
            notes.append(f"{path}: key {key!r} as text belongs to another host and is ignored")
        elif name in known:
            values[name] = _plain(name, value)
        elif key in FOREIGN_KEYS:
            notes.append(f"{path}: key {key!r} belongs to another host and is ignored")
        else:
            raise AgentError(f"{path}: unknown key {key!r}. {did_you_mean(key, known)}".rstrip())
    return values


def _plain(name: str, value: JsonValue) -> JsonValue:
    """Values as other hosts write them: a tool map becomes the list of what is switched on."""
    if name == "tools" and isinstance(value, dict):
        return [key for key, on in cast("JsonObject", value).items() if on]
    return value
