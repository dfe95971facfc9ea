"""`Tool` and `ToolSource`: the seam that everything callable in Moongate goes through.

A proxied tool, a Python function, an agent, a skill tool and a workflow are all a `Tool` and differ only
inside `call`. Whatever yields tools is a `ToolSource`; one that also has resources and prompts is a
`Source`. Values are decoded JSON in the wire's own words (MCP camelCase keys), so a relayed result
passes through untouched. Nothing here knows the MCP SDK.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

from gateway.auth.principal import Principal, is_operator
from gateway.json_types import JsonObject, JsonValue

if TYPE_CHECKING:
    from gateway.tools.context import CallContext
    from gateway.tools.results import Judged, ResultKeeper, Rules
    from gateway.tools.results import Source as ResultSource
    from gateway.tools.verbatim import Verbatim

TaskSupport = Literal["never", "optional", "required"]
TaskRunnerName = Literal["nobody", "gateway", "server"]
Kind = Literal["resources", "templates", "prompts"]
ChangeKind = Literal["tools", "resources", "prompts"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What is published of a tool. Schemas are kept exactly as their author wrote them."""

    name: str
    """Native name within its source; the catalog decides the exposed one."""
    description: str | None = None
    input_schema: JsonObject = field(default_factory=lambda: cast("JsonObject", {"type": "object"}))
    output_schema: JsonObject | None = None
    title: str | None = None
    annotations: JsonObject | None = None
    """MCP hints (`readOnlyHint`, …); untrusted unless the source is ours."""
    extra: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Other published keys, verbatim: `icons`, `_meta`, …"""
    task: TaskSupport = "never"
    task_by: TaskRunnerName = "nobody"
    """Who runs it as a task for a client that has tasks; clients are only told of task support where somebody does."""
    needs_approval: bool = False
    """Its author wants a person to decide on each call; the gate sees to that."""
    may_ask: bool = False
    """True when `call` may use `CallContext.ask`; lets the server keep every other call lean."""

    def to_wire(self, name: str | None = None) -> JsonObject:
        """The MCP `Tool` object, under `name` where the catalog exposes it differently."""
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
    """A share of the bytes that large results may take at once (`upstream.large`)."""

    def release(self) -> None:
        """Give it back. Callable more than once."""
        ...


@runtime_checkable
class Held(Releasable, Protocol):
    """A large result that is not in memory here: a helper process has read it (`upstream.held`). It stands in for the claim."""

    async def judge(self, rules: Rules, keeper: ResultKeeper | None, source: ResultSource) -> Judged | None:
        """As `tools.results.judge_whole`, once. Raises `ToolFailed` if the helper process ended."""
        ...

    async def whole(self) -> Received:
        """The result itself, as it came."""
        ...


class Received(dict[str, JsonValue]):
    """The result of a request as it was read, together with what it was read from."""

    __slots__ = ("claim", "encoded", "verbatim")

    def __init__(self, result: JsonObject, encoded: tuple[bytes, ...], verbatim: Verbatim | None, claim: Releasable | None = None) -> None:
        """Takes over the members of `result`; `encoded` holds them, among others, in parts, and `verbatim` is a long text of it."""
        dict.__init__(self, result)  # pyright: ignore[reportUnknownMemberType]  # `super()` takes as long again, for every call
        self.encoded = encoded
        self.verbatim = verbatim
        self.claim = claim


@dataclass(slots=True)  # not frozen, which would make it three times dearer: there is one for every call
class Complete:
    """A finished call: an MCP `CallToolResult` in wire form, owned by the receiver."""

    result: JsonObject
    """`content` (list of content blocks) and optionally `structuredContent`, `isError`, `_meta`."""
    encoded: tuple[bytes, ...] | None = field(default=None, compare=False, repr=False)
    """JSON that all of `result` was read from, in parts, where it is at hand: it tells at a glance what a walk through `result` would."""
    verbatim: Verbatim | None = field(default=None, compare=False, repr=False)
    """A long text of `result` with its JSON, likewise. Then `encoded` has this at each odd place, and what is around it at the others."""
    claim: Releasable | None = field(default=None, compare=False, repr=False)
    """Of a large result, until it has passed the gate. If it is `Held`, `result` lacks its content and structured content until then."""

    @classmethod
    def text(cls, text: str, *, is_error: bool = False, structured: JsonValue = None) -> Complete:
        """One text block, with `structured` as structured content when it is not `None`."""
        result: JsonObject = {"content": [{"type": "text", "text": text}]}
        if structured is not None:
            result["structuredContent"] = structured
        if is_error:
            result["isError"] = True
        return cls(result)

    @classmethod
    def received(cls, result: JsonObject) -> Complete:
        """A server's result, with its JSON and its claim where they are at hand."""
        if not isinstance(result, Received):
            return cls(result)
        return cls(result, result.encoded, result.verbatim, result.claim)

    @property
    def looked_at(self) -> tuple[bytes, ...] | None:
        """`encoded` without what is only binary: JSON in which all text is that a person or model may be shown."""
        parts, verbatim = self.encoded, self.verbatim
        return parts if parts is None or verbatim is None or not verbatim.is_binary else parts[::2]

    @property
    def content(self) -> list[JsonObject]:
        """The content blocks in wire form."""
        return self.result.get("content") or []

    @property
    def structured(self) -> JsonValue:
        """`structuredContent`, or `None` when absent."""
        return self.result.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the tool itself says that it failed."""
        return bool(self.result.get("isError"))

    def as_text(self) -> str:
        """All text blocks joined by newlines: what a model or terminal that reads text only gets."""
        return "\n".join(str(b.get("text", "")) for b in self.content if b.get("type") == "text")


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The call needs answers first; call again with them (MCP `input_required`, SEP-2322)."""

    requests: Mapping[str, JsonObject]
    """Key → `{"method": "elicitation/create" | "sampling/createMessage" | "roots/list", "params": {…}}`."""
    state: str | None = None
    """Opaque `requestState`; handed back unchanged with the answers."""
    meta: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The work goes on in the background: a flat MCP `CreateTaskResult` (SEP-2663), wire form."""

    task: JsonObject


ToolOutcome = Complete | InputRequired | TaskStarted
"""How a call can end; the wire's `resultType` `complete | input_required | task`."""


