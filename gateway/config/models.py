"""Pydantic models of `gateway.json`. The JSON Schema for editors is generated from them, with their docstrings as descriptions.

They define only shapes and defaults. `load` reads the file and expands `${VAR}`; the packages that receive these objects decide what the
settings mean. Keys are camelCase in the file and snake_case in the models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.access_settings import AccessSettings
from gateway.config.agents import AgentSettings
from gateway.config.audit_settings import AuditSettings
from gateway.config.auth_settings import InboundAuthSettings
from gateway.config.base_models import Model
from gateway.config.installation_key import decode_installation_key
from gateway.config.policies import OWN_SOURCE_KINDS, ApprovalBy, SourcePolicy
from gateway.config.schedule_settings import SCHEDULE_NAME_PATTERN, ScheduledCall
from gateway.config.skill_settings import SkillSettings
from gateway.config.suggest import did_you_mean
from gateway.config.temporal_settings import TemporalSettings

SOURCE_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,40}$"
"""Regular expression for names of servers. Names of tools begin with the server's name, so the same characters are allowed."""

RESERVED_SOURCES = frozenset({"agent", "workflow", "skill", "function", "gateway"})
"""Names of the gateway's own sources of tools, which a server may not have."""


class StdioServer(Model):
    """An MCP server that the gateway starts as a child process and uses over standard input and output."""

    type: Literal["stdio"] = "stdio"
    """Transport, always `stdio`; may be left out if `command` is given."""
    command: str
    """The program: a name that is looked up on PATH, or a path relative to `cwd`."""
    args: list[str] = Field(default_factory=list)
    """Arguments of the program, passed without a shell."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program, added to a minimal set (HOME, LOGNAME, PATH, SHELL, TERM, USER, XDG_STATE_HOME)."""
    cwd: str | None = None
    """Working directory of the program, relative to the configuration file."""
    single: bool = False
    """`true`: of all gateways with the same `storage.url`, only one runs the program, and the others forward their requests to it. If that
    gateway stops, another one starts the program. `false`: each gateway runs the program. Without `storage.url`, the key has no effect.
    """
    disabled: bool = False
    """`true`: do not start this server."""


class HttpServer(Model):
    """An MCP server with the transport streamable HTTP."""

    type: Literal["http"] = "http"
    """Transport, always `http`; `streamable-http` means the same."""
    url: str
    """URL of the server's MCP endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers that are sent with every request. Write secrets as references such as `${VAR}`."""
    disabled: bool = False
    """`true`: do not connect to this server."""


class SseServer(Model):
    """An MCP server with the transport HTTP+SSE of protocol version 2024-11-05."""

    type: Literal["sse"]
    """Transport, always `sse`."""
    url: str
    """URL of the server's SSE endpoint."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers that are sent with every request. Write secrets as references such as `${VAR}`."""
    disabled: bool = False
    """`true`: do not connect to this server."""


Transport = Literal["stdio", "http", "sse"]
"""Transport to a server, the `type` of its entry in the configuration (`streamable-http` is read as `http`)."""

ServerEntry = StdioServer | HttpServer | SseServer


class Expose(Model):
    """Local agents, skills, workflows and functions to serve. Paths are relative to the configuration file."""

    agents: list[str] = Field(default_factory=list)
    """Folders (or files) with agents (`*.agent.md`) and workflows (`*.workflow.yaml`)."""
    skills: list[str] = Field(default_factory=list)
    """Folders that contain skills, which are folders with a `SKILL.md`."""
    functions: list[str] = Field(default_factory=list)
    """Importable Python modules whose functions with `@tool` are served as tools."""


class TlsSettings(Model):
    """Certificate and key with which the gateway itself serves HTTPS (TLS 1.2 and later). It reads the files again when they change."""

    certificate: str
    """PEM file with the certificate, followed by the intermediate certificates, relative to the configuration file."""
    key: str
    """PEM file with the private key of the certificate, relative to the configuration file. Other users must not be able to read it."""
    key_password: str | None = None
    """Password of an encrypted key, as a reference such as `${TLS_KEY_PASSWORD}`."""


