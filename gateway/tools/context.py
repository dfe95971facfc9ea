"""`CallContext`: the facts of one call, and the way back to whoever made it.

Made by the server (or the CLI, or a test) for each incoming call and handed down explicitly; an agent or
workflow derives a child context for each call it makes itself. Not a place for services or settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.errors import AnswerRefused, AskExpired, AskUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.answers import answer_problem
from gateway.policy.metadata import IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from gateway.tools.base import Tool
    from gateway.tools.toolbox import ToolGuard

Era = Literal["legacy", "modern"]
"""`legacy`: protocol ≤ 2025-11-25 (handshake, sessions). `modern`: 2026-07-28 (stateless)."""

Wait = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""Makes what is entered around a wait for a person."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
_SEVERITY: dict[str, int] = {level: rank for rank, level in enumerate(get_args(LogLevel))}


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """What is known of the connected client. Name and version are claims: shown, never trusted."""

    era: Era = "modern"
    protocol_version: str = ""
    name: str = ""
    version: str = ""
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Declared client capabilities in wire form (`sampling`, `elicitation`, `roots`, `extensions`, …)."""
    session_id: str | None = None
    """Identity of the legacy session or stdio connection; `None` where every request stands alone."""

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
        """Whether it declares anything of what it may be asked."""
        return any(map(self.can, ("sampling", "elicitation", "roots")))


class Presence(Protocol):
    """Whether the client of a call can be reached now, for a client whose request goes on without its connection."""

    @property
    def is_here(self) -> bool:
        """Whether the client has a stream open."""
        ...

    async def here(self) -> None:
        """Wait until it has one."""
        ...

    def need(self) -> None:
        """From here to `release` the request ends if its client is lost. Nests."""
        ...

    def release(self) -> None:
        """Undo one `need`."""
        ...

    def waiting(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Entered around a wait for a person or for a turn: between `need` and `release`."""
        ...


class Caller(Protocol):
    """The way back to whoever made the call. Every method may be used until the call returns."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress; dropped silently when the caller did not ask for it."""
        ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message; dropped unless the caller asked for that level."""
        ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Put one request (`{"method", "params"}`, wire form) to the client and return its result.

        `key` identifies the question inside a durable task (`CallContext.question`); callers outside one ignore it. It has no
        deadline of its own: `CallContext.ask` has it. Cancellable.

        Raises:
            AskUnavailable: The client did not declare the capability, or has no way back.
        """
        ...


class NoCaller:
    """A caller that hears nothing and can be asked nothing (CLI batch calls, tests, background work)."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Dropped."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Dropped."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Always refused."""
        method = str(request.get("method", ""))
        raise AskUnavailable(f"Nobody is there to answer {method!r}.", capability=capability_of(request))


def capability_of(request: JsonMapping) -> str:
    """The client capability an input request needs: `sampling`, `elicitation.form|url` or `roots`."""
    match request.get("method"):
        case "sampling/createMessage":
            return "sampling"
        case "roots/list":
            return "roots"
        case _:
            params = cast("JsonMapping", request.get("params") or {})
            return "elicitation.url" if params.get("mode") == "url" else "elicitation.form"


def undeclared(request: JsonMapping) -> AskUnavailable:
    """To be raised where the client does not declare that it can be asked this."""
    capability = capability_of(request)
    return AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)


def nested_capability(capability: str) -> JsonObject:
    """A capability as `requiredCapabilities` names it: `elicitation.url` → `{"elicitation": {"url": {}}}`."""
    nested: JsonObject = {}
    for part in reversed(capability.split(".")):
        nested = {part: nested}
    return nested


