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
"""Makes the context manager that surrounds a wait for a person."""


class CallClock:
    """The deadline of one call, which stops while a person is asked. The gate runs the work inside `scope`."""

    __slots__ = ("_ends_at", "_is_abandoned", "_left", "_paused", "_scope", "ended", "is_left")

    def __init__(self, seconds: float) -> None:
        """The deadline is after `seconds` of working time from now; infinite is allowed."""
        self._ends_at = time.monotonic() + seconds
        self._scope: anyio.CancelScope | None = None
        self._paused = 0
        self._left = seconds
        self._is_abandoned = False
        self.is_left = False
        """Whether the work ended; set only for a clock in a `LateClock`."""
        self.ended = ""
        """Why the call was ended before its deadline; empty if it was not."""

    @property
    def scope(self) -> anyio.CancelScope:
        """The cancel scope that ends the work at the deadline."""
        if self._scope is None:
            self._scope = anyio.CancelScope(deadline=self._ends_at)
        return self._scope

    @property
    def is_over(self) -> bool:
        """Whether the clock cancelled the work, and not the caller."""
        return self._scope is not None and self._scope.cancel_called and not self._is_abandoned

    def abandon(self) -> None:
        """Note that the caller cancels the call."""
        self._is_abandoned = True

    def end(self, reason: str) -> None:
        """End the call now, because a question of it was not answered. The server that asked may not notice that itself."""
        self.ended = reason
        self.scope.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Stop the clock while a person is asked. Several questions may overlap."""
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
    """Holds the clock of a call on the server's fast path, whose deadline is enforced from outside if the call is slow.

    Because: entering a cancel scope with a deadline takes 6 µs, 5 % of a plain call, and most calls end long before their deadline.
    """

    __slots__ = ("_is_closed", "_seconds", "clock")

    def __init__(self, seconds: float) -> None:
        """`seconds` is when the server starts to enforce the deadline; a shorter deadline is enforced by the call itself."""
        self._seconds = seconds
        self._is_closed = False
        self.clock: CallClock | None = None
        """The clock that the server enforces."""

    def takes(self, clock: CallClock, seconds: float) -> bool:
        """Return whether the server enforces `clock`, a deadline after `seconds`. True for the first clock of a call only."""
        if self._is_closed or self.clock is not None or seconds <= self._seconds:
            return False
        self.clock = clock
        return True

    def close(self) -> None:
        """Take no clock from now on: the server has begun to enforce."""
        self._is_closed = True


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


class Invocation(Protocol):
    """A tool call of an agent's run (`invocation.FunctionInvocationContext`)."""

    metadata: JsonObject
    """Shared by all middleware of the call."""
    kwargs: JsonObject
    """The values that the program gave to the run."""


class ToolGuard(Protocol[ToolT]):
    """The gate for the tools that one agent or workflow brings along.

    `ToolT` is always `base.Tool`, which cannot be named here because its `call` takes a `CallContext`.
    """

    def guarded(self, tools: Sequence[ToolT]) -> list[ToolT]:
        """Return the tools that policy does not hide, in order, each behind the gate. A guarded tool is returned unchanged.

        A tool that is only declared is returned unchanged too, because its caller answers it.
        """
        ...

    def lent(self, tools: Sequence[ToolT]) -> list[ToolT]:
        """Return tools of other sources that the file adds by a key (`skills`), in order, without those that policy hides.

        A call passes this gate and then the gate of the tool's own source. Rules name the tools by their native names.
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
        """Return `tool`, which runs the Python function `found`, behind the gate. A file refers to the function as `reference`.

        The gate refuses each call if the policy of `function` or of this source denies the function.
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
    invocation: Invocation | None = None
    """This call as a call of an agent's run; `None` outside a run."""
    tool_guard: ToolGuard[Any] | None = None
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

    def child(self, invocation: Invocation | None = None) -> CallContext:
        """Return the context for a call inside this one: the same caller, without answers and without progress.

        The idempotency key names the outer call, so it is removed.
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
