"""`CallContext`: the facts, deadlines and ports of one call. `CallClock` and `LateClock`: its deadlines.

The server or the CLI makes one for each incoming call, and passes it down as an argument; an agent or workflow derives a child context for
each call that it makes. It holds no services and no settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.errors import AnswerRefused, AskExpired
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.input_answers import answer_problem
from gateway.policy.metadata import IDEMPOTENCY_KEY
from gateway.tools.ports import Caller, ClientProfile, Era, LogLevel, NoCaller, Presence

ToolT = TypeVar("ToolT")

Wait = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""A function that returns the context manager to enter around a wait for a person."""


class CallClock:
    """The deadline of one call, which stops while a person is asked. The gate runs the work inside `scope`."""

    __slots__ = ("_ends_at", "_is_abandoned", "_left", "_paused", "_scope", "ended", "is_left")

    def __init__(self, seconds: float) -> None:
        """The deadline is when `seconds` of working time are over, counted from now. Infinite is allowed."""
        self._ends_at = time.monotonic() + seconds
        self._scope: anyio.CancelScope | None = None
        self._paused = 0
        self._left = seconds
        self._is_abandoned = False
        self.is_left = False
        """Whether the work of the call ended. Only set for a clock in a `LateClock`."""
        self.ended = ""
        """Why the call was ended before its deadline; empty if this did not happen."""

    @property
    def scope(self) -> anyio.CancelScope:
        """The cancel scope that ends the work at the deadline."""
        if self._scope is None:
            self._scope = anyio.CancelScope(deadline=self._ends_at)
        return self._scope

    @property
    def is_over(self) -> bool:
        """Whether the deadline, or `end`, cancelled the work, rather than the caller."""
        return self._scope is not None and self._scope.cancel_called and not self._is_abandoned

    def abandon(self) -> None:
        """Record that the caller cancels the call, so that `is_over` stays false."""
        self._is_abandoned = True

    def end(self, reason: str) -> None:
        """End the call now, because a question that it asked was not answered. `reason` says so; the asking server may not notice it."""
        self.ended = reason
        self.scope.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Stop the deadline inside the context, while a person is asked. Several questions may overlap."""
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
    """Holds the `CallClock` of a call on the server's fast path. The server begins to enforce its deadline only if the call is slow.

    Because: entering a cancel scope with a deadline takes 6 µs, 5 % of a plain call, and most calls end long before their deadline.
    """

    __slots__ = ("_is_closed", "_seconds", "clock")

    def __init__(self, seconds: float) -> None:
        """After `seconds`, the server begins to enforce the deadline of the call. A shorter deadline is enforced from the start."""
        self._seconds = seconds
        self._is_closed = False
        self.clock: CallClock | None = None
        """The clock whose deadline the server enforces; `None` if there is none."""

    def takes(self, clock: CallClock, seconds: float) -> bool:
        """Have the server enforce `clock`, whose deadline is after `seconds`. Return false if the gate must enforce it itself.

        The server only enforces the first clock of a call, if its deadline is late enough.
        """
        if self._is_closed or self.clock is not None or seconds <= self._seconds:
            return False
        self.clock = clock
        return True

    def close(self) -> None:
        """Accept no clock from now on, because the server has begun to enforce the deadline."""
        self._is_closed = True


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a durable task that `DurablePort.begin` began, or whose result an earlier attempt recorded."""

    is_done: bool
    value: JsonValue
    """The recorded result; `None` if the step is not done."""
    finish: Callable[[JsonValue], Awaitable[None]]
    """A function that records the result of the step."""


