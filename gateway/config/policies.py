"""Pydantic models of `policies` in `gateway.json`: the operator's rules for each source of tools, such as a server.

They define only shapes and defaults; the package `policy` decides what the rules mean. Docstrings of fields become descriptions in the
JSON Schema of the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_validator

from gateway.config.base_models import Model
from gateway.json_types import JsonObject, JsonValue

OWN_SOURCE_KINDS = frozenset({"agent", "workflow"})
"""First parts of the source ids `agent/<name>` and `workflow/<name>`.

Such a source contains the tools that one agent or workflow defines for itself. Only this agent or workflow can call them.
"""

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
"""Fields that have an effect in a policy for a source `agent/<name>` or `workflow/<name>` (the tools that one file defines itself)."""

_IDLE_OVERRIDES = frozenset({"listed", "max_running_tasks", "name", "task_starts_per_minute"})
"""Fields of a `ToolOverride` that have no effect in policies of sources `agent/<name>` and `workflow/<name>`.

They have no effect because tools of these sources are never listed to clients and never run as tasks.
"""


class ToolFilter(Model):
    """Which tools of a source are served. Other tools do not exist for any caller."""

    allow: list[str] | None = None
    """Globs over the tools' names at the source. Only matching tools are served. Left out: all tools."""
    deny: list[str] = Field(default_factory=list)
    """Globs over the tools' names at the source. Matching tools are not served, even if `allow` matches."""


class SkillFilter(Model):
    """Which skills of a source are served. Other skills do not exist for any caller."""

    allow: list[str] | None = None
    """Globs over the skills' paths (`pdf`, `team/pdf`). Only matching skills are served. Left out: all skills."""
    deny: list[str] = Field(default_factory=list)
    """Globs over the skills' paths (`pdf`, `team/pdf`). Matching skills are not served, even if `allow` matches."""


class ToolOverride(Model):
    """Changes one tool of a source: its name, texts and arguments as clients see them, and whether it is served."""

    enabled: bool = True
    """`false`: the tool does not exist for any caller."""
    listed: bool = True
    """`false`: the tool is not listed to clients; agents and workflows of this gateway may still use it."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Published name of the tool, after the prefix. In the configuration, the tool keeps the name that it has at its source."""
    title: str | None = None
    """Published title, in place of the tool's own."""
    description: str | None = None
    """Published description, in place of the tool's own."""
    hide: list[str] = Field(default_factory=list)
    """Arguments to remove from the published schema. A caller's value for such an argument is dropped."""
    fixed: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments that are always sent with the given value. They are removed from the published schema."""
    defaults: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments that are sent with the given value if the caller leaves them out. They are no longer required."""
    max_running_tasks: int | None = Field(default=None, ge=1)
    """Maximum number of this tool's calls that run as tasks, for all callers together; more calls wait in a queue. Left out: unlimited."""
    task_starts_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of this tool's calls that start as tasks within a minute; more calls wait in a queue. Left out: unlimited."""


ApprovalBy = Literal["caller", "operator", "other-principal"]
"""Who may approve a call: the caller itself, an operator, or any principal other than the caller."""


class ApprovalLists(Model):
    """Which tools need a person's approval for each call, and who may approve."""

    always: list[str] = Field(default_factory=list)
    """Globs over the tools' names at the source. Calls of matching tools need approval."""
    never: list[str] = Field(default_factory=list)
    """Globs over the tools' names at the source. Calls of matching tools need no approval, even if `always` matches."""
    by: ApprovalBy | None = None
    """Who may approve calls. Left out: as `server.approvalBy` says."""


class SamplingPolicy(Model):
    """How the gateway handles a server's sampling requests, by which the server requests the response of a model."""

    mode: Literal["deny", "ask", "relay", "answer"] = "deny"
    """`deny`: reject the server's sampling requests; `relay`: use the connected client's model; `answer`: use `model`; `ask`: first ask the
    user to approve each request, then use `model` or, if no model is configured, the client's model.
    """
    model: str | None = None
    """Model for the modes `answer` and `ask`, e.g. `openai:gpt-5-mini`. Left out: `OPENAI_MODEL`, else `defaults.model`."""
    max_tokens: int | None = Field(default=4096, ge=1)
    """Maximum number of tokens in the response to one sampling request. `null`: unlimited."""
    max_requests: int | None = Field(default=25, ge=0)
    """Maximum number of the server's sampling requests per hour during calls of one caller (the principal that called the server's tool).
    `null`: unlimited; 0: reject all.
    """


class ElicitationPolicy(Model):
    """How the gateway handles a server's elicitation requests, by which the server asks a person for input."""

    mode: Literal["relay", "deny"] = "relay"
    """`relay`: send the server's elicitation requests to the connected client; `deny`: reject them."""
    url_hosts: list[str] = Field(default_factory=list)
    """Globs of hosts without a public name, such as `portal.corp` or `localhost`, to which links in the server's elicitations may lead.
    Links to these hosts must use https, except links to this machine.
    """


