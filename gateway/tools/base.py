"""`Tool` and `ToolSource`: the interfaces of everything that the gateway can call, and the types of the outcomes of calls.

A tool of a remote server, a Python function, an agent, a skill tool and a workflow all implement `Tool`, and differ only in what `call`
does. A `ToolSource` provides tools; a `Source` also provides resources and prompts. Values are decoded JSON with MCP's camelCase keys, so
that results of servers are forwarded unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

from gateway.auth.principal import Principal, is_operator
from gateway.json_types import JsonMapping, JsonObject, JsonValue, objects_in
from gateway.policy.caller_rights import Rights
from gateway.policy.hidden_text import is_binary

if TYPE_CHECKING:
    from gateway.config.models import Transport
    from gateway.tools.context import CallContext
    from gateway.wire.long_text import LongText

TaskSupport = Literal["never", "optional", "required"]
TaskRunnerName = Literal["nobody", "gateway", "server"]
Kind = Literal["resources", "templates", "prompts"]
ChangeKind = Literal["tools", "resources", "prompts"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """The definition of a tool, as clients see it in `tools/list`, and settings for its calls. Schemas stay as the author wrote them."""

    name: str
    """Name of the tool in its source (native name). The catalog assigns the exposed name, by which clients call the tool."""
    description: str | None = None
    input_schema: JsonObject = field(default_factory=lambda: cast("JsonObject", {"type": "object"}))
    output_schema: JsonObject | None = None
    title: str | None = None
    annotations: JsonObject | None = None
    """The tool annotations of MCP (`readOnlyHint`, …). They are untrusted hints if they come from a remote server."""
    extra: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Other keys of the published definition, unchanged: `icons`, `_meta`, …"""
    task: TaskSupport = "never"
    task_by: TaskRunnerName = "nobody"
    """Who runs calls of the tool as MCP tasks: this gateway, the tool's server, or nobody. `nobody` publishes no `taskSupport`."""
    needs_approval: bool = False
    """Whether the tool's author requires that a person approves each call. The gate (the checks before each call) requests the approval."""
    may_request_input: bool = False
    """Whether a call may request input from the client (`CallContext.ask`).

    If false, the gateway's server may run the tool for every client on the fast path (without the MCP SDK).
    """

    def to_wire(self, name: str | None = None) -> JsonObject:
        """Return the definition as an MCP `Tool` object with the name `name`; without `name`, with the native name."""
        wire: JsonObject = {"name": name or self.name}
        if self.title is not None:
            wire["title"] = self.title
        if self.description is not None:
            wire["description"] = self.description
        wire["inputSchema"] = self.input_schema
        if self.output_schema is not None:
            wire["outputSchema"] = self.output_schema
        if self.annotations is not None:
            wire["annotations"] = self.annotations
        if self.task_by != "nobody" and self.task != "never":
            wire["execution"] = {"taskSupport": self.task}
        return {**wire, **self.extra}


class Releasable(Protocol):
    """Protocol of a claim: the part of the limited memory for large results (`upstream.large_bodies`) that one result occupies."""

    def release(self) -> None:
        """End the claim, so that other large results can use its part of the memory. Further calls have no effect."""
        ...


class Received(dict[str, JsonValue]):
    """The result of a request to a server: a dict with the JSON from which it was parsed, because the JSON is faster to search."""

    __slots__ = ("claim", "encoded", "long_text")

    def __init__(self, result: JsonObject, encoded: tuple[bytes, ...], long_text: LongText | None, claim: Releasable | None = None) -> None:
        """Copy the members of `result`.

        `encoded` is the JSON of the whole response, as consecutive byte strings. `long_text` is a string of at least 64 KiB in the result
        that was found while parsing, or `None`; its JSON is in separate byte strings of `encoded`. `claim` is the part of the memory for
        large results that the result occupies.
        """
        dict.__init__(self, result)  # pyright: ignore[reportUnknownMemberType]  # `super()` takes as long again, for every call
        self.encoded = encoded
        self.long_text = long_text
        self.claim = claim


