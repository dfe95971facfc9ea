"""`CallContext`: the facts of one call, and the port through which the call reaches its caller.

The server or the CLI makes one for each incoming call, and passes it down as an argument; an agent or workflow derives a child context for
each call that it makes. It holds no services and no settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.errors import AnswerRefused, AskExpired, AskUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.input_answers import answer_problem
from gateway.policy.metadata import IDEMPOTENCY_KEY
from gateway.tools.clocks import CallClock, LateClock

if TYPE_CHECKING:
    from gateway.tools.base import Tool
    from gateway.tools.toolbox import ToolGuard

Era = Literal["legacy", "modern"]
"""`legacy`: protocol ≤ 2025-11-25 (handshake, sessions). `modern`: 2026-07-28 (stateless)."""

Wait = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""Makes the context manager that surrounds a wait for a person."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
_SEVERITY: dict[str, int] = {level: rank for rank, level in enumerate(get_args(LogLevel))}


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """The connected client. Its name and version are claims: they are shown, and never trusted."""

    era: Era = "modern"
    protocol_version: str = ""
    name: str = ""
    version: str = ""
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Declared capabilities in wire form (`sampling`, `elicitation`, `roots`, `extensions`, …)."""
    session_id: str | None = None
    """Id of the 2025 session or stdio connection; `None` if requests are stateless."""

    def can(self, capability: str) -> bool:
        """Whether a capability is declared, by dotted path: `sampling`, `elicitation.url`, `sampling.tools`.

        `elicitation: {}` means form only (MCP 2025-11-25), so `elicitation.form` is true for it.
        """
        if capability == "elicitation.form":
            declared = self.capabilities.get("elicitation")
            return isinstance(declared, Mapping) and ("form" in declared or "url" not in declared)
        node: JsonValue = self.capabilities
        for part in capability.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return False
            node = cast("JsonMapping", node)[part]
        return node is not None and node is not False

    @property
    def can_be_asked(self) -> bool:
        """Whether the client declares sampling, elicitation or roots."""
        return any(map(self.can, ("sampling", "elicitation", "roots")))


class Presence(Protocol):
    """Whether the client of a call can be reached now, for requests that outlive their connection."""

    @property
    def is_here(self) -> bool:
        """Whether the client has a stream open."""
        ...

    async def here(self) -> None:
        """Wait until the client has a stream open."""
        ...

    def need(self) -> None:
        """End the request if its client is lost before `release`. Calls nest."""
        ...

    def release(self) -> None:
        """Undo one `need`."""
        ...

    def waiting(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context manager for a wait for a person or a queue, which calls `need` and `release`."""
        ...


class Caller(Protocol):
    """The port through which a call reaches its caller, until the call returns."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress; dropped if the caller did not request it."""
        ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message; dropped if the caller did not request that level."""
        ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input (`{"method", "params"}`, wire form) to the client, and return its result.

        `key` identifies the question inside a durable task (`CallContext.question`), and is ignored elsewhere. `CallContext.ask` enforces
        the deadline.

        Raises:
            AskUnavailable: The client did not declare the capability, or cannot be reached.
        """
        ...


class NoCaller:
    """A caller for calls without a client: it drops messages and refuses questions."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop it."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Drop it."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Refuse the request."""
        method = str(request.get("method", ""))
        raise AskUnavailable(f"This call has no client that could answer {method!r}.", capability=capability_of(request))


def capability_of(request: JsonMapping) -> str:
    """Return the client capability that a request for input needs: `sampling`, `elicitation.form`, `elicitation.url` or `roots`."""
    match request.get("method"):
        case "sampling/createMessage":
            return "sampling"
        case "roots/list":
            return "roots"
        case _:
            params = cast("JsonMapping", request.get("params") or {})
            return "elicitation.url" if params.get("mode") == "url" else "elicitation.form"


def undeclared(request: JsonMapping) -> AskUnavailable:
    """Build the error for a client that does not declare the capability for a request for input."""
    capability = capability_of(request)
    return AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)


def nested_capability(capability: str) -> JsonObject:
    """Return a capability in the form of `requiredCapabilities`: `elicitation.url` → `{"elicitation": {"url": {}}}`."""
    nested: JsonObject = {}
    for part in reversed(capability.split(".")):
        nested = {part: nested}
    return nested