class RootsPolicy(Model):
    """How the gateway handles a server's requests for the client's workspace folders (`roots/list`)."""

    mode: Literal["relay", "deny"] = "deny"
    """`relay`: send the server's requests `roots/list` to the connected client; `deny`: reject them."""


class TaskPolicy(Model):
    """Rules for long-running calls of one source, which run in the background as tasks."""

    ttl_seconds: float | None = Field(default=None, gt=0)
    """Seconds for which the gateway requests the server to store a finished task. Left out: the server decides."""
    max_wait_seconds: float | None = Field(default=None, gt=0)
    """Maximum seconds that the gateway waits for the result of a task that the server runs. Also the maximum working time of a call that
    the gateway runs as a task. Left out: one hour for calls of a server's tools that the gateway runs as tasks; else unlimited.
    """
    cancel_on_abandon: bool = True
    """Cancel a task of the server when no client waits for it any more."""
    follow: bool = True
    """`true`: for a client without task support, wait for the result of a task that the server runs, and return it; `false`: return the
    server's response as it is.
    """
    promote: list[str] = Field(default_factory=list)
    """Globs of tools without task support whose calls may run as tasks of the gateway."""
    max_running: int | None = Field(default=None, ge=1)
    """Maximum number of running tasks of this source, for all callers together; more tasks wait in a queue. Left out: unlimited."""
    starts_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of tasks of this source that start within a minute; more tasks wait in a queue. Left out: unlimited."""
    resume: bool = True
    """`false`: a task that runs when the gateway stops is not resumed after the next start, but fails with the reason."""
    task_queue: str | None = Field(default=None, min_length=1)
    """Task queue at Temporal of this source's tasks, for `tasks.engine: temporal`. Only gateways with the source and this key run them.
    Left out: `tasks.temporal.taskQueue`.
    """


class ClientCredentials(Model):
    """OAuth client credentials grant: the gateway authenticates to the server as itself."""

    type: Literal["client-credentials"]
    """Kind of grant, always `client-credentials`."""
    issuer: str
    """URL of the authorization server. The secret is sent to no other server."""
    client_id: str
    """Id of the registered OAuth client."""
    client_secret: str
    """Secret of the OAuth client, as a reference: `${VAR}`, `${file:PATH}`, `${keyring:SERVICE/USER}` or `${cmd:NAME}`."""
    scopes: list[str] = Field(default_factory=list)
    """OAuth scopes to request."""


class AuthorizationCode(Model):
    """OAuth authorization code grant with PKCE: a person signs in once (`moongate auth login SERVER`)."""

    type: Literal["authorization-code"]
    """Kind of grant, always `authorization-code`."""
    issuer: str | None = None
    """URL of the authorization server. Left out: as in the server's metadata; it is shown before you sign in."""
    client_id: str | None = None
    """Id of the registered OAuth client. Left out: the gateway registers itself."""
    client_secret: str | None = None
    """Secret of a confidential OAuth client, as a reference such as `${VAR}`."""
    scopes: list[str] = Field(default_factory=list)
    """OAuth scopes to request. Left out: the scopes in the server's metadata."""
    redirect_port: int = Field(default=0, ge=0, le=65535)
    """Port of this machine to which the browser returns after the sign-in; 0 picks a free port."""


OutboundAuth = ClientCredentials | AuthorizationCode
"""OAuth settings with which the gateway authenticates to one server, in addition to the fixed `headers` of the server's entry."""


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
"""A rule for the value of one argument of a tool: JSON Schema with Moongate's own keywords, which `policy.rule_words` compiles."""