class HttpSettings(Model):
    """The gateway's HTTP endpoint."""

    host: str = "127.0.0.1"
    """Address on which the gateway listens. An address other than loopback requires API keys (`moongate keys add`)."""
    port: int = Field(default=8765, ge=0, le=65535)
    """TCP port on which the gateway listens; 0 picks a free port."""
    path: str = Field(default="/mcp", pattern=r"^/[A-Za-z0-9/_-]*$")
    """Path of the MCP endpoint."""
    tls: TlsSettings | None = None
    """Certificate with which the gateway serves HTTPS. Left out: it serves plain HTTP."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Accepted values of the header `Host`, in addition to loopback and `host`, e.g. `hub.example.com` or `hub.example.com:*`."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Accepted values of the header `Origin`, in addition to loopback, e.g. `https://app.example.com`."""
    max_request_bytes: int = Field(default=4_194_304, ge=1024)
    """Maximum bytes of a request body; a larger body is rejected with status 413."""
    max_connections: int = Field(default=4096, ge=1)
    """Maximum number of connections, at most half the limit of open files. At the limit, a new connection closes the connection that is
    idle longest; if all connections are busy, the new connection is rejected with status 503.
    """
    head_seconds: float = Field(default=10, gt=0)
    """Seconds within which the headers of a request must arrive; otherwise it is rejected with status 408. With `tls`, they include the
    handshake of a new connection, which is closed if it is not complete by then.
    """
    body_seconds: float = Field(default=60, gt=0)
    """Seconds within which the body of a request must arrive; otherwise it is rejected with status 408."""
    unread_seconds: float = Field(default=60, gt=0)
    """Seconds that a response waits for a client that does not read it; then the connection is closed."""
    leave_seconds: float = Field(default=0, ge=0, le=600)
    """Seconds after SIGTERM for which new requests are still served while `/ready` answers 503. Then `drainSeconds` begin."""
    drain_seconds: int = Field(default=10, ge=0)
    """Seconds that in-flight calls may still run after SIGTERM. A second signal ends them at once."""
    replica_address: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """URL without a path at which the other gateways on the same `storage.url` reach this gateway, e.g. `http://10.0.0.3:8765`. Left out:
    the address on which it listens, or this machine's address in the network of the database server.
    """
    direct_path: Literal["auto", "off"] = "auto"
    """`auto`: requests of clients that need no feature of the MCP SDK are served without the SDK, which is faster; `off`: the SDK serves
    all requests.
    """
    agui: bool = True
    """Also serve each agent at `/agui/<agent>`, for applications that use the AG-UI protocol."""