@dataclass(slots=True)  # not frozen, because creating a frozen object takes three times as long, and each call creates one
class Complete:
    """The outcome of a finished tool call: an MCP `CallToolResult` as decoded JSON. The receiver may change it."""

    result: JsonObject
    """`content` (list of content blocks) and optionally `structuredContent`, `isError`, `_meta`."""
    encoded: tuple[bytes, ...] | None = field(default=None, compare=False, repr=False)
    """The JSON from which `result` was parsed, as consecutive byte strings; `None` if unknown. It can be searched faster than `result`."""
    long_text: LongText | None = field(default=None, compare=False, repr=False)
    """A string of at least 64 KiB in `result`, if one was found. The byte strings of `encoded` at odd indexes then contain its JSON."""
    claim: Releasable | None = field(default=None, compare=False, repr=False)
    """Claim on the limited memory for large results, if the result has one. The gate (the policy checks of calls) releases the claim.

    If the claim is a `HelperResult`, a helper process has the content, and `result` has no content until the gate has checked it.
    """

    @classmethod
    def text(cls, text: str, *, is_error: bool = False, structured: JsonValue = None) -> Complete:
        """Create a result with one text block, and with `structured` as its structured content unless `structured` is `None`."""
        result: JsonObject = {"content": [{"type": "text", "text": text}]}
        if structured is not None:
            result["structuredContent"] = structured
        if is_error:
            result["isError"] = True
        return cls(result)

    @classmethod
    def received(cls, result: JsonObject) -> Complete:
        """Create the outcome from a server's result. If the result is a `Received`, its JSON and its memory claim are included."""
        if not isinstance(result, Received):
            return cls(result)
        return cls(result, result.encoded, result.long_text, result.claim)

    @property
    def text_parts(self) -> tuple[bytes, ...] | None:
        """The byte strings of the result's JSON (`encoded`) that must be searched for invisible characters: all except long binary data.

        `None` if the JSON of the result is unknown.
        """
        parts, long_text = self.encoded, self.long_text
        if parts is None or long_text is None or not all(is_binary(key, node) for node, key in long_text.holders):
            return parts
        return parts[::2]

    @property
    def content(self) -> list[JsonObject]:
        """The content blocks of the result, as decoded JSON; an empty list if the result has no `content`."""
        return self.result.get("content") or []

    @property
    def structured(self) -> JsonValue:
        """The structured content of the result (`structuredContent`), or `None` if it is absent."""
        return self.result.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the result reports a failed call (`isError`)."""
        return bool(self.result.get("isError"))

    def as_text(self) -> str:
        """Return the texts of all text blocks of the result, joined by newlines."""
        return "\n".join(str(b.get("text", "")) for b in self.content if b.get("type") == "text")


def is_call_result(result: JsonMapping) -> bool:
    """Return whether a server's result has the form of a `CallToolResult`: a list of objects as `content`, or `structuredContent` alone."""
    content: list[JsonValue] | None = result.get("content")  # a faulty server may send another type
    if not isinstance(content, list):
        return "structuredContent" in result
    for block in content:
        if not isinstance(block, dict):
            return False
    return True


def complete_result(result: JsonObject, *, is_modern: bool) -> JsonObject:
    """Return the final result of a request in the form for the client's protocol version.

    Versions from 2026 on (`is_modern`) require `resultType: complete`; for 2025 versions `resultType` is removed.
    """
    if is_modern:
        return {"resultType": "complete", **result}
    return {key: value for key, value in result.items() if key != "resultType"} if "resultType" in result else result


def cacheable(result: JsonObject, ttl_ms: int = 0) -> JsonObject:
    """Add the fields that let a client cache `result` for `ttl_ms`, unless they are set already; return the changed `result`.

    Shared caches must not store a result of the gateway, because results differ by caller.
    """
    result.setdefault("ttlMs", ttl_ms)
    result.setdefault("cacheScope", "private")
    return result


def prompt_schema(prompt: JsonMapping) -> JsonObject:
    """Return the input schema of a tool that renders a prompt. `prompt` is an entry of `prompts/list`; all its arguments are strings."""
    properties: JsonObject = {}
    required: list[str] = []
    for argument in objects_in(prompt.get("arguments")):
        if isinstance(name := argument.get("name"), str):
            description = argument.get("description")
            properties[name] = {"type": "string", **({"description": description} if description else {})}
            if argument.get("required"):
                required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The outcome of a call that needs input from the client and must be repeated with the answers (MCP `input_required`, SEP-2322)."""

    requests: Mapping[str, JsonObject]
    """Requests for input by key: `{"method": "elicitation/create" | "sampling/createMessage" | "roots/list", "params": {…}}`."""
    state: str | None = None
    """The opaque `requestState` that the client must send back unchanged when it repeats the call."""
    meta: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The outcome of a call that continues in the background as an MCP task: a `CreateTaskResult` (SEP-2663), as decoded JSON."""

    task: JsonObject


ToolOutcome = Complete | InputRequired | TaskStarted
"""The possible outcomes of a tool call, for MCP's `resultType` `complete`, `input_required` and `task`."""


