"""Pydantic models of `gateway.json`; the JSON Schema is generated from them and their docstrings.

Only shapes and defaults are defined here. `load` reads the file and expands `${VAR}`; the packages that receive these objects decide what
they mean. Keys are camelCase in the file and snake_case here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.agents import AgentSettings
from gateway.config.base_models import Model
from gateway.config.policies import OWN_SOURCE_KINDS, ApprovalBy, SourcePolicy
from gateway.config.skill_settings import SkillSettings
from gateway.config.suggest import did_you_mean

SOURCE_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,40}$"
"""Source names become the first part of exposed tool names, so they use the alphabet of tool names."""

RESERVED_SOURCES = frozenset({"agent", "workflow", "skill", "function", "gateway"})
"""Names of local sources; a server may not have them."""


class StdioServer(Model):
    """A server started as a child process that speaks MCP on its standard input and output."""

    type: Literal["stdio"] = "stdio"
    """May be left out if `command` is given."""
    command: str
    """The program; looked up on PATH, or relative to `cwd`."""
    args: list[str] = Field(default_factory=list)
    """Arguments, passed as they are: no shell."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to a minimal environment (HOME, LOGNAME, PATH, SHELL, TERM, USER, XDG_STATE_HOME)."""
    cwd: str | None = None
    """Working directory; relative to the configuration file."""
    disabled: bool = False
    """Keep the entry but do not start it."""


class HttpServer(Model):
    """A server reached over streamable HTTP."""

    type: Literal["http"] = "http"
    """`http`; `streamable-http` is read as the same."""
    url: str
    """The MCP endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request; values may hold secrets by reference."""
    disabled: bool = False
    """Keep the entry but do not connect."""


class SseServer(Model):
    """A server with the HTTP+SSE transport of 2024-11-05."""

    type: Literal["sse"]
    """Always `sse`."""
    url: str
    """The SSE endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request; values may hold secrets by reference."""
    disabled: bool = False
    """Keep the entry but do not connect."""


Transport = Literal["stdio", "http", "sse"]
"""How a server is reached: the `type` of its entry."""

ServerEntry = StdioServer | HttpServer | SseServer


class Expose(Model):
    """Local agents, skills, workflows and functions to serve. Paths are relative to the configuration file."""

    agents: list[str] = Field(default_factory=list)
    """Folders (or files) with `*.agent.md` and `*.workflow.yaml`."""
    skills: list[str] = Field(default_factory=list)
    """Folders that hold skill folders with a `SKILL.md`."""
    functions: list[str] = Field(default_factory=list)
    """Importable modules whose `@tool` functions are served."""


class HttpSettings(Model):
    """The gateway's HTTP endpoint."""

    host: str = "127.0.0.1"
    """Bind address. An address other than loopback requires API keys (`moongate keys add`)."""
    port: int = Field(default=8765, ge=0, le=65535)
    """TCP port; 0 picks a free one."""
    path: str = Field(default="/mcp", pattern=r"^/[A-Za-z0-9/_-]*$")
    """Path of the MCP endpoint."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """`Host` values accepted beside loopback and `host`, e.g. `hub.example.com` or `hub.example.com:*`."""
    allowed_origins: list[str] = Field(default_factory=list)
    """`Origin` values accepted beside loopback, e.g. `https://app.example.com`."""
    max_request_bytes: int = Field(default=4_194_304, ge=1024)
    """Larger request bodies are rejected with 413."""
    max_connections: int = Field(default=4096, ge=1)
    """Connections at once, at most half the limit of open files. A new one closes the one idle longest; 503 if all are busy."""
    head_seconds: float = Field(default=10, gt=0)
    """How long the headers of a request may take to arrive; then 408."""
    body_seconds: float = Field(default=60, gt=0)
    """How long the body of a request may take to arrive; then 408."""
    unread_seconds: float = Field(default=60, gt=0)
    """How long a response may wait for a client that does not read; then the connection is closed."""
    drain_seconds: int = Field(default=10, ge=0)
    """How long calls may run after SIGTERM; a second signal ends them at once."""
    direct_path: Literal["auto", "off"] = "auto"
    """`auto`: serve plain calls on the fast path, without the MCP SDK's HTTP code; `off`: serve all on the SDK path."""
    agui: bool = True
    """Also serve each agent at `/agui/<agent>`, for applications that speak AG-UI."""