class LimitSettings(Model):
    """Limits on what clients may use over HTTP: for each network address or caller, and for all callers together.

    Without API keys, all clients count as one caller, which may use as much as all callers together.
    """

    connections_per_address: int | None = Field(default=None, ge=1)
    """Maximum connections of one IPv4 address or IPv6 /64. Left out: half of `maxConnections`, and unlimited for this machine."""
    incomplete_bytes: int | None = Field(default=None, ge=65_536)
    """Maximum bytes of all requests that have only partly arrived. One address or caller may use a quarter, but at least `maxRequestBytes`;
    an address of this machine, or a client without an API key, may use all. If one exceeds its share, the gateway ends the oldest of its
    incomplete requests. If all together exceed the limit, the address or caller with most bytes loses its oldest. Left out: 64 MiB, or 16
    times `maxRequestBytes` if that is more.
    """
    request_bytes: int | None = Field(default=None, ge=65_536)
    """Maximum bytes of the bodies of all requests in progress. Left out: 256 MiB, or 64 times `maxRequestBytes` if that is more."""
    request_bytes_per_caller: int | None = Field(default=None, ge=65_536)
    """Maximum bytes of the bodies of one caller's requests in progress. Left out: a quarter of `requestBytes`."""
    unread_bytes: int | None = Field(default=None, ge=65_536)
    """Maximum bytes of all responses that clients have not read yet. At twice this limit, the gateway closes connections of the caller
    with most bytes. Left out: 256 MiB.
    """
    unread_bytes_per_caller: int | None = Field(default=None, ge=65_536)
    """Maximum bytes of responses that one caller has not read yet. Beyond the limit, its calls are rejected with status 429. Left out: a
    quarter of `unreadBytes`.
    """
    calls_per_caller: int | None = Field(default=None, ge=1)
    """Maximum calls in progress of one caller. Left out: a quarter of `maxConnections`."""
    streams: int | None = Field(default=None, ge=1)
    """Maximum open streams of all callers: GET streams, `subscriptions/listen` and AG-UI runs. Left out: half of `maxConnections`."""
    streams_per_caller: int | None = Field(default=None, ge=1)
    """Maximum open streams of one caller. Left out: an eighth of `maxConnections`."""
    sessions: int = Field(default=10_000, ge=1)
    """Maximum MCP sessions (protocol version 2025) of all callers. At the limit, a new session closes the session that is idle longest."""
    sessions_per_caller: int | None = Field(default=None, ge=1)
    """Maximum MCP sessions of one caller. Left out: a quarter of `sessions`."""


class ServerSettings(Model):
    """Settings of the gateway as an MCP server."""

    name: str = "moongate"
    """Name of the gateway that clients see."""
    instructions: str | None = None
    """Text before the generated overview in the MCP `instructions` that clients receive."""
    http: HttpSettings = Field(default_factory=HttpSettings)
    """The HTTP endpoint."""
    auth: InboundAuthSettings = Field(default_factory=InboundAuthSettings)
    """Access tokens with which clients may use the HTTP endpoint."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Limits on what clients may use over HTTP."""
    client_prefix: str = Field(default="", max_length=40)
    """Prefix that your client puts before tool names (e.g. `mcp__moongate__`). The gateway keeps its tool names short enough for it."""
    page_size: int = Field(default=1000, ge=1, le=10_000)
    """Number of entries per page of `tools/list` and other lists."""
    startup_timeout_seconds: float = Field(default=10, ge=0)
    """Seconds that the first `tools/list` or other list waits for servers that are still starting."""
    ask_timeout_seconds: float = Field(default=3600, gt=0)
    """Seconds that a request for input (elicitation or sampling) waits for its answer; then the call that needs the answer ends."""
    approval_by: ApprovalBy | None = None
    """Who may approve calls: `caller`, `operator` or `other-principal`. Left out: `caller` without API keys, `operator` with keys."""
    standing_approval_days: float = Field(default=30, ge=0)
    """Days for which a standing approval, which covers future calls, is valid; 0: only single calls can be approved."""
    max_child_processes: int = Field(default=64, ge=1)
    """Maximum number of processes of servers. At the limit, a new process stops the process that is unused longest."""
    large_result_bytes: int = Field(default=67_108_864, ge=1_048_576)
    """Maximum bytes of servers' large responses (over 1 MiB) that are processed at once; one caller may use half. More responses wait."""
    status_tool: bool = True
    """Offer the tool `gateway_status`, which tells a model why a server is missing."""
    reload: bool = True
    """Apply changes of the configuration file while the gateway runs. An invalid file is not applied."""
    lock_file: str | None = None
    """Path of the file to which `moongate lock` writes accepted tool definitions. Left out: beside the configuration, `gateway.lock.json`
    for `gateway.json`.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of messages in the log on stderr."""

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