class Tool(Protocol):
    """Protocol of everything that the gateway can call: a remote tool, a Python function, an agent, a skill tool or a workflow.

    One object serves concurrent calls, so it must not store the state of a call.
    """

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool. It must not change while a source serves the object; for a change, the source makes a new `Tool`."""
        ...

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the tool once. The gate calls this method after it has checked the arguments against the policy and the input schema.

        If a model can act on a failure, the method returns a `Complete` with `isError`, or raises a `GatewayError`, which the gate converts
        to a `Complete`.
        """
        ...


class NamedTool(Tool, Protocol):
    """Protocol of a tool that also has the attributes `name` and `description`, which middleware written for agent-framework reads."""

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        ...

    @property
    def description(self) -> str:
        """The description for the model; empty if the tool has no description."""
        ...


TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]


@runtime_checkable
class TaskTool(Protocol):
    """Protocol of a remote server's tool that also forwards requests about the MCP tasks that the server creates for calls of the tool."""

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a task request to the server, and return its result in the form of MCP 2026-07-28. `taskId` in `params` is the server's id.

        Raises:
            NotFound: The server has no task with this id (`kind` is `task`).
        """
        ...


OnChange = Callable[[ChangeKind], None]
"""A callback that a source calls with the kind of a list (such as `tools`) that may have changed. It must not block or raise."""


@runtime_checkable
class DescribingTool(Protocol):
    """Protocol of a tool whose description depends on the caller, because it lists items that only some callers may use (skills)."""

    def description_for(self, rights: Rights | None, named: Sequence[str] = ()) -> str:
        """Return the description for a caller with these `rights` (`None`: no restriction).

        For the model of an agent, `named` are the skills that the agent's file names.
        """
        ...


@runtime_checkable
class ToolSource(Protocol):
    """Protocol of a provider of tools: a remote server, or the gateway's functions, agents, workflows or skills.

    The owner of a source enters it as an async context manager before use.
    """

    @property
    def id(self) -> str:
        """Unique id of the source: a server's name in the configuration, or `agent`, `skill`, `workflow`, `function` or `gateway`."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return the current tools of the source in stable order, without sending a request."""
        ...

    def subscribe(self, on_change: OnChange) -> None:
        """Register the callback for changes of the source's lists, which the catalog sets. It replaces a callback registered earlier."""
        ...


class Source(ToolSource, Protocol):
    """Protocol of a source (server, skills, gateway) that also provides resources, resource templates, prompts and completion."""

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return all resources, templates or prompts in MCP form, in stable order, without sending a request.

        The entries have native names and URIs, which are the names and URIs that the source itself uses.
        """
        ...

    async def read(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read the resource with this native URI (the source's own URI), and return its result. Raises `NotFound("resource", uri)`."""
        ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> PromptOutcome:
        """Render the prompt with this native name (the source's own name), and return its result. Raises `NotFound("prompt", name)`."""
        ...

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return suggestions for an argument of a prompt or template, as MCP's `completion` object (`values`, `total`, `hasMore`)."""
        ...

    async def watch(self, uri: str) -> None:
        """Subscribe to updates of the resource with a native URI. Each subscription needs its own call of `unwatch`."""
        ...

    async def unwatch(self, uri: str) -> None:
        """End one subscription to a native URI that a call of `watch` started."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a finished `resources/read` or `prompts/get`: the MCP result as decoded JSON (`contents`, or `messages`)."""

    result: JsonObject


ReadOutcome = Finished | InputRequired
PromptOutcome = Finished | InputRequired


SourceState = Literal["starting", "ready", "idle", "auth needed", "down", "held", "disabled"]
"""The state of a source.

`idle`: disconnected on purpose; the next call connects again. `auth needed`: the server rejects the gateway's credentials. `held`: the
server's configuration entry waits until a person accepts it. `disabled`: the entry is disabled or invalid.
"""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A wait that blocks other clients' calls to a server of protocol 2025-11-25 or older. The server's status shows the wait.

    Either the server waits for the answer to its request for input, or the gateway waits until a cancelled call has ended on the server.
    """

    method: str
    """MCP method of the server's request for input; empty for a cancelled call."""
    caller: Principal | None
    """The principal that made the call; `None` if the viewer of the status may not see the principal."""
    client: str
    """Name that the client of the call declares; empty if the viewer of the status may not see the client."""
    seconds: int
    """Seconds since the wait for the answer, or for the end of the cancelled call, began."""
    seconds_left: int
    """Seconds until the gateway stops waiting for the answer, or for the end of the cancelled call."""
    approvers: str = ""
    """Description of the people who must approve the request for input first; empty if it goes directly to the client of the call."""
    calls_waiting: int = 0
    """Number of calls of other clients that the wait blocks."""

    @property
    def text(self) -> str:
        """A description of the wait for the status line of its server, such as `waits 5 s for 'ann' to answer …`."""
        who = "another caller" if self.caller is None else repr(self.caller.name or self.caller.id)
        who = f"{who} (client {self.client!r})" if self.client else who
        awaited = f"{who} to answer {self.method}" if not self.approvers else f"{self.approvers} to approve {self.method} for {who}"
        awaited = awaited if self.method else f"the end of a cancelled call of {who}"
        text = f"waits {self.seconds} s for {awaited}, and {self.seconds_left} s more at most"
        if not self.calls_waiting:
            return text
        return f"{text}; {'1 call of others waits' if self.calls_waiting == 1 else f'{self.calls_waiting} calls of others wait'} for it"


