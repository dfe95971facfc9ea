"""`Tool` and `ToolSource`: the interfaces of everything callable, and the types of outcomes.

A proxied tool, a Python function, an agent, a skill tool and a workflow are all a `Tool`, and differ only in what `call` does. A
`ToolSource` yields tools; a `Source` has resources and prompts too. Values are decoded JSON with MCP's camelCase keys, so a relayed result
passes unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

from gateway.auth.principal import Principal, is_operator
from gateway.json_types import JsonMapping, JsonObject, JsonValue, objects_in
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
    """The published definition of a tool. Schemas are kept exactly as their author wrote them."""

    name: str
    """Native name within the tool's source. The catalog chooses the exposed name, which clients call."""
    description: str | None = None
    input_schema: JsonObject = field(default_factory=lambda: cast("JsonObject", {"type": "object"}))
    output_schema: JsonObject | None = None
    title: str | None = None
    annotations: JsonObject | None = None
    """MCP hints (`readOnlyHint`, …); untrusted if they come from a remote server."""
    extra: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Other published keys, verbatim: `icons`, `_meta`, …"""
    task: TaskSupport = "never"
    task_by: TaskRunnerName = "nobody"
    """What runs calls as tasks: this gateway, the tool's server, or nobody. With `nobody`, clients do not see `taskSupport`."""
    needs_approval: bool = False
    """Whether the tool's author wants a person to approve each call. The gate asks the person."""
    may_ask: bool = False
    """Whether `call` may use `CallContext.ask`. If not, the server's fast path may run the tool for every client."""

    def to_wire(self, name: str | None = None) -> JsonObject:
        """Return the MCP `Tool` object, with the exposed name `name`, or else the native name."""
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
    """A claim: the share that a large result has of the limited memory for large results (`upstream.large_bodies`)."""

    def release(self) -> None:
        """Give the share of memory back. Further calls have no effect."""
        ...


class Received(dict[str, JsonValue]):
    """The result of a request to a server, together with the JSON from which it was parsed."""

    __slots__ = ("claim", "encoded", "long_text")

    def __init__(self, result: JsonObject, encoded: tuple[bytes, ...], long_text: LongText | None, claim: Releasable | None = None) -> None:
        """Copy the members of `result`.

        `encoded` is the JSON of the whole response, in parts; `long_text` is a long text of the result, if there is one; `claim` is the
        share of the memory for large results that the result takes.
        """
        dict.__init__(self, result)  # pyright: ignore[reportUnknownMemberType]  # `super()` takes as long again, for every call
        self.encoded = encoded
        self.long_text = long_text
        self.claim = claim


@dataclass(slots=True)  # not frozen: creating a frozen one takes three times as long, and each call creates one
class Complete:
    """A finished call: an MCP `CallToolResult` in wire form, which the code that receives it may change."""

    result: JsonObject
    """`content` (list of content blocks) and optionally `structuredContent`, `isError`, `_meta`."""
    encoded: tuple[bytes, ...] | None = field(default=None, compare=False, repr=False)
    """The JSON from which `result` was parsed, in parts, if it is known. Searching this JSON is faster than walking through `result`."""
    long_text: LongText | None = field(default=None, compare=False, repr=False)
    """A long text of `result`, if there is one. Then the parts of `encoded` at odd indexes are its JSON, the others the rest."""
    claim: Releasable | None = field(default=None, compare=False, repr=False)
    """The share of the memory for large results that this result takes; the gate releases it. If the claim is a `HelperResult`, a helper
    process has the content, and `result` has none until the gate has judged it."""

    @classmethod
    def text(cls, text: str, *, is_error: bool = False, structured: JsonValue = None) -> Complete:
        """Build a result with one text block, and with structured content unless `structured` is `None`."""
        result: JsonObject = {"content": [{"type": "text", "text": text}]}
        if structured is not None:
            result["structuredContent"] = structured
        if is_error:
            result["isError"] = True
        return cls(result)

    @classmethod
    def received(cls, result: JsonObject) -> Complete:
        """Return the outcome with a server's result; if the result is a `Received`, with its JSON and its claim too."""
        if not isinstance(result, Received):
            return cls(result)
        return cls(result, result.encoded, result.long_text, result.claim)

    @property
    def looked_at(self) -> tuple[bytes, ...] | None:
        """The parts of the result's JSON (`encoded`) that must be searched for hidden text: all but long binary data.

        `None` if the JSON was not kept.
        """
        parts, long_text = self.encoded, self.long_text
        if parts is None or long_text is None or not all(is_binary(key, node) for node, key in long_text.holders):
            return parts
        return parts[::2]

    @property
    def content(self) -> list[JsonObject]:
        """The content blocks in wire form."""
        return self.result.get("content") or []

    @property
    def structured(self) -> JsonValue:
        """`structuredContent`, or `None` if it is absent."""
        return self.result.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the result is an error."""
        return bool(self.result.get("isError"))

    def as_text(self) -> str:
        """Return all text blocks, joined by newlines."""
        return "\n".join(str(b.get("text", "")) for b in self.content if b.get("type") == "text")


def is_call_result(result: JsonMapping) -> bool:
    """Return whether a server's result can be used as `Complete.result`: its content blocks are objects, whatever their types."""
    content: list[JsonValue] | None = result.get("content")  # or another value
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