class ObjectStorageSettings(Model):
    """Address of the bucket of `storage.results`, and credentials for it. Settings left out come from the environment (`AWS_…`)."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/?#@\s]+/?$")
    """URL of the server, without the bucket. Left out: `AWS_ENDPOINT_URL`, else Amazon S3."""
    region: str | None = Field(default=None, pattern=r"^[a-z0-9-]{1,40}$")
    """Region of the bucket. Left out: `AWS_REGION`, else `us-east-1`."""
    access_key: str | None = None
    """Access key, or a reference to it. Left out: `AWS_ACCESS_KEY_ID`, or the role of the machine."""
    secret_key: str | None = None
    """Reference to the secret key, such as `${VAR}` or `${file:PATH}`. Left out: `AWS_SECRET_ACCESS_KEY`."""
    session_token: str | None = None
    """Reference to the session token of temporary credentials. Left out: `AWS_SESSION_TOKEN`."""
    path_style: bool = True
    """Write the bucket's name in the path of URLs; false: in the host name."""
    timeout_seconds: float = Field(default=20, ge=1, le=25)
    """Maximum seconds to write or read one result, with repetitions."""

    @model_validator(mode="after")
    def _keys_belong_together(self) -> ObjectStorageSettings:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("accessKey and secretKey belong together: write both, or neither")
        return self