class Tool(Protocol):
    """Anything callable. Implementations are shared by concurrent calls, so they keep no per-call state."""

    @property
    def definition(self) -> ToolDefinition:
        """Stable for the life of the object; a change makes a new `Tool` and a `changed` event."""
        ...

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run once. `arguments` already passed policy and schema when reached through the catalog.

        A failure that a model can act on is a `Complete` with `isError` or a raised `GatewayError`
        (the gate turns it into one). Cancellation passes through.
        """
        ...


class NamedTool(Tool, Protocol):
    """A tool with agent-framework's attributes of a function; what middleware around its calls sees."""

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What the model reads of it; empty if it has no description."""
        ...


TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]


@runtime_checkable
class TaskTool(Protocol):
    """A `Tool` whose `TaskStarted` outcomes live elsewhere and are asked about through it."""

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """One request about a task that it started (`taskId` is the id it gave); the answer in modern wire form.

        Raises:
            NotFound: No such task (`kind` is `task`).
        """
        ...


OnChange = Callable[[ChangeKind], None]
"""Called synchronously when a source's list of that kind may differ; must not block or raise."""


@runtime_checkable
class DescribingTool(Protocol):
    """A tool whose description names things that only some callers may use."""

    def description_for(self, scopes: Sequence[str] | None, named: Sequence[str] = ()) -> str:
        """The description for a caller with these scopes, or for the model of an agent whose file names the skills `named`."""
        ...


@runtime_checkable
class ToolSource(Protocol):
    """Whatever yields tools. Entered as an async context manager by its owner before use."""

    @property
    def id(self) -> str:
        """Unique source name: a server key, or `agent`, `skill`, `workflow`, `function`."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """The current tools in stable order; answered from memory, never by asking a peer per call."""
        ...

    def subscribe(self, on_change: OnChange) -> None:
        """Register the one listener for list changes; the catalog calls this once."""
        ...


class Source(ToolSource, Protocol):
    """A source that also has resources, templates, prompts and completion (remote servers, skills)."""

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """All wire objects of `kind` under native names and URIs, in stable order, from memory."""
        ...

    async def read(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read a native URI. Raises `NotFound("resource", uri)`."""
        ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> PromptOutcome:
        """Render a native prompt. Raises `NotFound("prompt", name)`."""
        ...

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Complete an argument; returns the wire `completion` object (`values`, `total`, `hasMore`)."""
        ...

    async def watch(self, uri: str) -> None:
        """Ask for updates of a native URI; counted, so every `watch` has its `unwatch`."""
        ...

    async def unwatch(self, uri: str) -> None:
        """Undo one `watch`."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished read or prompt: the MCP result in wire form (`contents`, or `messages` + `description`)."""

    result: JsonObject


