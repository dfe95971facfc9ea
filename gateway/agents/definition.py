"""`AgentFile`: the format of agent files (`<name>.agent.md`), and `read_agent`, which parses such a file.

An agent file has YAML frontmatter, and the agent's instructions as its Markdown body. Files named `*.md` that were written for other
programs load, too. The module `source` finds the files and creates the agents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from gateway.config.agents import FileAccess as AgentFiles
from gateway.config.agents import FlowSecurity, MiddlewareEntries, MiddlewareEntry, checked_reference, reference_of
from gateway.config.base_models import FileModel
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
"""Keys that other programs use in the same agent files. They are ignored with a log entry, because they do not apply to Moongate."""

_ALIASES = {"max_turns": "max-turns", "maxTurns": "max-turns", "steps": "max-turns"}
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,50}$")


class _Part(FileModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WindowCompaction(_Part):
    """Keep the conversation within the model's context window: collapse old tool results first, then drop the oldest messages."""

    strategy: Literal["context-window"]
    """`context-window` selects this way to shorten a conversation."""
    max_tokens: int = Field(ge=100, alias="max-tokens")
    """Size of the model's context window, in tokens."""
    output_tokens: int = Field(default=4096, ge=0, alias="output-tokens")
    """Tokens of the context window that are reserved for the answer."""

    @model_validator(mode="after")
    def _leaves_room(self) -> WindowCompaction:
        if self.output_tokens >= self.max_tokens:
            raise ValueError("output-tokens must be less than max-tokens, which is the size of the whole context window")
        return self


class KeepingCompaction(_Part):
    """Send only the newest part of a long conversation to the model."""

    strategy: Literal["sliding-window", "tool-results", "tool-calls"]
    """`sliding-window` drops older messages, `tool-calls` drops older tool calls, `tool-results` replaces older tool calls by lines."""
    keep: int = Field(default=20, ge=1)
    """Number of newest groups that stay unchanged.

    For `sliding-window`, a group is a message, or the tool calls of one model answer with their results; system messages stay in addition.
    The other strategies count and change only groups of tool calls."""


class SummaryCompaction(_Part):
    """Have the agent's model summarize the older part of a long conversation."""

    strategy: Literal["summarization"]
    """`summarization` selects this way to shorten a conversation."""
    keep: int = Field(default=4, ge=1)
    """Approximate number of newest messages that stay unchanged."""
    threshold: int = Field(default=2, ge=0)
    """A summary is written when the conversation has more than `keep` + `threshold` messages; system messages do not count."""


Compaction = Annotated[WindowCompaction | KeepingCompaction | SummaryCompaction, Field(discriminator="strategy")]


class RemoteAgent(_Part):
    """An agent that runs elsewhere; exactly one of `a2a` and `ag-ui` is set."""

    a2a: str | None = None
    """Base URL of an A2A agent; its agent card is at `/.well-known/agent-card.json` below the URL."""
    ag_ui: str | None = Field(default=None, alias="ag-ui")
    """URL of an AG-UI endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers of every request; `${VAR}`, `${file:PATH}` and `${keyring:SERVICE/USER}` are replaced by the secrets that they name."""

    @model_validator(mode="after")
    def _check(self) -> RemoteAgent:
        if (self.a2a is None) == (self.ag_ui is None):
            raise ValueError("needs exactly one of `a2a` and `ag-ui`")
        url = self.a2a or self.ag_ui or ""
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not an http(s) URL")
        return self


class LoopUntil(_Part):
    """Run the agent again until a judge model finds the task done."""

    criteria: list[str] = Field(min_length=1)
    """Criteria that the answer must meet; the agent and the judge receive them."""
    judge: str | None = None
    """Model of the judge, in the form of the agent file's key `model`. Default: the agent's own model."""
    max: int = Field(default=5, ge=1, le=20)
    """Maximum number of runs of the agent for one task."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class FileAccess(AgentFiles):
    """Settings of the tools with which the agent reads and writes the files of a folder."""

    model_config = ConfigDict(alias_generator=_dashed)


class Security(FlowSecurity):
    """Rules for tool calls after the agent has read untrusted content; globs over `<source>/<tool>` name the tools. Experimental."""

    model_config = ConfigDict(alias_generator=_dashed)


class MemoryKey(_Part):
    """Memory beyond a session: messages of callers are stored, and stored messages that match a later task are put before the task."""

    embedding: str = "openai:text-embedding-3-small"
    """Embedding model, as `openai:NAME`; it is called at the endpoint of the agents' models."""
    top: int = Field(default=5, ge=1, le=50)
    """Maximum number of stored messages that are put before a task."""
    min_similarity: float = Field(default=0.3, ge=-1, le=1, alias="min-similarity")
    """Minimum similarity of a stored message to the task, as a cosine."""
    shared: bool = False
    """Share one memory among all callers, instead of one per caller."""
    answers: bool = False
    """Store the agent's answers, too, not only the messages of callers."""