def severity(level: str) -> int:
    """Return the rank of a log level, least severe first; unknown levels count as `info`."""
    return _SEVERITY.get(level, _SEVERITY["info"])


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a durable task that is running, or recorded."""

    is_done: bool
    value: JsonValue
    """The recorded result; `None` if the step is not done."""
    finish: Callable[[JsonValue], Awaitable[None]]
    """Records the result."""


class DurablePort(Protocol):
    """The step log of a durable task, for the work inside it; `CallContext.durable` is `None` outside a task.

    The protocol is defined here, so that tools, agents and workflows record steps without importing the engine. When a task is resumed,
    its work runs from the start, and recorded steps return their recorded results.
    """

    @property
    def version(self) -> int:
        """Version of the naming rules of the task's steps. A task keeps the version that it started with."""
        ...

    def scoped(self, label: str) -> DurablePort:
        """Return a port for a part of the work, with its own names and numbers of steps."""
        ...

    def asking(self, label: str) -> DurablePort:
        """Return a port for the same steps whose questions are named under `label`.

        Concurrent parts of the work in one scope need it, so that the numbers of their questions do not depend on their order.
        """
        ...

    def question(self, name: str) -> str:
        """Return the key of the next question with this name. Every attempt that asks in the same order gets the same keys.

        Ask for a key only in code that runs again at every attempt, or in the scope of the step that it is part of. Otherwise the
        numbers shift when a recorded step is skipped.
        """
        ...

    def judges(self, key: str) -> None:
        """Note that the work judges the answers to the question `key`: it calls `judged` for each."""
        ...

    async def judged(self, key: str, problem: str = "") -> bool:
        """Note that the work used the answer to the question `key`, or cannot use it because of `problem`.

        An answer that cannot be used is removed, and the client that sent it gets the problem as an error. Returns whether the task keeps
        the question: asked again with the same request and key, it is pending again under the same name for clients.
        """
        ...

    async def step(
        self,
        name: str,
        work: Callable[[str], Awaitable[JsonValue]],
        *,
        repeatable: bool | Callable[[str], bool],
        ctx: CallContext | None = None,
    ) -> JsonValue:
        """Run `work` once, and record its JSON result. `work` receives the step's idempotency key, the same at every attempt.

        Steps with one name are numbered in their order. A step that was running when the process died runs again if it is `repeatable` (a
        function receives the key without the task's id); otherwise a person is asked. The clocks of `ctx`, the call that the step belongs
        to, stop during that question.

        Raises:
            ToolFailed: The outcome of an earlier attempt is unknown, and the step must not be repeated.
        """
        ...

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> BegunStep:
        """Begin a step whose result comes in parts; the caller calls `finish`. `ctx` and `Raises` as for `step`."""
        ...

    def shows(self, message: str) -> contextlib.AbstractContextManager[None]:
        """Show `message` as the task's status message inside the context, whatever progress other parts of the work report."""
        ...

    async def keep(self, name: str, value: JsonValue) -> None:
        """Store a value under a name, in place of the earlier one (a checkpoint)."""
        ...

    def kept(self, name: str) -> JsonValue:
        """Return the value stored under a name, or `None`."""
        ...

    async def goes_on(self) -> bool:
        """Return whether the task of cancelled work continues in another process, or at the next start.

        If it does, calls on servers that the task recorded must not be cancelled: the task will follow them.
        """
        ...


SKILL_ARGUMENT = "skill_name"
"""Name of the argument that names a skill."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a call. The gateway sets these facts; a request cannot."""

    caller: Principal | None = None
    """The caller with the scopes of its key, after the gate authorized the call; `None` before, and for a key without scopes."""
    agent_depth: int = 0
    """Number of agents that this call runs inside."""
    named_in_files: frozenset[tuple[str, str]] = frozenset()
    """Pairs of argument names and values in the files around this call: constants of a workflow, `skill_name` with a skill of an agent."""
    tells_errors: bool = True
    """Whether the caller reads the text of an unexpected exception of a function. Inside an agent its file decides."""
    step_key: str = ""
    """Key of the durable step that this call is; the same at every attempt. Empty outside a durable task."""