SourceFailure = Literal["credentials", "timeout"]
"""Kind of a failed connection to a server: its credentials were rejected (401 or 403), or it was not ready within the timeout."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of a source of tools (a server, or the agents, skills, workflows or functions of the gateway), as operators see it."""

    name: str
    kind: Literal["server", "agent", "skill", "workflow", "function"]
    transport: Transport | Literal["local"]
    protocol_version: str
    state: SourceState
    tools: int
    milliseconds: float | None = None
    """Milliseconds from the start of the connection until the source's lists (such as its tools) were fetched; `None` before that."""
    error: str | None = None
    """The problem of the source, such as why it is down or why tools are left out, and how to fix it; `None` without a problem."""
    failure: SourceFailure | None = None
    """Kind of the failure that `error` describes, if it is a rejection of credentials or a timeout; else `None`."""
    quarantined: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Native name of each tool that is not served until a person accepts its definition → the reason, and the command that accepts it."""
    suspicious: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Listed item (such as `tool search`) whose text reads like instructions to a model → the reason. The items are still served."""
    since: str | None = None
    """Time at which the source began to fail, in ISO 8601; `None` if it does not fail."""
    loop: str | None = None
    """If the source is this gateway, or a gateway that connects to this gateway: a text with the problem and the fix; else `None`."""
    questions: tuple[OpenQuestion, ...] = ()
    """Waits of an older server for input or for the end of a cancelled call, which block calls of other clients."""

    def to_json(self) -> JsonObject:
        """Return all fields as a dict with the names of the fields as keys. Each item of `questions` becomes a text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "questions": [question.text for question in self.questions]}

    def seen_by(self, viewer: Principal) -> SourceStatus:
        """Return the status as the principal `viewer` may see it: only operators see the principals and clients of other callers."""
        if not self.questions or is_operator(viewer):
            return self
        seen = (q if q.caller == viewer else dataclasses.replace(q, caller=None, client="") for q in self.questions)
        return dataclasses.replace(self, questions=tuple(seen))


@runtime_checkable
class UpdatingSource(Protocol):
    """Protocol of a `Source` that reports updates of resources to which the gateway has subscribed."""

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register a function that the source calls with the native URI (its own URI) of each subscribed resource that changes.

        The function must not block or raise.
        """
        ...


@runtime_checkable
class QuarantiningSource(Protocol):
    """Protocol of a `ToolSource` that does not list tools with new or changed definitions until a person accepts them."""

    def quarantined(self) -> Mapping[str, str]:
        """Return the tools that are not listed until a person accepts them: native name → the reason, and the command that accepts it."""
        ...


SkillMethod = Literal["skills/list", "skills/get", "resources/directory/read"]
"""The methods of MCP's skills extension (SEP-2640)."""


@runtime_checkable
class SkillServing(Protocol):
    """Protocol of a source that may support MCP's skills extension (SEP-2640)."""

    @property
    def serves_skills(self) -> bool:
        """Whether the source supports the skills extension now."""
        ...

    @property
    def reads_directories(self) -> bool:
        """Whether the source supports the method `resources/directory/read` of the skills extension."""
        ...

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a request of the skills extension to the source, and return the result. URIs are native (those that the source uses).

        Raises `NotFound` for an unknown URI or cursor.
        """
        ...


@runtime_checkable
class InputRequestingSource(Protocol):
    """Protocol of a `Source` that may request input from the client (`CallContext.ask`) when it reads a resource or renders a prompt."""

    @property
    def may_request_input(self) -> bool:
        """Whether reading a resource or rendering a prompt may request input from the client, as far as the source knows now."""
        ...