class LoopLimits(_Part):
    """Limits of the loop of model and tool calls (`docs/agent-loop.md`); the loop's defaults apply to limits that are left out."""

    max_function_calls: int | None = Field(default=None, ge=1, alias="max-function-calls")
    """Number of completed tool calls in one run after which the model is called once more without tools.

    It is checked before each model call, so the calls of one answer can exceed it. Calls that raise an exception do not count."""
    max_consecutive_errors: int | None = Field(default=None, ge=0, alias="max-consecutive-errors")
    """Number of consecutive model answers with a failing tool call after which the model is called without tools. Default: 3."""
    terminate_on_unknown_calls: bool | None = Field(default=None, alias="terminate-on-unknown-calls")
    """End the run with an error when the model calls an unknown tool."""
    include_detailed_errors: bool | None = Field(default=None, alias="include-detailed-errors")
    """Send the texts of unexpected exceptions in tools to the model."""

    def to_limits(self, *, by_alias: bool = False) -> JsonObject:
        """Return the limits that the agent file sets, named as in `LoopOptions`; with `by_alias`, named as in the file."""
        values = self.model_dump(exclude_none=True, by_alias=by_alias)
        if not by_alias and "max_consecutive_errors" in values:
            values["max_consecutive_errors_per_request"] = values.pop("max_consecutive_errors")
        return values


OPTION_PARAMETERS: dict[str, JsonObject] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": "Sampling temperature: higher values vary more."},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "Share of the likeliest words that the model samples."},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "Maximum length of each model answer, in tokens."},
    "seed": {"type": "integer", "description": "Calls with the same seed give similar answers."},
    "stop": {"type": "array", "items": {"type": "string"}, "maxItems": 4, "description": "Texts at which the model stops."},
}
"""Model options that an agent file may expose as arguments of the agent's tool; maps the name of the option to its JSON Schema."""