class StorageSettings(Model):
    """The place of the gateway's stored state, and how long it is stored."""

    dir: str | None = None
    """Folder for the gateway's state. Left out: the user's state folder."""
    url: str | None = None
    """URL of a database server to use in place of the files `gateway.db` and `keys.json` in `dir`:
    `postgresql://user:${PASSWORD}@host/database`.
    """
    installation_key: str | None = Field(default=None, repr=False)
    """Secret from which all other keys of the gateway are derived: 32 or more random bytes as base64 or hex, as a reference such as
    `${file:PATH}` or `${env:NAME}`. Gateways on one database need the same. Left out: the file `installation-key` in `dir`.
    """
    results: str | None = Field(default=None, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*/?$")
    """Bucket, and a folder in it, for the full text of shortened results: `s3://BUCKET/FOLDER`. Left out: the folder `results` in `dir`."""
    s3: ObjectStorageSettings = Field(default_factory=ObjectStorageSettings)
    """Address of the bucket of `results`, and credentials for it."""
    result_ttl_seconds: float = Field(default=3600, gt=0)
    """Seconds for which the full text of a shortened result is stored and can be read with `read_result`."""
    max_result_bytes_per_caller: int = Field(default=268_435_456, ge=1024)
    """Maximum bytes of stored results of one caller. New results replace the oldest."""
    audit_days: int = Field(default=30, ge=1)
    """Days after which entries of the audit log are deleted."""

    @property
    def root_key(self) -> bytes | None:
        """The bytes of `installation_key`, or `None` if it is left out. Raises `ConfigError` if it is not a key."""
        return None if self.installation_key is None else decode_installation_key(self.installation_key)

    @model_validator(mode="after")
    def _bucket_is_named(self) -> StorageSettings:
        if self.results is None and self.s3 != ObjectStorageSettings():
            raise ValueError("s3 has no effect without `results`: name the bucket, as in `s3://BUCKET/FOLDER`")
        return self


class SessionSettings(Model):
    """Sessions: conversations of callers with agents, each of which spans several calls."""

    ttl_seconds: float = Field(default=2_592_000, gt=0)
    """Seconds after its last call at which a session is deleted. An agent's file may override the value."""
    max_per_caller: int = Field(default=200, ge=1)
    """Maximum number of sessions of one caller."""
    wait_seconds: float = Field(default=20, ge=0)
    """Seconds that a call waits for another call in the same session to end; then it fails as busy."""


class TaskSettings(Model):
    """Settings of all calls that run in the background as tasks. Settings for the tasks of one source are in `policies`."""

    engine: Literal["local", "temporal"] = "local"
    """What decides which process runs a task. `local`: the gateway, with its database. `temporal`: a Temporal server (`temporal`)."""
    temporal: TemporalSettings = Field(default_factory=TemporalSettings)
    """The Temporal server for `engine: temporal`."""
    inline_seconds: float | None = Field(default=50, ge=0)
    """Seconds that a client without task support waits for the result of a call that may run as a task. Then the client receives a handle
    with which it reads the result later. `null`: the client waits for the result.
    """
    ttl_seconds: float = Field(default=3600, gt=0, le=31_536_000)
    """Seconds for which the result of a finished task can be read, if the client does not request another time."""
    ask_timeout_seconds: float = Field(default=604_800, gt=0)
    """Seconds that a task's question to a person waits for the answer, including time in which the gateway is stopped. Then the part of the
    task that needs the answer fails.
    """
    max_per_caller: int = Field(default=64, ge=1)
    """Maximum number of unfinished tasks of one caller, running and waiting. More tasks are rejected."""
    max_running_per_caller: int = Field(default=16, ge=1)
    """Maximum number of running tasks of one caller; more tasks wait in a queue. Tasks that wait for a person do not count."""
    starts_per_minute_per_caller: int | None = Field(default=None, ge=1)
    """Maximum number of tasks of one caller that start within a minute; more tasks wait in a queue. `null`: unlimited."""
    schedules: dict[str, ScheduledCall] = Field(default_factory=dict)
    """Tool calls that Temporal starts at set times, by name, for `engine: temporal`. Temporal's web interface shows their next runs."""


class SecretCommand(Model):
    """A program whose output is a secret, to which `${cmd:NAME}` refers."""

    command: list[str] = Field(min_length=1)
    """Program and arguments, run without a shell. The standard output without line breaks at its end is the secret."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Seconds after which the program is killed and the reference fails."""


class Defaults(Model):
    """Defaults for agents whose files leave out a setting."""

    model: str | None = None
    """Model of agents with `model: auto` if `OPENAI_MODEL` is not set, for example `gpt-5-mini`."""


class TelemetrySettings(Model):
    """Metrics that the gateway serves itself. The variable `ENABLE_INSTRUMENTATION` also exports traces and metrics by OTLP."""

    prometheus: str | None = Field(default=None, pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")
    """Address `HOST:PORT` at which `moongate run` over HTTP serves metrics for Prometheus (`/metrics`), for example `127.0.0.1:9464`. Left
    out: none are served. Metrics need no API key, so let only the scraper reach the address.
    """

    @field_validator("prometheus")
    @classmethod
    def _port(cls, value: str | None) -> str | None:
        if value is not None and not 1 <= int(value.rpartition(":")[2]) <= 65535:
            raise ValueError(f"{value!r} has no port from 1 to 65535; write HOST:PORT, such as 127.0.0.1:9464")
        return value

    @property
    def prometheus_address(self) -> tuple[str, int] | None:
        """Host and port of `prometheus`; `None` if it is left out."""
        if self.prometheus is None:
            return None
        host, _, port = self.prometheus.rpartition(":")
        return host.strip("[]"), int(port)


class GatewayConfig(Model):
    """The whole configuration file `gateway.json`."""

    schema_: Annotated[str | None, Field(alias="$schema")] = None
    """URL or path of the JSON Schema of this file, for completion in editors."""
    mcp_servers: dict[str, ServerEntry] = Field(default_factory=dict)
    """MCP servers behind the gateway, by name, in the form that IDEs use. VS Code's key `servers` means the same."""
    policies: dict[str, SourcePolicy] = Field(default_factory=dict)
    """The operator's rules for each source of tools, by name of the source."""
    access: AccessSettings | None = None
    """Roles and Cedar policies: who may use which tools, resources, prompts, skills, agents and workflows. Left out: every caller may use
    what its API key allows.
    """
    expose: Expose = Field(default_factory=Expose)
    """Your own agents, skills, workflows and functions to serve."""
    agents: AgentSettings = Field(default_factory=AgentSettings)
    """Settings of every agent."""
    skills: SkillSettings = Field(default_factory=SkillSettings)
    """How skills are read, and which of their scripts may run."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    """Settings of the gateway as an MCP server."""
    storage: StorageSettings = Field(default_factory=StorageSettings)
    """The place of the gateway's stored state, and how long it is stored."""
    sessions: SessionSettings = Field(default_factory=SessionSettings)
    """Sessions: conversations of callers with agents."""
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    """Calls that run in the background as tasks."""
    audit: AuditSettings = Field(default_factory=AuditSettings)
    """What the audit log records of allowed calls and of arguments."""
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    """Metrics for Prometheus."""
    secrets: dict[str, SecretCommand] = Field(default_factory=dict)
    """Programs whose outputs are secrets, by the name in `${cmd:NAME}`."""
    defaults: Defaults = Field(default_factory=Defaults)
    """Defaults for agents whose files leave out a setting."""

    @model_validator(mode="after")
    def _names(self) -> GatewayConfig:
        for name in self.mcp_servers:
            if (problem := judge_server_name(name)) is not None:
                raise ValueError(f"server {problem}")
        return self

    @model_validator(mode="after")
    def _task_queue(self) -> GatewayConfig:
        if self.tasks.engine == "temporal" and self.storage.url is not None and self.tasks.temporal.task_queue is None:
            raise ValueError(
                "tasks.temporal.taskQueue: missing, but `storage.url` is set; name a task queue that only the gateways on this database use"
            )
        if self.tasks.engine != "temporal" and (named := [key for key, policy in self.policies.items() if policy.tasks.task_queue]):
            text = "has an effect only with `tasks.engine: temporal`; set the engine, or remove the key"
            raise ValueError(f"policies.{named[0]}.tasks.taskQueue: {text}")
        return self

    @model_validator(mode="after")
    def _schedules(self) -> GatewayConfig:
        for name in self.tasks.schedules:
            if not re.fullmatch(SCHEDULE_NAME_PATTERN, name):
                raise ValueError(f"tasks.schedules: name {name!r} may only have letters, digits, '_' and '-', at most 63")
            if self.tasks.engine != "temporal":
                text = "Temporal starts scheduled calls, so they need `tasks.engine: temporal`; set the engine, or remove the schedule"
                raise ValueError(f"tasks.schedules.{name}: {text}")
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
        """Return the policy of a source, or a policy of default values if the configuration contains no policy for the source."""
        return self.policies.get(source) or SourcePolicy()

    def task_queues_of(self, sources: Iterable[str]) -> set[str]:
        """Return the task queues at Temporal that the policies of these sources name."""
        return {queue for source in sources if (queue := self.policy(source).tasks.task_queue) is not None}

    def prefix_of(self, source: str) -> str:
        """Return the prefix that the gateway puts before the names of a source's tools, without `__`.

        It is the `prefix` of the source's policy or, by default, the name of the source; an empty string for the source `skill`.
        """
        prefix = self.policy(source).prefix
        return prefix if prefix is not None else "" if source == "skill" else source


def judge_server_name(name: str) -> str | None:
    """Return why a server cannot have the name `name`, as a text such as `name 'x' is reserved` without full stop; `None` if it can."""
    if name in RESERVED_SOURCES:
        return f"name {name!r} is reserved for Moongate's own sources; choose another"
    if not re.fullmatch(SOURCE_NAME_PATTERN, name):
        return f"name {name!r} may only have letters, digits, '_' and '-', at most 40"
    return None


def judge_policy_name(name: str, servers: Iterable[str]) -> str | None:
    """Return a message that the policy with the key `name` has no effect, because no source of tools has this name.

    Returns `None` if a source has the name. `servers` are the names of all servers. The keys `agent/<name>` and `workflow/<name>` are
    accepted without a check, because the files of agents and workflows are not read here.
    """
    known = RESERVED_SOURCES.union(servers)
    if name in known or "/" in name:
        return None
    return f"no source is called {name!r}, so the policy does nothing. {did_you_mean(name, known)}".rstrip()