def prompt_schema(prompt: JsonMapping) -> JsonObject:
    """Return the input schema of the tool that renders a listed prompt; all arguments of a prompt are strings."""
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
    """The call needs answers, and must be repeated with them (MCP `input_required`, SEP-2322)."""

    requests: Mapping[str, JsonObject]
    """Key → `{"method": "elicitation/create" | "sampling/createMessage" | "roots/list", "params": {…}}`."""
    state: str | None = None
    """Opaque `requestState` that the repeated call must send back unchanged."""
    meta: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The work continues in the background: a flat MCP `CreateTaskResult` (SEP-2663), in wire form."""

    task: JsonObject


ToolOutcome = Complete | InputRequired | TaskStarted
"""How a call can end: MCP's `resultType` `complete`, `input_required` or `task`."""


class Tool(Protocol):
    """A callable tool. One object serves concurrent calls, so it must not store anything of a call."""

    @property
    def definition(self) -> ToolDefinition:
        """The definition, which never changes for this object: a tool whose definition changes is a new `Tool`."""
        ...

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the tool once. Behind the gate, `arguments` have passed the policy and the schema.

        A failure that a model can act on is a `Complete` with `isError`, or a `GatewayError`, which the gate turns into one.
        """
        ...


class NamedTool(Tool, Protocol):
    """A tool with the attributes `name` and `description`, which agent-framework's middleware reads."""

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
    """A `Tool` of a remote server that relays requests about the tasks which its calls started on the server."""

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a request about a task, and return the result in the 2026 wire form. `taskId` in `params` is the server's id.

        Raises:
            NotFound: No such task (`kind` is `task`).
        """
        ...


OnChange = Callable[[ChangeKind], None]
"""A function that a source calls when its list of this kind may have changed. It must not block or raise."""


@runtime_checkable
class DescribingTool(Protocol):
    """A tool whose description names things that only some callers may use, such as skills."""

    def description_for(self, scopes: Sequence[str] | None, named: Sequence[str] = ()) -> str:
        """Return the description for a caller whose key has these `scopes` (`None`: no restriction).

        `named` is for the model of an agent: the skills that the agent's file names.
        """
        ...


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools. Its owner enters it as an async context manager before use."""

    @property
    def id(self) -> str:
        """Unique source name: a server key, or `agent`, `skill`, `workflow`, `function`."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return the current tools in stable order, without a request to a server."""
        ...

    def subscribe(self, on_change: OnChange) -> None:
        """Call `on_change` whenever a list of the source may have changed. The catalog registers its listener once."""
        ...


class Source(ToolSource, Protocol):
    """A source that also has resources, templates, prompts and completion (remote servers, skills)."""

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return all entries of `kind` in wire form with native names and URIs, in stable order, without a request to a server."""
        ...

    async def read(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read the resource with this native URI, and return its result. Raises `NotFound("resource", uri)`."""
        ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> PromptOutcome:
        """Render the prompt with this native name, and return its result. Raises `NotFound("prompt", name)`."""
        ...

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Complete an argument, and return MCP's `completion` object (`values`, `total`, `hasMore`)."""
        ...

    async def watch(self, uri: str) -> None:
        """Subscribe to updates of a native URI. Subscriptions are counted: each call needs its own call of `unwatch`."""
        ...

    async def unwatch(self, uri: str) -> None:
        """Undo one call of `watch` with the same URI."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished read or prompt: the MCP result in wire form (`contents`, or `messages` and `description`)."""

    result: JsonObject


ReadOutcome = Finished | InputRequired
PromptOutcome = Finished | InputRequired