class DurablePort(Protocol):
    """The step log of a durable task, for the work inside it; `CallContext.durable` is `None` outside a task.

    The protocol is defined here, so that tools, agents and workflows record steps without importing the task engine (`tasks`). When a
    task is resumed, its work runs from the start, and recorded steps return their recorded results.
    """

    @property
    def version(self) -> int:
        """Version of the rules by which the task's steps are named. A task keeps the version with which it was started."""
        ...

    def scoped(self, label: str) -> DurablePort:
        """Return a port for a part of the work: names and numbers of its steps are separate from those of other parts."""
        ...

    def asking(self, label: str) -> DurablePort:
        """Return a port with the same steps, but with `label` in the names of its questions.

        Parts of the work that run concurrently each need such a port, so that the numbers of their questions do not depend on the order.
        """
        ...

    def question(self, name: str) -> str:
        """Return a key for the next question with this name. A resumed task that asks in the same order gets the same keys, and so answers.

        Call it only in code that runs again when the task is resumed, or on the port of the step that contains the question. Otherwise
        the numbers shift when a recorded step is skipped.
        """
        ...

    def judges(self, key: str) -> None:
        """Announce that the work will judge the answers to the question `key`, by calling `judged` for each answer."""
        ...

    async def judged(self, key: str, problem: str = "") -> bool:
        """Record that the work used the answer to the question `key`, or cannot use the answer because of `problem`.

        An answer that cannot be used is removed, and the client that sent it gets the problem as an error. Returns whether the task keeps
        the question: if the work asks it again with the same request and key, clients see it under the same name.
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
        """Begin a step that the work itself ends, with `BegunStep.finish`. `repeatable`, `ctx` and the errors are those of `step`."""
        ...

    def shows(self, message: str) -> contextlib.AbstractContextManager[None]:
        """Show `message` as the task's status message inside the context, whatever progress other parts of the work report."""
        ...

    async def keep(self, name: str, value: JsonValue) -> None:
        """Store a value of the task under a name (a checkpoint), in place of the earlier value of this name."""
        ...

    def kept(self, name: str) -> JsonValue:
        """Return the value that `keep` stored under a name, or `None`."""
        ...

    async def goes_on(self) -> bool:
        """Return whether the task, whose work is being cancelled here, will be continued: in another process, or at the next start.

        If so, the calls that the task has running on servers must not be cancelled there: the task will follow them.
        """
        ...


class Invocation(Protocol):
    """A tool call of an agent's run (`invocation.FunctionInvocationContext`)."""

    metadata: JsonObject
    """Values that the middleware of the call share."""
    kwargs: JsonObject
    """The values that the program passed to the run (`function_invocation_kwargs`)."""


class ToolGuard(Protocol[ToolT]):
    """The gate for the tools that one agent or workflow brings along.

    `ToolT` is always `base.Tool`, which cannot be named here because its `call` takes a `CallContext`.
    """

    def guarded(self, tools: Sequence[ToolT]) -> list[ToolT]:
        """Return the tools that policy does not hide, in order, each behind the gate. A tool behind a gate is returned unchanged.

        A tool that is only declared is returned unchanged too, because the caller of the run, not the gateway, answers its calls.
        """
        ...

    def lent(self, tools: Sequence[ToolT]) -> list[ToolT]:
        """Return `tools`, which other sources have and a key of the agent's or workflow's file adds (`skills`), each behind this gate too.

        A call passes this gate, and then the gate of the tool's own source. Tools that policy hides are left out. Rules use native names.
        """
        ...

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Ask a person to approve `name`, which the text `shown` describes; `None` means approved.

        `key` identifies the question in a durable task (`CallContext.question`).

        Raises:
            GatewayError: The person cannot be asked.
        """
        ...

    def function(self, reference: str, found: object, tool: ToolT) -> ToolT:
        """Return `tool`, which runs the Python function `found`, behind the gate. `reference` is how a file names the function.

        The gate refuses each call if the policy of `function` or of this source denies the function.
        """
        ...


SKILL_ARGUMENT = "skill_name"
"""Name of the argument that names a skill in calls of the skill tools."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a call. The gateway sets these facts; a request cannot."""

    caller: Principal | None = None
    """After the gate authorized a call: the caller with the scopes of its key. `None` before, and for a key without scopes."""
    agent_depth: int = 0
    """Number of agents that this call runs inside."""
    named_in_files: frozenset[tuple[str, str]] = frozenset()
    """Argument names and values that files of the agents and workflows around this call fix: constants, and `skill_name` for skills."""
    tells_errors: bool = True
    """Whether the caller gets the text of an unexpected exception of a function. Inside an agent, the agent's file decides this."""
    step_key: str = ""
    """Key of this call as a step of a durable task, which is the same when the task is resumed. Empty outside a durable task."""