class LimitSettings(Model):
    """Limits of one address and one caller over HTTP. Without API keys all callers count as one, with the whole limit."""

    connections_per_address: int | None = Field(default=None, ge=1)
    """Connections of one IPv4 address or IPv6 /64. Left out: half of `maxConnections`, any number from this machine."""
    incomplete_bytes: int | None = Field(default=None, ge=65_536)
    """Bytes of requests that are still arriving. Beyond it, the oldest one of the address or caller with most bytes is ended. One
    address or caller may have a quarter. Left out: 64 MiB, or 16 times `maxRequestBytes` if that is more.
    """
    request_bytes: int | None = Field(default=None, ge=65_536)
    """Bytes of request bodies in progress, over all callers. Left out: 256 MiB, or 64 times `maxRequestBytes` if that is more."""
    request_bytes_per_caller: int | None = Field(default=None, ge=65_536)
    """The same for one caller. Left out: a quarter of `requestBytes`."""
    unread_bytes: int | None = Field(default=None, ge=65_536)
    """Bytes of responses that clients have not read yet, over all callers. Left out: 256 MiB. At twice as many, connections of the
    caller with most bytes are closed.
    """
    unread_bytes_per_caller: int | None = Field(default=None, ge=65_536)
    """The same for one caller. Beyond it, its calls are rejected with 429. Left out: a quarter of `unreadBytes`."""
    calls_per_caller: int | None = Field(default=None, ge=1)
    """Calls of one caller in progress. Left out: a quarter of `maxConnections`."""
    streams: int | None = Field(default=None, ge=1)
    """Open streams over all callers: listening GETs, `subscriptions/listen`, AG-UI runs. Left out: half of `maxConnections`."""
    streams_per_caller: int | None = Field(default=None, ge=1)
    """The same for one caller. Left out: an eighth of `maxConnections`."""
    sessions: int = Field(default=10_000, ge=1)
    """2025 sessions over all callers. A new one closes the one idle longest."""
    sessions_per_caller: int | None = Field(default=None, ge=1)
    """The same for one caller. Left out: a quarter of `sessions`."""


class ServerSettings(Model):
    """Settings of the gateway itself."""

    name: str = "moongate"
    """Shown to clients."""
    instructions: str | None = None
    """Text before the generated overview that clients receive."""
    http: HttpSettings = Field(default_factory=HttpSettings)
    """The HTTP endpoint."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Limits of callers over HTTP."""
    client_prefix: str = Field(default="", max_length=40)
    """Prefix that your client puts before tool names (e.g. `mcp__moongate__`); exposed names stay short enough for it."""
    page_size: int = Field(default=1000, ge=1, le=10_000)
    """Entries per page of a listing."""
    startup_timeout_seconds: float = Field(default=10, ge=0)
    """How long the first listing waits for servers that are still starting."""
    ask_timeout_seconds: float = Field(default=3600, gt=0)
    """How long a request for input waits for its answer; then the call that sent it ends."""
    approval_by: ApprovalBy | None = None
    """Who may approve calls: `caller`, `operator` or `other-principal`. Left out: `caller` without API keys, `operator` with keys."""
    standing_approval_days: float = Field(default=30, ge=0)
    """How long a standing approval lasts; 0 offers no standing approvals."""
    max_child_processes: int = Field(default=64, ge=1)
    """Server processes at once; a new one stops the one unused longest."""
    large_result_bytes: int = Field(default=67_108_864, ge=1_048_576)
    """Bytes of servers' large responses (over 1 MiB) that are processed at once, half of them for one caller; others wait."""
    status_tool: bool = True
    """Offer the tool `gateway_status`, which tells a model why a server is missing."""
    reload: bool = True
    """Apply changes of the configuration file while running; a broken file changes nothing."""
    lock_file: str | None = None
    """The file of `moongate lock`. Left out: beside the configuration, `gateway.lock.json` for `gateway.json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the log on stderr."""

    @model_validator(mode="after")
    def _whole_request_fits(self) -> ServerSettings:
        limits, whole = self.limits, self.http.max_request_bytes
        for name, value in (
            ("incompleteBytes", limits.incomplete_bytes),
            ("requestBytes", limits.request_bytes),
            ("requestBytesPerCaller", limits.request_bytes_per_caller),
        ):
            if value is not None and value < whole:
                raise ValueError(f"limits.{name} ({value}) is less than http.maxRequestBytes ({whole}): raise it, or lower maxRequestBytes")
        return self


class StorageSettings(Model):
    """The gateway's state."""

    dir: str | None = None
    """Folder; left out: the user's state folder."""
    url: str | None = None
    """Database server instead of `gateway.db` in the folder: `postgresql://user:${PASSWORD}@host/database`."""
    result_ttl_seconds: float = Field(default=3600, gt=0)
    """How long the full text of a shortened result can be read."""
    max_result_bytes_per_caller: int = Field(default=268_435_456, ge=1024)
    """Bytes of kept results per caller; new results replace the oldest."""
    audit_days: int = Field(default=30, ge=1)
    """How long the audit log is kept."""


class SessionSettings(Model):
    """Sessions of callers with agents over several calls."""

    ttl_seconds: float = Field(default=2_592_000, gt=0)
    """How long a session is kept after its last turn; an agent's file may override it."""
    max_per_caller: int = Field(default=200, ge=1)
    """Sessions of one caller at once."""
    wait_seconds: float = Field(default=20, ge=0)
    """How long a call waits for another one on the same session before it fails as busy."""