def severity(level: str) -> int:
    """The rank of a log level, least severe first; unknown ones count as `info`."""
    return _SEVERITY.get(level, _SEVERITY["info"])


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a durable task that is under way, or on record."""

    is_done: bool
    value: JsonValue
    """The result on record; `None` where it is not done."""
    finish: Callable[[JsonValue], Awaitable[None]]
    """Records the result."""


class DurablePort(Protocol):
    """What work inside a durable task may use; `CallContext.durable` is `None` outside one.

    Kept here, not in `tasks`, so that tools, agents and workflows record steps without importing the engine. When a task is
    taken up again its work runs from the start, and steps that are recorded give what they gave.
    """

    @property
    def version(self) -> int:
        """Version of the naming rules of the task's steps. A task keeps the version that it began with."""
        ...

    def scoped(self, label: str) -> DurablePort:
        """The port for a part of the work; names and numbers of steps there are its own."""
        ...

    def asking(self, label: str) -> DurablePort:
        """Return a port for the same steps whose questions are named under `label`.

        Parts of the work that run side by side in one scope need it: their questions are numbered apart, whichever comes first.
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

        An answer that cannot be used is removed, and whoever gave it gets the problem as an error. Returns whether the task keeps the
        question; asked again with the same request and key, it is open again under the name that clients know it by.
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
        """Run `work` once and record its JSON result. It gets the step's idempotency key, the same at every attempt.

        Steps of one name are told apart by their order. One that had begun when the process died runs again if it is
        `repeatable` (a function is asked then, with the key without the task's id); otherwise a person is asked whether to.
        `ctx` is the call that the step belongs to: its clocks stand still meanwhile.

        Raises:
            ToolFailed: Nobody knows whether it took effect, and it is not to be repeated.
        """
        ...

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> BegunStep:
        """Begin a step whose result comes in parts; whoever does it calls `finish`. `ctx` and `Raises` as for `step`."""
        ...

    def shows(self, message: str) -> contextlib.AbstractContextManager[None]:
        """Show `message` as the task's status message meanwhile, whatever progress other parts of the work report."""
        ...

    async def keep(self, name: str, value: JsonValue) -> None:
        """Keep the latest value under a name (a checkpoint)."""
        ...

    def kept(self, name: str) -> JsonValue:
        """The latest value kept under a name; `None` where there is none."""
        ...

    async def goes_on(self) -> bool:
        """For work that was cancelled just now: whether its task goes on in another process, or at the next start.

        What runs elsewhere for it, and was kept, is left alone then: it will be followed on.
        """
        ...


SKILL_ARGUMENT = "skill_name"
"""The argument of tools by which a call names a skill."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a call came about. The gateway sets these facts; a request cannot."""

    caller: Principal | None = None
    """The caller with the scopes of its key, once the gate has admitted the call; `None` before, and for a key without scopes."""
    agent_depth: int = 0
    """How many agents this call runs inside."""
    named_in_files: frozenset[tuple[str, str]] = frozenset()
    """Argument names with values that the files around this call name: constants of a workflow, `skill_name` with a skill of an agent."""
    tells_errors: bool = True
    """Whether the caller reads what an unexpected exception of a function says. Inside an agent its file decides."""
    step_key: str = ""
    """Key of the durable step that this call is; the same at every attempt. Empty outside a durable task."""


DIRECT = Provenance()
"""Provenance of a call that a client made."""


class CallClock:
    """The deadline of one call. Waiting for a person stops it; the gate has `scope` around the work."""

    __slots__ = ("_ends_at", "_is_abandoned", "_left", "_paused", "_scope", "ended", "is_left")

    def __init__(self, seconds: float) -> None:
        """`seconds` of working time, from now; infinite is allowed."""
        self._ends_at = time.monotonic() + seconds
        self._scope: anyio.CancelScope | None = None
        self._paused = 0
        self._left = seconds
        self._is_abandoned = False
        self.is_left = False
        """The work is over; only for one that `LateClock` took."""
        self.ended = ""
        """Why the call was ended before its time; empty when it was not."""

    @property
    def scope(self) -> anyio.CancelScope:
        """Ends the work at the deadline."""
        if self._scope is None:
            self._scope = anyio.CancelScope(deadline=self._ends_at)
        return self._scope

    @property
    def is_over(self) -> bool:
        """Whether it was the clock that cancelled the work, and not whoever wants it no more."""
        return self._scope is not None and self._scope.cancel_called and not self._is_abandoned

    def abandon(self) -> None:
        """The call is cancelled from without."""
        self._is_abandoned = True

    def end(self, reason: str) -> None:
        """End the call now: a question of it was not answered, and whoever asked may not know that it is over."""
        self.ended = reason
        self.scope.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Stop the clock while waiting for a person; nests and may run concurrently."""
        self._paused += 1
        if self._paused == 1:
            self._left = self._ends_at - time.monotonic()
            self._ends_at = self.scope.deadline = float("inf")
        try:
            yield
        finally:
            self._paused -= 1
            if self._paused == 0:
                self._ends_at = self.scope.deadline = time.monotonic() + self._left


class LateClock:
    """Takes the clock of a call that has no task, and so no scope: most likely it is over long before its deadline.

    Whoever made it enters the scope when the call gets a task, within `seconds`; a shorter deadline is not for it.
    """

    __slots__ = ("_seconds", "clock", "is_entered")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_entered = False
        """The call has a task, and with it the scope of the clock that was taken."""
        self.clock: CallClock | None = None
        """The one that was taken."""

    def takes(self, clock: CallClock, seconds: float) -> bool:
        """Whether the scope of `clock`, which has `seconds`, is entered elsewhere; there is one for each."""
        if self.is_entered or self.clock is not None or seconds <= self._seconds:
            return False
        self.clock = clock
        return True

    def close(self) -> None:
        """The call has a task: later clocks are as all others."""
        self.is_entered = True


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """The facts of one call. Frozen: derive with `child` or `dataclasses.replace`. Without slots, because a dict is copied at once."""

    principal: Principal = LOCAL
    client: ClientProfile = field(default_factory=ClientProfile)
    caller: Caller = field(default_factory=NoCaller)
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Request `_meta` that may cross hops: trace context, vendor keys, our `via` list. Never connection keys."""
    input_responses: JsonMapping | None = None
    """Answers to an earlier `InputRequired` of this same call, by key, wire form."""
    request_state: str | None = None
    """The `state` of that `InputRequired`, unchanged."""
    clocks: tuple[CallClock, ...] = ()
    """Deadlines of this call and of the calls it runs inside; all stop while a person is asked."""
    waits: tuple[Wait, ...] = ()
    """Entered around each wait for a person: gives back concurrency slots."""
    presence: Presence | None = None
    """Of the client of a request in a 2025 session over HTTP; other requests end with their connection."""
    ask_timeout_seconds: float = 3600.0
    """How long one question waits for its answer (`server.askTimeoutSeconds`)."""
    durable: DurablePort | None = None
    run_tools: list[Tool] | None = None
    """Inside an agent's run its live tool list: what is added counts from the next model call on. `None` elsewhere."""
    invocation: object = None
    """Inside an agent's run the `FunctionInvocationContext` of this very call."""
    tool_guard: ToolGuard | None = None
    """The gate for the tools that the surrounding agent or workflow brings along; `None` outside a gateway."""
    wants_progress: bool = False
    """Whether the caller asked for progress; a relay only asks its server for it then."""
    takes_tasks: bool = False
    """Whether the caller takes `TaskStarted` for an answer (it declared the modern extension with this very call)."""
    in_task: bool = False
    """Whether this call runs as a task: `tasks.maxWaitSeconds` limits it in place of `timeoutSeconds`. Calls inside it are plain calls."""
    line: str = ""
    """Requests with the same text go over one session, where a server keeps sessions; empty: any."""
    log_level: LogLevel | None = None
    """Least severe log level the caller wants to receive; `None` means no logs."""
    late_clock: LateClock | None = None
    """Of a call that was begun without a task; `None` elsewhere."""
    provenance: Provenance = DIRECT
    """How this call came about."""

    def __post_init__(self) -> None:
        # Python (3.11) keeps the names of such a dict apart and finds nothing at once in copies of it; a plain one has its own.
        object.__setattr__(self, "__dict__", {**self.__dict__})

    @property
    def era(self) -> Era:
        """The era the calling client speaks."""
        return self.client.era

    def child(self, run_tools: list[Tool] | None = None, invocation: object = None) -> CallContext:
        """A context for a call made *inside* this one: same caller, its own input round, no progress of its own.

        The call of an agent's run has the run's live list and what its middleware sees. The caller's idempotency key names the outer
        call, so it is left out.
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
        """The context of another request of the same client, which differs in nothing else."""
        facts = self.__dict__.copy()
        facts["principal"], facts["caller"], facts["meta"], facts["late_clock"] = principal, caller, meta, late_clock
        facts["presence"] = presence
        return _with_facts(facts)

    def limited(self, clock: CallClock, wait: Wait | None) -> CallContext:
        """The same facts within one more deadline, and one more place to give back: `replace`, at a tenth of what it takes."""
        facts = self.__dict__.copy()
        facts["clocks"] = (*self.clocks, clock)
        if wait is not None:
            facts["waits"] = (*self.waits, wait)
        return _with_facts(facts)

    def let_in(self) -> CallContext:
        """This call behind the gate: the file of an agent or workflow decides what it may use, not the scopes of the caller's key."""
        return self._from(self.principal.unscoped(), caller=self.on_behalf_of)

    @property
    def on_behalf_of(self) -> Principal:
        """The caller with the scopes of its key. A nested call never widens them."""
        return self.provenance.caller or self.principal

    def as_caller(self) -> CallContext:
        """The context with which something that the caller named is judged: the caller's own rights."""
        return self if self.provenance.caller is None else self._from(self.on_behalf_of, caller=None)

    def for_argument(self, name: str, value: str) -> CallContext:
        """The context with which `value`, found under `name` in this call's arguments, is read or run.

        The rights are the file's for a value that a workflow's or agent's file contains, and the caller's for everything else. An
        agent's model writes what the caller's task tells it to, so the values that it chooses are the caller's too.
        """
        return self if (name, value) in self.provenance.named_in_files else self.as_caller()

    def inside_agent(self, skills: Sequence[str] = (), *, tells_errors: bool = False) -> CallContext:
        """This call as the run of an agent whose file names `skills`. Constants of a workflow around it are not the model's to use."""
        named = frozenset((SKILL_ARGUMENT, skill) for skill in skills)
        depth = self.provenance.agent_depth + 1
        came = dataclasses.replace(self.provenance, agent_depth=depth, named_in_files=named, tells_errors=tells_errors)
        return dataclasses.replace(self, provenance=came)

    @property
    def skills_in_files(self) -> frozenset[str]:
        """The skills that the files around this call name."""
        return frozenset(value for name, value in self.provenance.named_in_files if name == SKILL_ARGUMENT)

    def named_in_file(self, constants: frozenset[tuple[str, str]]) -> CallContext:
        """This call with constants of a workflow's file, each with the name of its argument."""
        came = self.provenance
        return dataclasses.replace(self, provenance=dataclasses.replace(came, named_in_files=came.named_in_files | constants))

    def as_step(self, durable: DurablePort | None, key: str) -> CallContext:
        """This call as the step `key` of a durable task; servers get the key as an idempotency key."""
        came = dataclasses.replace(self.provenance, step_key=key)
        return dataclasses.replace(self, durable=durable, provenance=came, meta={**self.meta, IDEMPOTENCY_KEY: key})

    def _from(self, principal: Principal, *, caller: Principal | None) -> CallContext:
        return dataclasses.replace(self, principal=principal, provenance=dataclasses.replace(self.provenance, caller=caller))

    def detached(self) -> CallContext:
        """A context for work that outlives this call: same caller, rights and gate; progress is dropped and questions are refused."""
        came = dataclasses.replace(self.provenance, step_key="")
        return CallContext(principal=self.principal, meta=self.meta, tool_guard=self.tool_guard, provenance=came)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the caller; `progress` must grow from call to call."""
        await self.caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None = None) -> None:
        """Send a log message to the caller at its own chosen level."""
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
        """Wait until the client has a stream again. Within `waiting`, so that the call of a lost client ends."""
        if self.presence is not None:
            await self.presence.here()

    def question(self, name: str) -> str:
        """Return the key for `ask` of the next question with this name (`DurablePort.question`); empty outside a durable task."""
        return self.durable.question(name) if self.durable is not None else ""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the caller (a person, its model, its roots) and wait, at most `ask_timeout_seconds`.

        Stops the clocks and frees the concurrency slots of this call meanwhile. Inside a durable task, `key` (from `question`) is
        the question's identity: when the task is taken up again, a question with the same key gets the answer that it was given.
        A question without a key is asked again.

        Raises:
            AskUnavailable: The caller cannot be asked this.
            AskExpired: Nobody answered in time.
            AnswerRefused: The answer does not have the shape that the question calls for.
        """
        answer: JsonObject | None = None
        async with self.waiting():
            with anyio.move_on_after(self.ask_timeout_seconds):
                answer = await self.caller.ask(request, key)
        if answer is None:
            raise AskExpired(f"Nobody answered within {self.ask_timeout_seconds:g} s, so this did not go on.")
        method = str(request.get("method"))
        if problem := answer_problem(method, answer):
            raise AnswerRefused(f"The client's answer to {method} is not valid: {problem}.")
        return answer


def _with_facts(facts: dict[str, object]) -> CallContext:
    """A context of these facts, which are all there are: the copy of a dict, changed, is dearer to fill in than to put in place."""
    made = object.__new__(CallContext)
    object.__setattr__(made, "__dict__", facts)
    return made
