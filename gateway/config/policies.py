"""Pydantic models of `policies` in `gateway.json`: the operator's rules for each source.

Only shapes and defaults are defined here; the package `policy` decides what the rules mean.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_validator

from gateway.config.base_models import Model
from gateway.json_types import JsonObject, JsonValue

OWN_SOURCE_KINDS = frozenset({"agent", "workflow"})
"""First parts of the keys `agent/<name>` and `workflow/<name>` under `policies`."""

_OWN_TOOL_KEYS = frozenset(
    {
        "additional_arguments",
        "approval",
        "arguments",
        "max_concurrency",
        "max_kept_bytes",
        "max_result_bytes",
        "overrides",
        "timeout_seconds",
        "tools",
    }
)
"""Keys of a policy that apply to the tools that one agent's or workflow's file defines (`agent/<name>`, `workflow/<name>`)."""

_IDLE_OVERRIDES = frozenset({"listed", "max_running_tasks", "name", "task_starts_per_minute"})
"""Keys of `overrides` without effect under `agent/<name>` and `workflow/<name>`: those tools are never listed and never run as tasks."""


class ToolFilter(Model):
    """Which tools of a source exist at all. Patterns are globs over native tool names."""

    allow: list[str] | None = None
    """Only these; left out means all."""
    deny: list[str] = Field(default_factory=list)
    """Never these; wins over `allow`."""


class SkillFilter(Model):
    """Which skills of a source exist at all. Patterns are globs over a skill's path, which is its name unless it has a prefix."""

    allow: list[str] | None = None
    """Only these; left out means all."""
    deny: list[str] = Field(default_factory=list)
    """Never these; wins over `allow`."""


class ToolOverride(Model):
    """How one tool is published, instead of as its server defines it."""

    enabled: bool = True
    """`false`: the tool does not exist for any caller."""
    listed: bool = True
    """`false`: not listed to clients; agents and workflows of this gateway may still use it."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Another name after the prefix. Rules and patterns keep using the server's own name."""
    title: str | None = None
    """Another title."""
    description: str | None = None
    """Another description."""
    hide: list[str] = Field(default_factory=list)
    """Arguments removed from the published schema; a value for one is dropped."""
    fixed: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments that are always sent with this value, and are removed from the published schema."""
    defaults: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments sent with this value if the caller gives none; no longer required."""
    max_running_tasks: int | None = Field(default=None, ge=1)
    """Calls of this tool that run as tasks at once, over all callers; more wait in a queue. Left out: unlimited."""
    task_starts_per_minute: int | None = Field(default=None, ge=1)
    """Calls of this tool that start as tasks within a minute; more wait in a queue. Left out: unlimited."""


ApprovalBy = Literal["caller", "operator", "other-principal"]
"""Who may approve: the caller, an operator, or any other principal."""


class ApprovalLists(Model):
    """Which tools need approval for each call, and from whom. Patterns are globs over native tool names."""

    always: list[str] = Field(default_factory=list)
    """These need approval."""
    never: list[str] = Field(default_factory=list)
    """These do not; wins over `always`."""
    by: ApprovalBy | None = None
    """Who may approve; left out: `server.approvalBy`."""


class SamplingPolicy(Model):
    """Sampling requests of a server."""

    mode: Literal["deny", "ask", "relay", "answer"] = "deny"
    """`deny` rejects; `ask` puts each request to the user first; `relay` uses the connected client's model; `answer` uses `model`."""
    model: str | None = None
    """Model that answers (`answer`, and `ask` once approved), e.g. `openai:gpt-5-mini`; left out: `defaults.model` or `OPENAI_MODEL`."""
    max_tokens: int | None = Field(default=4096, ge=1)
    """Cap on the tokens of one answer; `null`: no cap."""
    max_requests: int | None = Field(default=25, ge=0)
    """Requests per caller and hour; `null`: no limit, 0 rejects all."""


class ElicitationPolicy(Model):
    """Elicitation requests of a server."""

    mode: Literal["relay", "deny"] = "relay"
    """`relay` shows them in the connected client; `deny` rejects."""
    url_hosts: list[str] = Field(default_factory=list)
    """Globs of hosts that links may lead to although they are not public names, for example `portal.corp` or `localhost`. Such links
    need https, except to this machine.
    """


class RootsPolicy(Model):
    """A server's requests for the client's workspace folders."""

    mode: Literal["relay", "deny"] = "deny"
    """`relay` asks the connected client; `deny` rejects."""