DIRECT = Provenance()
"""The origin of a call that a client made itself, rather than an agent, a workflow or a task."""


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
    """Deadlines of this call and of the calls around it. All of them stop while a person is asked."""
    waits: tuple[Wait, ...] = ()
    """Context managers that are entered around each wait for a person. They release concurrency slots meanwhile."""
    presence: Presence | None = None
    """Whether the client is reachable, for a request in a 2025 session over HTTP. Other requests end with their connection."""
    ask_timeout_seconds: float = 3600.0
    """Seconds that one question waits for its answer (`server.askTimeoutSeconds`)."""
    durable: DurablePort | None = None
    invocation: Invocation | None = None
    """The agent's tool call that this call is; `None` outside an agent's run."""
    tool_guard: ToolGuard[Any] | None = None
    """The gate for the tools that the surrounding agent or workflow brings along; `None` outside a gateway."""
    wants_progress: bool = False
    """Whether the caller requested progress. Only then is progress requested from a server."""
    takes_tasks: bool = False
    """Whether the caller accepts `TaskStarted` (it declared the tasks extension of 2026 with this call)."""
    in_task: bool = False
    """Whether this call runs as a task, with the limit `tasks.maxWaitSeconds` instead of `timeoutSeconds`. Not set for calls inside it."""
    line: str = ""
    """Calls with the same text (not empty) share a session with a server that may request input."""
    log_level: LogLevel | None = None
    """Least severe log level that the caller requested; `None` for no logs."""
    late_clock: LateClock | None = None
    """Holds the deadline of a call on the server's fast path; `None` for other calls."""
    provenance: Provenance = DIRECT
    """The origin of this call."""

    def __post_init__(self) -> None:
        # Python 3.11 shares the keys of instance dicts, and copies of such a dict are slow to read; a plain dict is not shared.
        object.__setattr__(self, "__dict__", {**self.__dict__})

    @property
    def era(self) -> Era:
        """The protocol era of the client."""
        return self.client.era

    def child(self, invocation: Invocation | None = None) -> CallContext:
        """Return the context for a call inside this one: the same caller, without answers and without progress.

        The idempotency key in `meta` is removed, because it names the outer call.
        """
        return dataclasses.replace(
            self,
            meta={key: value for key, value in self.meta.items() if key != IDEMPOTENCY_KEY},
            input_responses=None,
            request_state=None,
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
        """Return the context with one more deadline and concurrency slot, in a tenth of the time of `dataclasses.replace`."""
        facts = self.__dict__.copy()
        facts["clocks"] = (*self.clocks, clock)
        if wait is not None:
            facts["waits"] = (*self.waits, wait)
        return _with_facts(facts)

    def let_in(self) -> CallContext:
        """Return the context for an authorized call: without the scopes of the caller's key, because what an agent or workflow may use is
        decided by its file.

        `on_behalf_of` still returns the caller with its scopes.
        """
        return self._from(self.principal.unscoped(), caller=self.on_behalf_of)

    @property
    def on_behalf_of(self) -> Principal:
        """The caller with the scopes of its key, also in calls that an agent or workflow makes for the caller."""
        return self.provenance.caller or self.principal

    def as_caller(self) -> CallContext:
        """Return the context with the scopes of the caller's key, to judge a value that the caller chose, such as a URI."""
        return self if self.provenance.caller is None else self._from(self.on_behalf_of, caller=None)

    def for_argument(self, name: str, value: str) -> CallContext:
        """Return the context for reading or running `value`, the argument `name` of this call.

        A value that a workflow's or agent's file fixes may be used whatever the caller's scopes are; for other values, the scopes apply.
        Values that an agent's model chooses count as the caller's, because the caller's task controls the model.
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
        """The skills that files of the agents and workflows around this call name."""
        return frozenset(value for name, value in self.provenance.named_in_files if name == SKILL_ARGUMENT)

    def named_in_file(self, constants: frozenset[tuple[str, str]]) -> CallContext:
        """Return the context of a call whose arguments a workflow's file fixes: `constants` are pairs of argument name and value."""
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
        """Send a log message to the caller; dropped if the caller did not request messages of this level."""
        await self.caller.log(level, data, logger)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Stop the deadlines, and free the concurrency slots, of this call inside the context, while a person decides."""
        async with contextlib.AsyncExitStack() as stack:
            for clock in self.clocks:
                await stack.enter_async_context(clock.paused())
            if self.presence is not None:
                await stack.enter_async_context(self.presence.waiting())
            for wait in self.waits:
                await stack.enter_async_context(wait())
            yield

    async def here(self) -> None:
        """Wait until the client has a stream open. Use it inside `waiting`, so that the call ends if the client is lost."""
        if self.presence is not None:
            await self.presence.here()

    def question(self, name: str) -> str:
        """Return a key for the next question with this name, to be passed to `ask`; empty outside a durable task."""
        return self.durable.question(name) if self.durable is not None else ""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the caller (a person, its model, its roots), and wait at most `ask_timeout_seconds`.

        The deadlines of this call stop, and its concurrency slots are released, during the wait. Inside a durable task, `key` (from
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
    """Return a context with these fields. `facts` becomes its instance dict, which is faster than setting each field."""
    made = object.__new__(CallContext)
    object.__setattr__(made, "__dict__", facts)
    return made