class TaskSettings(Model):
    """Calls that run in the background. A policy has the settings of one source."""

    inline_seconds: float | None = Field(default=50, ge=0)
    """How long a client without task support waits for a call that may run as a task before it gets a handle; `null`: to the end."""
    ttl_seconds: float = Field(default=3600, gt=0, le=31_536_000)
    """How long a finished task can be read if the client does not say."""
    ask_timeout_seconds: float = Field(default=604_800, gt=0)
    """How long a question of a task waits for its answer, including time in which the gateway is stopped; then the step that asked
    fails.
    """
    max_per_caller: int = Field(default=64, ge=1)
    """Unfinished tasks of one caller, running and waiting; more are rejected."""
    max_running_per_caller: int = Field(default=16, ge=1)
    """Tasks of one caller that run at once; more wait in a queue. Tasks that wait for a person do not count."""
    starts_per_minute_per_caller: int | None = Field(default=None, ge=1)
    """Tasks of one caller that start within a minute; more wait in a queue. `null`: unlimited."""


class SecretCommand(Model):
    """A program whose output is a secret, for `${cmd:NAME}`."""

    command: list[str] = Field(min_length=1)
    """Program and arguments, run without a shell; its standard output without the final line break is the value."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Timeout of the program."""


class Defaults(Model):
    """Fallbacks for agents."""

    model: str | None = None
    """Model of agents with `model: auto` if `OPENAI_MODEL` is not set, for example `gpt-5-mini`."""


class GatewayConfig(Model):
    """The root of `gateway.json`."""

    schema_: Annotated[str | None, Field(alias="$schema")] = None
    """For editors."""
    mcp_servers: dict[str, ServerEntry] = Field(default_factory=dict)
    """Remote MCP servers in the form that IDEs use; VS Code's `servers` is read as the same."""
    policies: dict[str, SourcePolicy] = Field(default_factory=dict)
    """Rules by source name."""
    expose: Expose = Field(default_factory=Expose)
    """Your agents, skills, workflows and functions."""
    agents: AgentSettings = Field(default_factory=AgentSettings)
    """Settings of every agent."""
    skills: SkillSettings = Field(default_factory=SkillSettings)
    """How skills are read, and which of their scripts may run."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    """The gateway itself."""
    storage: StorageSettings = Field(default_factory=StorageSettings)
    """The gateway's own state."""
    sessions: SessionSettings = Field(default_factory=SessionSettings)
    """Sessions of callers with agents."""
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    """Calls that run in the background."""
    secrets: dict[str, SecretCommand] = Field(default_factory=dict)
    """Programs behind `${cmd:NAME}`."""
    defaults: Defaults = Field(default_factory=Defaults)
    """Fallbacks for agents."""

    @model_validator(mode="after")
    def _names(self) -> GatewayConfig:
        for name in self.mcp_servers:
            if (problem := judge_server_name(name)) is not None:
                raise ValueError(f"server {problem}")
        return self

    @model_validator(mode="after")
    def _own_sources(self) -> GatewayConfig:
        for key, policy in self.policies.items():
            kind, slash, name = key.partition("/")
            if not slash:
                continue
            if kind not in OWN_SOURCE_KINDS or not name or "/" in name:
                raise ValueError(f"policies: {key!r} names no source; write a server's name, `agent/NAME` or `workflow/NAME`")
            if idle := policy.idle_for_own_tools:
                keys = ", ".join(f"`{one}`" for one in idle)
                raise ValueError(f"policies[{key!r}]: {keys} has no effect on the tools that this {kind} brings along; remove it")
        return self

    def policy(self, source: str) -> SourcePolicy:
        """Return the policy of a source; the default policy if the configuration has none for it."""
        return self.policies.get(source) or SourcePolicy()

    def prefix_of(self, source: str) -> str:
        """Return the prefix of a source's exposed tool names: the policy's `prefix`, or else the source's name (empty for `skill`)."""
        prefix = self.policy(source).prefix
        return prefix if prefix is not None else "" if source == "skill" else source


def judge_server_name(name: str) -> str | None:
    """Return why a server cannot have this name, as a sentence without its full stop; `None` if it can."""
    if name in RESERVED_SOURCES:
        return f"name {name!r} is reserved for Moongate's own sources; choose another"
    if not re.fullmatch(SOURCE_NAME_PATTERN, name):
        return f"name {name!r} may only have letters, digits, '_' and '-', at most 40"
    return None


def judge_policy_name(name: str, servers: Iterable[str]) -> str | None:
    """Return why the key `name` of `policies` matches no source; `None` if it matches one.

    The keys `agent/<name>` and `workflow/<name>` are accepted, because the files of agents and workflows are not read here.
    """
    known = RESERVED_SOURCES.union(servers)
    if name in known or "/" in name:
        return None
    return f"no source is called {name!r}, so the policy does nothing. {did_you_mean(name, known)}".rstrip()