class TaskPolicy(Model):
    """Long-running calls of one server."""

    ttl_seconds: float | None = Field(default=None, gt=0)
    """How long a server is asked to keep a finished task; left out: it decides."""
    max_wait_seconds: float | None = Field(default=None, gt=0)
    """Longest time a server's task is followed, and working time of a call that runs as a task of this gateway. Left out: unlimited for
    followed tasks and local sources, one hour for a remote server's call.
    """
    cancel_on_abandon: bool = True
    """Cancel the server's task when no client waits for it any more."""
    follow: bool = True
    """Follow a server's task to its result for clients without task support; false: such clients get what the server returns to them."""
    promote: list[str] = Field(default_factory=list)
    """Globs of plain tools that may run as a task of this gateway."""
    max_running: int | None = Field(default=None, ge=1)
    """Tasks of this source that run at once, over all callers; more wait in a queue. Left out: unlimited."""
    starts_per_minute: int | None = Field(default=None, ge=1)
    """Tasks of this source that start within a minute; more wait in a queue. Left out: unlimited."""
    resume: bool = True
    """`false`: a task whose gateway stopped is not resumed; it fails and says why."""


class ClientCredentials(Model):
    """OAuth client credentials: the gateway authenticates as itself."""

    type: Literal["client-credentials"]
    """Always `client-credentials`."""
    issuer: str
    """The authorization server; the secret is sent to no other server."""
    client_id: str
    """Registered client."""
    client_secret: str
    """Its secret, by reference: `${VAR}`, `${file:PATH}`, `${keyring:SERVICE/USER}`, `${cmd:NAME}`."""
    scopes: list[str] = Field(default_factory=list)
    """Scopes to request."""


class AuthorizationCode(Model):
    """OAuth authorization code with PKCE: a person signs in once (`moongate auth login SERVER`)."""

    type: Literal["authorization-code"]
    """Always `authorization-code`."""
    issuer: str | None = None
    """The authorization server. Left out: the one that the server's metadata names, shown before you sign in."""
    client_id: str | None = None
    """Registered client. Left out: the gateway registers itself."""
    client_secret: str | None = None
    """Secret of a confidential client, by reference."""
    scopes: list[str] = Field(default_factory=list)
    """Scopes to request. Left out: those in the server's metadata."""
    redirect_port: int = Field(default=0, ge=0, le=65535)
    """Loopback port to which the browser returns; 0 picks a free one."""


OutboundAuth = ClientCredentials | AuthorizationCode
"""How the gateway authenticates to one server, in addition to fixed `headers`."""


_LIST = {"type": ["string", "array"], "items": {"type": "string"}}

ArgumentRule = Annotated[
    JsonObject,
    WithJsonSchema({
        "type": "object",
        "description": "JSON Schema 2020-12 and the rule words; see docs/configuration.md.",
        "properties": {
            "within": {**_LIST, "description": "A path inside this folder, or one of these, in every spelling."},
            "oneOfHosts": {**_LIST, "description": "A URL on one of these hosts: `name`, `*.name`, `name:port`, or `*`."},
            "schemes": {
                "type": "array",
                "items": {"enum": ["https", "http", "wss", "ws"]},
                "description": "Schemes of such a URL; left out: https.",
            },
            "oneOfRecipients": {**_LIST, "description": "One mail address: at one of these domains, or one of these addresses."},
        },
    }),
]
"""A rule for the value of one argument; `policy.rule_words` compiles its keywords."""