DIRECT = Provenance()
"""Provenance of a call that a client made."""


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """The facts of one call. Derive another with `child` or `dataclasses.replace`. Without slots, because copying a dict is faster."""

    principal: Principal = LOCAL
    client: ClientProfile = field(default_factory=ClientProfile)
    caller: Caller = field(default_factory=NoCaller)
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Request `_meta` that may be forwarded: trace context, vendor keys, the `via` list of gateways. Never keys of the connection."""
    input_responses: JsonMapping | None = None
    """Answers to an earlier `InputRequired` of this call, by key, in wire form."""
    request_state: str | None = None
    """The `state` of that `InputRequired`, unchanged."""
    clocks: tuple[CallClock, ...] = ()
    """Deadlines of this call and of the calls that it runs inside; all stop while a person is asked."""
    waits: tuple[Wait, ...] = ()
    """Entered around each wait for a person; they release the concurrency slots."""
    presence: Presence | None = None
    """Presence of the client, for a request in a 2025 session over HTTP; other requests end with their connection."""
    ask_timeout_seconds: float = 3600.0
    """Seconds that one question waits for its answer (`server.askTimeoutSeconds`)."""
    durable: DurablePort | None = None
    run_tools: list[Tool] | None = None
    """The tool list of the surrounding agent's run; tools that are added are offered from the next model call. `None` outside a run."""
    invocation: object = None
    """The `FunctionInvocationContext` of this call, inside an agent's run."""
    tool_guard: ToolGuard | None = None
    """The gate for the tools that the surrounding agent or workflow brings along; `None` outside a gateway."""
    wants_progress: bool = False
    """Whether the caller requested progress. Only then is progress requested from a server."""
    takes_tasks: bool = False
    """Whether the caller accepts `TaskStarted` (it declared the tasks extension of 2026 with this call)."""
    in_task: bool = False
    """Whether this call runs as a task, with the limit `tasks.maxWaitSeconds` instead of `timeoutSeconds`. Not set for calls inside it."""
    line: str = ""
    """Requests with the same text use one session of a server that has sessions; empty for any session."""
    log_level: LogLevel | None = None
    """Least severe log level that the caller requested; `None` for no logs."""
    late_clock: LateClock | None = None
    """Set for a call on the server's fast path."""
    provenance: Provenance = DIRECT
    """How this call came about."""

    def __post_init__(self) -> None:
        # Python 3.11 shares the keys of instance dicts, and copies of such a dict are slow to read; a plain dict is not shared.
        object.__setattr__(self, "__dict__", {**self.__dict__})

    @property
    def era(self) -> Era:
        """The protocol era of the client."""
        return self.client.era

    def child(self, run_tools: list[Tool] | None = None, invocation: object = None) -> CallContext:
        """Return the context for a call inside this one: the same caller, without answers and without progress.

        A call of an agent's run has the run's tool list and its invocation context. The idempotency key names the outer call, so it is
        removed.
        """
        return dataclasses.replace(
            self,
            meta={key: value for key, value in self.meta.items() if key != IDEMPOTENCY_KEY},
            input_responses=None,
            request_state=None,
            run_tools=self.run_tools if run_tools is None else run_tools,
            invocation=invocation,
            wants_progress=False,
            takes_tasks=False,
            in_task=False,
        )

    def of_request(
        self, principal: Principal, caller: Caller, meta: JsonMapping, late_clock: LateClock, presence: Presence | None = None
    ) -> CallContext:
        """Return the context of another request of the same client, with all other facts unchanged."""
        facts = self.__dict__.copy()
        facts["principal"], facts["caller"], facts["meta"], facts["late_clock"] = principal, caller, meta, late_clock
        facts["presence"] = presence
        return _with_facts(facts)

    def limited(self, clock: CallClock, wait: Wait | None) -> CallContext:
        """Return the context with one more deadline and slot. Takes a tenth of the time of `dataclasses.replace`."""
        facts = self.__dict__.copy()
        facts["clocks"] = (*self.clocks, clock)
        if wait is not None:
            facts["waits"] = (*self.waits, wait)
        return _with_facts(facts)

    def let_in(self) -> CallContext:
        """Return the context behind the gate: the file of an agent or workflow decides what it may use, not the caller's key."""
        return self._from(self.principal.unscoped(), caller=self.on_behalf_of)

    @property
    def on_behalf_of(self) -> Principal:
        """The caller with the scopes of its key, in nested calls too."""
        return self.provenance.caller or self.principal

    def as_caller(self) -> CallContext:
        """Return the context with the caller's own rights, to judge a value that the caller chose."""
        return self if self.provenance.caller is None else self._from(self.on_behalf_of, caller=None)

    def for_argument(self, name: str, value: str) -> CallContext:
        """Return the context for reading or running `value`, the argument `name` of this call.

        A value in a workflow's or agent's file has the rights of the file; any other value has the rights of the caller. Values that an
        agent's model chooses count as the caller's, because the caller's task controls the model.
        """
        return self if (name, value) in self.provenance.named_in_files else self.as_caller()

    def inside_agent(self, skills: Sequence[str] = (), *, tells_errors: bool = False) -> CallContext:
        """Return the context of an agent's run whose file names `skills`. Constants of a workflow around it no longer apply."""
        named = frozenset((SKILL_ARGUMENT, skill) for skill in skills)
        depth = self.provenance.agent_depth + 1
        came = dataclasses.replace(self.provenance, agent_depth=depth, named_in_files=named, tells_errors=tells_errors)
        return dataclasses.replace(self, provenance=came)

    @property
    def skills_in_files(self) -> frozenset[str]:
        """The skills in the files around this call."""
        return frozenset(value for name, value in self.provenance.named_in_files if name == SKILL_ARGUMENT)

    def named_in_file(self, constants: frozenset[tuple[str, str]]) -> CallContext:
        """Return the context with the constants of a workflow's file, as pairs of argument name and value."""
        came = self.provenance
        return dataclasses.replace(self, provenance=dataclasses.replace(came, named_in_files=came.named_in_files | constants))

    def as_step(self, durable: DurablePort | None, key: str) -> CallContext:
        """Return the context of the step `key` of a durable task. Servers receive the key as an idempotency key."""
        came = dataclasses.replace(self.provenance, step_key=key)
        return dataclasses.replace(self, durable=durable, provenance=came, meta={**self.meta, IDEMPOTENCY_KEY: key})

    def _from(self, principal: Principal, *, caller: Principal | None) -> CallContext:
        return dataclasses.replace(self, principal=principal, provenance=dataclasses.replace(self.provenance, caller=caller))

    def detached(self) -> CallContext:
        """Return a context for work that outlives this call: the same caller, rights and gate, without progress and questions."""
        came = dataclasses.replace(self.provenance, step_key="")
        return CallContext(principal=self.principal, meta=self.meta, tool_guard=self.tool_guard, provenance=came)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress to the caller; `progress` must increase from call to call."""
        await self.caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None = None) -> None:
        """Send a log message to the caller, unless it requested a higher level."""
        await self.caller.log(level, data, logger)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Stop the clocks and free the concurrency slots of this call while a person decides."""
        async with contextlib.AsyncExitStack() as stack:
            for clock in self.clocks:
                await stack.enter_async_context(clock.paused())
            if self.presence is not None:
                await stack.enter_async_context(self.presence.waiting())
            for wait in self.waits:
                await stack.enter_async_context(wait())
            yield

    async def here(self) -> None:
        """Wait until the client has a stream. Use it inside `waiting`, so that the call of a lost client ends."""
        if self.presence is not None:
            await self.presence.here()

    def question(self, name: str) -> str:
        """Return the `ask` key of the next question with this name (`DurablePort.question`); empty outside a durable task."""
        return self.durable.question(name) if self.durable is not None else ""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the caller (a person, its model, its roots), and wait at most `ask_timeout_seconds`.

        The clocks of this call stop and its concurrency slots are released during the wait. Inside a durable task, `key` (from
        `question`) identifies the question: when the task is resumed, a question with the same key gets the same answer. A question
        without a key is asked again.

        Raises:
            AskUnavailable: The caller cannot be asked this.
            AskExpired: The question was not answered in time.
            AnswerRefused: The answer does not have the form that the question requires.
        """
        answer: JsonObject | None = None
        async with self.waiting():
            with anyio.move_on_after(self.ask_timeout_seconds):
                answer = await self.caller.ask(request, key)
        if answer is None:
            raise AskExpired(f"Nobody answered within {self.ask_timeout_seconds:g} s, so the call was ended.")
        method = str(request.get("method"))
        if problem := answer_problem(method, answer):
            raise AnswerRefused(f"The client's answer to {method} is not valid: {problem}.")
        return answer


def _with_facts(facts: dict[str, object]) -> CallContext:
    """Make a context whose instance dict is `facts`: replacing the dict is faster than setting each field."""
    made = object.__new__(CallContext)
    object.__setattr__(made, "__dict__", facts)
    return made