class SourcePolicy(Model):
    """The operator's rules for one source of tools: a server, or one of the gateway's own sources `agent`, `workflow`, `skill`, `function`.

    A policy for `agent/<name>` or `workflow/<name>` applies to the tools that the file of this agent or workflow adds.
    """

    prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{0,40}$")
    """First part of the names that clients see (`<prefix>__<tool>`). Left out: the source's name, for `skill` none; `""`: no prefix."""
    tools: ToolFilter = Field(default_factory=ToolFilter)
    """Which tools of the source are served."""
    skills: SkillFilter = Field(default_factory=SkillFilter)
    """Which skills are served. In a server's policy: skills of the server; in the policy of `skill`: your own. Other policies ignore it."""
    overrides: dict[str, ToolOverride] = Field(default_factory=dict)
    """Changes of single tools, by the tool's name at the source."""
    arguments: dict[str, dict[str, ArgumentRule]] = Field(default_factory=dict)
    """Rules that arguments must satisfy in addition to the tool's schema, by tool (`*`: every tool) and argument. A rule is a JSON Schema,
    in which `within`, `oneOfHosts` and `oneOfRecipients` may be used.
    """
    additional_arguments: list[str] | dict[str, list[str]] = Field(default_factory=list)
    """Names of arguments that are accepted although a tool does not declare them: a list for all tools, or a list for each tool or `*`."""
    approval: Literal["never", "always"] | ApprovalLists = "never"
    """Which calls a person must approve before they run, and who may approve."""
    hidden_text: Literal["strip", "refuse", "allow"] = "strip"
    """What to do with control, bidi and invisible characters in texts of a server. `strip`: remove them; `refuse`: hide the tool or reject
    the result; `allow`: accept them.
    """
    pins: Literal["quarantine", "warn", "off"] = "quarantine"
    """Treatment of tools whose definition has changed since the server first listed it, or differs from the lock file. `quarantine`: hide
    the tool until a person accepts the definition; `warn`: serve the tool and warn; `off`: do not compare.
    """
    sampling: SamplingPolicy = Field(default_factory=SamplingPolicy)
    """How sampling requests of the server are handled."""
    elicitation: ElicitationPolicy = Field(default_factory=ElicitationPolicy)
    """How elicitation requests of the server are handled."""
    roots: RootsPolicy = Field(default_factory=RootsPolicy)
    """How requests of the server for workspace folders are handled."""
    tasks: TaskPolicy = Field(default_factory=TaskPolicy)
    """Rules for long-running calls, which run in the background as tasks."""
    auth: OutboundAuth | None = Field(default=None, discriminator="type")
    """OAuth settings for this server. Left out: the gateway sends only the `headers` of the server's entry."""
    callers: Literal["auto", "shared", "serial", "separate"] = "auto"
    """How callers share a stdio server of protocol version 2025, whose requests for input do not say to which call they belong. `serial`:
    calls of one client at a time; `separate`: one process per caller; `shared`: requests for input are rejected while two callers have
    calls; `auto`: all callers share the process until the first request for input, then as with `serial`.
    """
    serial_ask_seconds: float = Field(default=60, gt=0)
    """Seconds that the server's request for input waits for an answer while other clients wait to call the server. Applies only to a stdio
    server whose clients call it one at a time (`callers`).
    """
    idempotent: list[str] = Field(default_factory=list)
    """Globs of tools whose calls may be resent if the connection was lost during a call."""
    trust_annotations: bool = False
    """`true`: trust the annotations `readOnlyHint` and `idempotentHint`: tools with such a hint are treated as if in `idempotent`."""
    start: Literal["eager", "lazy"] = "eager"
    """`eager`: connect at the start; `lazy`: connect on the first call, if the tools are known from an earlier run."""
    idle_seconds: float | None = Field(default=None, gt=0)
    """Seconds without use after which the connection to the server is closed; the next call opens it again. Left out: never."""
    disclosure: Literal["full", "on-demand"] = "full"
    """`full`: list all tools; `on-demand`: list tools only after a model has loaded them with the tool `load_tools`."""
    prompts_as_tools: bool = False
    """Also offer the server's prompts as tools, for clients and agents that do not support prompts."""
    timeout_seconds: float = Field(default=120, gt=0)
    """Maximum seconds of one call. Waiting for a person does not count."""
    connect_timeout_seconds: float = Field(default=30, gt=0)
    """Maximum seconds for starting the server and its MCP handshake."""
    max_result_bytes: int = Field(default=8_388_608, ge=1024)
    """Maximum bytes of a result that is returned whole. A larger result is shortened; its full text is stored for `read_result`."""
    max_kept_bytes: int = Field(default=67_108_864, ge=1024)
    """Maximum bytes of a shortened result that is stored for `read_result`; a larger result is rejected."""
    max_concurrency: int = Field(default=32, ge=1)
    """Maximum number of calls of the source's tools at the same time; more calls wait in a queue."""
    direct_path: Literal["auto", "off"] = "auto"
    """How requests are sent to a server over streamable HTTP. `auto`: without the MCP SDK, unless a request needs a feature of the SDK (for
    example a proxy, OAuth or a redirect); `off`: always with the SDK.
    """
    era: Literal["auto", "legacy", "modern"] = "auto"
    """Protocol version of a server. `legacy`: 2025-11-25 and older; `modern`: 2026-07-28; `auto`: detect the version."""

    @field_validator("additional_arguments", mode="before")
    @classmethod
    def _one_name(cls, value: object) -> object:
        """Turn a single argument name into a list of one name, so that `additionalArguments` also accepts a string."""
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):
            return {k: [v] if isinstance(v, str) else v for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]  # narrowed by pydantic next
        return value

    @property
    def approval_by(self) -> ApprovalBy | None:
        """Who may approve calls of this source; `None` if the policy does not say, so that `server.approvalBy` decides."""
        return None if isinstance(self.approval, str) else self.approval.by

    @property
    def idle_for_own_tools(self) -> list[str]:
        """Keys of this policy that are set, but have no effect if the policy is for `agent/<name>` or `workflow/<name>`."""
        idle = [_key(self, name) for name in sorted(self.model_fields_set - _OWN_TOOL_KEYS)]
        for tool, override in self.overrides.items():
            idle += [f"overrides.{tool}.{_key(override, name)}" for name in sorted(override.model_fields_set & _IDLE_OVERRIDES)]
        return idle


def _key(model: Model, name: str) -> str:
    return type(model).model_fields[name].alias or name