class AgentFile(_Part):
    """The frontmatter of an agent file; the body below it contains the agent's instructions."""

    name: str
    """Name of the agent: at most 50 letters, digits, `_` and `-`. Default: the file's name without `.agent.md` or `.md`."""
    description: str
    """What the agent does and when to use it; clients select agents by this text."""
    model: str = "auto"
    """Model of the agent: `openai:NAME` (Responses API), `openai-chat:NAME` (Chat Completions API) or `auto`.

    `auto` uses the endpoint that `OPENAI_API_KEY` or `OPENAI_BASE_URL` configures. If neither variable is set, `auto` uses the model of the
    connected client."""
    tools: list[str] = Field(default_factory=list)
    """Tools that the agent may call, as `<source>/<glob>`: `docs/read_*`, `agent/editor`, `function/now`. Default: none."""
    skills: list[str] = Field(default_factory=list)
    """Names of skills. The gateway describes the skills in the agent's instructions, and the agent loads them with the skill tools."""
    narrow_to_skills: bool = Field(default=False, alias="narrow-to-skills")
    """Remove tools that no skill in `skills` lists in `allowed-tools`; a skill without that field allows all tools."""
    runs_as: Literal["file", "caller"] = Field(default="file", alias="runs-as")
    """`file`: a run may use everything in `tools` and `skills`, whoever calls the agent. `caller`: only what the caller may use, too."""
    max_turns: int = Field(default=12, ge=1, le=200, alias="max-turns")
    """Maximum number of model calls in one run; a run that reaches it makes its last call without tools."""
    remote: RemoteAgent | None = None
    """Address of an agent that runs elsewhere. The remote agent has its own model and tools; an A2A agent also has its own instructions."""
    loop: LoopLimits = Field(default_factory=LoopLimits)
    """Limits of a run's loop of model and tool calls, besides `max-turns`."""
    middleware: MiddlewareEntries = Field(default_factory=list[MiddlewareEntry])
    """Middleware and lifecycle hooks, as `module:name` or `{module:name: arguments}`; the first item is the outermost."""
    options: JsonObject = Field(default_factory=lambda: cast("JsonObject", {}))
    """Options for each model call, such as `temperature`."""
    parameters: list[Literal["temperature", "top_p", "max_tokens", "seed", "stop"]] = Field(default_factory=lambda: cast("list[Any]", []))
    """Model options that callers may set, as arguments of the agent's tool."""
    attachments: bool = True
    """Whether callers may attach images, audio, files and links to a task."""
    output: JsonObject | None = None
    """JSON Schema of the agent's answer. With a schema, the answer must be a JSON object; the tool returns it as structured content."""
    history: Literal["database", "none"] = "database"
    """`database`: callers may have sessions (conversations of several calls), which the gateway's database stores. `none`: no sessions."""
    session_ttl: float | None = Field(default=None, gt=0, alias="session-ttl")
    """Seconds after the last turn until a session is deleted. Default: `sessions.ttlSeconds` of the configuration."""
    compaction: Compaction | None = None
    """How a long conversation is shortened for the model. Default: not at all."""
    memory: MemoryKey | None = None
    """Memory beyond a session: stores messages of callers, and puts stored messages that match a later task before the task."""
    context_providers: list[str] = Field(default_factory=list, alias="context-providers")
    """Custom context providers, as `module:name` of an object or a factory; they run in this order."""
    task: TaskSupport = "optional"
    """Whether clients may (`optional`), must (`required`) or cannot (`never`) run the agent as a background task."""

    loop_until: LoopUntil | None = Field(default=None, alias="loop-until")
    """Run the agent again until a judge finds the task done."""
    files: FileAccess | None = None
    """A folder that the agent accesses with the tools `file_access_*`."""
    security: Security | None = None
    """Rules for tool calls after the agent has read untrusted content. Experimental."""

    @property
    def python_references(self) -> set[str]:
        """All Python references (`module:name`) of the file: its middleware and context providers."""
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
        """Reject keys that do not apply to a remote agent, which has its own model, tools and skills."""
        idle = sorted(self.model_fields_set & {"model", "tools", "skills", "max_turns"}) if self.remote is not None else []
        if idle:
            keys = ", ".join(f"`{name.replace('_', '-')}`" for name in idle)
            raise ValueError(f"{keys} cannot be set for a remote agent; remove them")
        return self

    @field_validator("tools", "skills", "context_providers", "middleware", "parameters", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Convert a text such as `a, b`, the form in which other programs write lists, to a list."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("context_providers")
    @classmethod
    def _check_context(cls, value: list[str]) -> list[str]:
        return [checked_reference(reference) for reference in value]


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """A parsed agent file: its frontmatter (`file`) and the agent's instructions."""

    file: AgentFile
    instructions: str
    path: Path
    notes: list[str]
    """Texts for the log, one for each key of the file that is ignored."""

    @property
    def run_entry(self) -> RunEntry | None:
        """The entry for `moongate lock --accept`, with which a person accepts the import of the file's Python code; `None` without code."""
        names = self.file.python_references
        content: JsonObject = {"file": self.file.model_dump(mode="json", exclude_defaults=True), "instructions": self.instructions}
        return file_entry(f"agent/{self.file.name}", self.path, content, names) if names else None


def read_agent(path: Path) -> AgentDefinition:
    """Read and parse an agent file.

    Raises:
        AgentError: The file cannot be read or is invalid; the text names the file, the key and the fix.
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
    """Return the supported keys of the frontmatter under their Moongate names, and add a text to `notes` for each ignored key."""
    known = {field.alias or name for name, field in AgentFile.model_fields.items()}
    values: JsonObject = {}
    for key, value in header.items():
        name = _ALIASES.get(key, key)
        if name == "memory" and not isinstance(value, dict):
            notes.append(f"{path}: key {key!r} with a text value belongs to another host and is ignored")
        elif name in known:
            values[name] = _plain(name, value)
        elif key in FOREIGN_KEYS:
            notes.append(f"{path}: key {key!r} belongs to another host and is ignored")
        else:
            raise AgentError(f"{path}: unknown key {key!r}. {did_you_mean(key, known)}".rstrip())
    return values


def _plain(name: str, value: JsonValue) -> JsonValue:
    """Convert a map `{name: enabled}`, the form in which other programs write the key `tools`, to the list of enabled tools."""
    if name == "tools" and isinstance(value, dict):
        return [key for key, on in cast("JsonObject", value).items() if on]
    return value