class SourcePolicy(Model):
    """Rules for one source: a server by its name, or `agent`, `workflow`, `skill`, `function`.

    `agent/<name>` and `workflow/<name>` hold for the tools that the file of one agent or workflow adds.
    """

    prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{0,40}$")
    """First part of exposed names (`<prefix>__<tool>`); left out means the source's name, `""` means names pass unchanged."""
    tools: ToolFilter = Field(default_factory=ToolFilter)
    """Which tools exist."""
    skills: SkillFilter = Field(default_factory=SkillFilter)
    """Which skills exist, of a server or of `skill`."""
    overrides: dict[str, ToolOverride] = Field(default_factory=dict)
    """How tools are published, by native tool name."""
    arguments: dict[str, dict[str, ArgumentRule]] = Field(default_factory=dict)
    """By tool and argument: a rule that the value must also satisfy, as JSON Schema and rule keywords; `*` as tool means every tool."""
    additional_arguments: list[str] | dict[str, list[str]] = Field(default_factory=list)
    """Argument names that pass although the tool does not declare them: a list, or lists by tool with `*`."""
    approval: Literal["never", "always"] | ApprovalLists = "never"
    """Which calls need approval first, and from whom."""
    hidden_text: Literal["strip", "refuse", "allow"] = "strip"
    """Control, bidi and invisible characters in texts of a server: removed, rejected, or passed."""
    pins: Literal["quarantine", "warn", "off"] = "quarantine"
    """A tool that differs from its first listing or from the lock file: hidden until accepted, served with a warning, or not compared."""
    sampling: SamplingPolicy = Field(default_factory=SamplingPolicy)
    """Sampling requests."""
    elicitation: ElicitationPolicy = Field(default_factory=ElicitationPolicy)
    """Elicitation requests."""
    roots: RootsPolicy = Field(default_factory=RootsPolicy)
    """Requests for workspace folders."""
    tasks: TaskPolicy = Field(default_factory=TaskPolicy)
    """Long-running calls."""
    auth: OutboundAuth | None = Field(default=None, discriminator="type")
    """OAuth to this server. Left out: only its `headers`."""
    callers: Literal["auto", "shared", "serial", "separate"] = "auto"
    """A 2025 server over stdio that sends requests for input: one call at a time (`serial`), a process per caller (`separate`), or
    requests rejected while two callers are busy (`shared`). `auto` shares until the first such request, then becomes serial.
    """
    serial_ask_seconds: float = Field(default=60, gt=0)
    """At a server that serves one client at a time: how long its question may stay unanswered while other clients wait."""
    idempotent: list[str] = Field(default_factory=list)
    """Globs of tools that may be sent again if the connection broke during a call."""
    trust_annotations: bool = False
    """Trust the server's own `readOnlyHint` and `idempotentHint` for that."""
    start: Literal["eager", "lazy"] = "eager"
    """`lazy`: connect on the first call, if the tools are known from an earlier run."""
    idle_seconds: float | None = Field(default=None, gt=0)
    """Close a connection after this time without use; the next call opens it again. Left out: never."""
    disclosure: Literal["full", "on-demand"] = "full"
    """`on-demand`: tools are listed only after a model loads them with `load_tools`."""
    prompts_as_tools: bool = False
    """Also offer the server's prompts as tools, for clients and agents without prompts."""
    timeout_seconds: float = Field(default=120, gt=0)
    """Working time of one call; waiting for a person does not count."""
    connect_timeout_seconds: float = Field(default=30, gt=0)
    """Timeout of starting and handshake."""
    max_result_bytes: int = Field(default=8_388_608, ge=1024)
    """Larger results are shortened; the full text is kept and read with `read_result`."""
    max_kept_bytes: int = Field(default=67_108_864, ge=1024)
    """Results larger than this are rejected instead of kept."""
    max_concurrency: int = Field(default=32, ge=1)
    """Calls at once; more wait in a queue."""
    direct_path: Literal["auto", "off"] = "auto"
    """`auto`: send plain calls to 2026 servers over HTTP and to processes without the MCP SDK's client; `off`: send all with the SDK."""
    era: Literal["auto", "legacy", "modern"] = "auto"
    """Protocol era of a server; `auto` detects it."""

    @field_validator("additional_arguments", mode="before")
    @classmethod
    def _one_name(cls, value: object) -> object:
        """Accept a string in place of a list of one name."""
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):
            return {k: [v] if isinstance(v, str) else v for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]  # narrowed by pydantic next
        return value

    @property
    def approval_by(self) -> ApprovalBy | None:
        """Who may approve calls of this source; `None` for the gateway's default (`server.approvalBy`)."""
        return None if isinstance(self.approval, str) else self.approval.by

    @property
    def idle_for_own_tools(self) -> list[str]:
        """The keys of this policy that are set, but would have no effect if its source is `agent/<name>` or `workflow/<name>`."""
        idle = [_key(self, name) for name in sorted(self.model_fields_set - _OWN_TOOL_KEYS)]
        for tool, override in self.overrides.items():
            idle += [f"overrides.{tool}.{_key(override, name)}" for name in sorted(override.model_fields_set & _IDLE_OVERRIDES)]
        return idle


def _key(model: Model, name: str) -> str:
    return type(model).model_fields[name].alias or name