SourceState = Literal["starting", "ready", "idle", "auth needed", "down", "held", "disabled"]
"""`idle`: disconnected on purpose; the next call connects again. `auth needed`: the server rejects the gateway's credentials."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A request for input of a 2025 server that waits for an answer, or a cancelled call on which the server still works."""

    method: str
    """MCP method of the request; empty for a cancelled call."""
    caller: Principal | None
    """The principal that made the call; `None` if whoever sees this status may not know the principal."""
    client: str
    """Name that the client declares; empty if whoever sees this status may not know the client."""
    seconds: int
    """Seconds that the request or call has waited."""
    seconds_left: int
    """Seconds that the request or call may still wait."""
    approvers: str = ""
    """Who must approve the request on the pending list, in words; empty if the client of the call is asked directly."""
    calls_waiting: int = 0
    """Number of calls of other clients that wait for the server."""

    @property
    def text(self) -> str:
        """A description of the open question for the status line of its server."""
        who = "another caller" if self.caller is None else repr(self.caller.name or self.caller.id)
        who = f"{who} (client {self.client!r})" if self.client else who
        awaited = f"{who} to answer {self.method}" if not self.approvers else f"{self.approvers} to approve {self.method} for {who}"
        awaited = awaited if self.method else f"the end of a cancelled call of {who}"
        text = f"waits {self.seconds} s for {awaited}, and {self.seconds_left} s more at most"
        if not self.calls_waiting:
            return text
        return f"{text}; {'1 call of others waits' if self.calls_waiting == 1 else f'{self.calls_waiting} calls of others wait'} for it"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of a source (a server, or agents, skills, workflows or functions), for people and for the health pages."""

    name: str
    kind: Literal["server", "agent", "skill", "workflow", "function"]
    transport: Transport | Literal["local"]
    protocol_version: str
    state: SourceState
    tools: int
    milliseconds: float | None = None
    """Milliseconds from the start of the connection to a complete listing; `None` before that."""
    error: str | None = None
    """Why the source is down or disabled, and what to do."""
    quarantined: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Native name of each tool that is withheld until a person accepts it → the reason, and the command that accepts it."""
    suspicious: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Listed items that read like instructions to a model, such as `tool search` → the reason. These items are served nevertheless."""
    since: str | None = None
    """When the source began to fail, in ISO 8601."""
    loop: str | None = None
    """Set if the source is this gateway or leads back to it: the problem, and the fix."""
    questions: tuple[OpenQuestion, ...] = ()
    """Requests for input, and cancelled calls, for which a 2025 server blocks other calls."""

    def to_json(self) -> JsonObject:
        """Return the fields under their names, with each question as text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "questions": [question.text for question in self.questions]}

    def seen_by(self, viewer: Principal) -> SourceStatus:
        """Return the status as `viewer` may see it. Only operators see which other caller a question belongs to."""
        if not self.questions or is_operator(viewer):
            return self
        seen = (q if q.caller == viewer else dataclasses.replace(q, caller=None, client="") for q in self.questions)
        return dataclasses.replace(self, questions=tuple(seen))


@runtime_checkable
class UpdatingSource(Protocol):
    """A `Source` that reports changes of watched resources."""

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Call `on_update` with the native URI of each watched resource that changes. The function must not block or raise."""
        ...


@runtime_checkable
class QuarantiningSource(Protocol):
    """A `ToolSource` that withholds tools until a person accepts them."""

    def quarantined(self) -> Mapping[str, str]:
        """Return the native names of the withheld tools, each with the reason and the command that accepts it."""
        ...


SkillMethod = Literal["skills/list", "skills/get", "resources/directory/read"]
"""The methods of the skills extension (SEP-2640)."""


@runtime_checkable
class SkillServing(Protocol):
    """A source that may have the skills extension."""

    @property
    def serves_skills(self) -> bool:
        """Whether the source has the skills extension now."""
        ...

    @property
    def reads_directories(self) -> bool:
        """Whether the source has the method `resources/directory/read` of the skills extension."""
        ...

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a request of the skills extension with native URIs; return the result. Raises `NotFound` for an unknown URI or cursor."""
        ...


@runtime_checkable
class AskingSource(Protocol):
    """A `Source` that may use `CallContext.ask` during reads and prompts."""

    @property
    def may_ask(self) -> bool:
        """Whether reads and prompts of this source may use `CallContext.ask`, as far as the source knows now."""
        ...