ReadOutcome = Finished | InputRequired
PromptOutcome = Finished | InputRequired


SourceState = Literal["starting", "ready", "idle", "auth needed", "down", "held", "disabled"]
"""`idle`: not connected, by intent; the next call connects. `auth needed`: the server refuses the gateway's credentials."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A request of a 2025 server in the middle of a call that waits for an answer, or a cancelled call that the server still works on."""

    method: str
    """Empty for a cancelled call."""
    caller: Principal | None
    """Who made the call; `None` if the viewer may not know it."""
    client: str
    """Name that the client gives itself; empty likewise."""
    seconds: int
    """For how long it waits."""
    seconds_left: int
    """For how long it may wait yet."""
    approvers: str = ""
    """Who must approve the request on the list of approvals; empty if it waits for the client of the call."""
    calls_waiting: int = 0
    """Calls of other clients that wait for the server meanwhile."""

    @property
    def text(self) -> str:
        """The question as a part of a line about its server."""
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
    """One line about a source, for people and for the health pages."""

    name: str
    kind: Literal["server", "agent", "skill", "workflow", "function"]
    transport: Literal["stdio", "http", "sse", "local"]
    protocol_version: str
    state: SourceState
    tools: int
    milliseconds: float | None = None
    """From the start of the attempt to a complete listing; `None` before that."""
    error: str | None = None
    """Why it is down or disabled, and what to do."""
    quarantined: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Native tool name → why it is withheld until a person accepts it, and by which command."""
    suspicious: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """What it lists that reads like orders to a model, such as `tool search` → why; served all the same."""
    since: str | None = None
    """Since when it has been failing, ISO 8601."""
    loop: str | None = None
    """That it is this gateway itself, or leads back to it, and what to do."""
    questions: tuple[OpenQuestion, ...] = ()
    """Whose answers it waits for."""

    def to_json(self) -> JsonObject:
        """The fields under their names, each question as text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "questions": [question.text for question in self.questions]}

    def seen_by(self, viewer: Principal) -> SourceStatus:
        """The status without the callers of questions, unless the viewer is that caller or an operator."""
        if not self.questions or is_operator(viewer):
            return self
        seen = (q if q.caller == viewer else dataclasses.replace(q, caller=None, client="") for q in self.questions)
        return dataclasses.replace(self, questions=tuple(seen))


@runtime_checkable
class UpdatingSource(Protocol):
    """A `Source` whose watched resources tell when they change."""

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register the one listener; it gets the native URI, synchronously, and must not block or raise."""
        ...


@runtime_checkable
class QuarantiningSource(Protocol):
    """A `ToolSource` that holds tools back until a person accepts them."""

    def quarantined(self) -> Mapping[str, str]:
        """Return the native names of these tools, each with why it is held back and the command that accepts it."""
        ...


SkillMethod = Literal["skills/list", "skills/get", "resources/directory/read"]
"""The methods of the skills extension (SEP-2640)."""


@runtime_checkable
class SkillServing(Protocol):
    """A source that may have the skills extension."""

    @property
    def serves_skills(self) -> bool:
        """Whether it has, at this moment."""
        ...

    @property
    def reads_directories(self) -> bool:
        """Whether it has `resources/directory/read`."""
        ...

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """One request of the extension in native URIs; raises `NotFound` for an unknown URI or cursor."""
        ...


@runtime_checkable
class AskingSource(Protocol):
    """A `Source` whose reads and prompts may use `CallContext.ask` in the middle."""

    @property
    def may_ask(self) -> bool:
        """Whether they may, as far as is known now."""
        ...
