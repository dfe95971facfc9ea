"""`CallContext`: the facts, ports, limits and run of one call. `CallClock` and `LateClock`: its deadlines.

The server or the CLI makes one for each incoming call, and passes it down as an argument; an agent or workflow derives a child context for
each call that it makes. It holds no services and no settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio

from gateway.auth.principal import Principal
from gateway.errors import AnswerRefused, AskExpired
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.input_answers import answer_problem
from gateway.policy.metadata import IDEMPOTENCY_KEY
from gateway.tools.call_facts import SKILL_ARGUMENT, CallFacts, Provenance
from gateway.tools.ports import Caller, LogLevel, NoCaller, Presence

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
class StartedStep:
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

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> StartedStep:
        """Begin a step that the work itself ends, with `StartedStep.finish`. `repeatable`, `ctx` and the errors are those of `step`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPorts:
    """Interfaces to the client of a call and to the durable task around it."""

    caller: Caller = field(default_factory=NoCaller)
    presence: Presence | None = None
    """Whether the client is reachable, for a request in a 2025 session over HTTP. Other requests end with their connection."""
    durable: DurablePort | None = None
    """The step log of the durable task that the call is part of; `None` outside a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Deadlines and concurrency slots of a call and of the calls around it."""

    clocks: tuple[CallClock, ...] = ()
    """Deadlines. All of them stop while a person is asked."""
    waits: tuple[Wait, ...] = ()
    """Context managers that are entered around each wait for a person. They release concurrency slots meanwhile."""
    late_clock: LateClock | None = None
    """Holds the deadline of a call on the server's fast path; `None` for other calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScope:
    """The run of an agent or workflow that a call belongs to."""

    invocation: Invocation | None = None
    """The agent's tool call that this call is; `None` outside an agent's run."""
    tool_guard: ToolGuard[Any] | None = None
    """The gate for the tools that the surrounding agent or workflow brings along; `None` outside a gateway."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call: its facts, its ports, its limits and the run around it. The methods derive the contexts of other calls."""

    facts: CallFacts = field(default_factory=CallFacts)
    ports: CallPorts = field(default_factory=CallPorts)
    limits: CallLimits = CallLimits()
    run: AgentScope = AgentScope()

    @staticmethod
    def of_request(known: CallFacts, principal: Principal, meta: JsonMapping, ports: CallPorts, late_clock: LateClock) -> CallContext:
        """Return the context of a call on the server's fast path. `known` are the facts that all calls of the client share."""
        facts = CallFacts(
            principal=principal,
            client=known.client,
            meta=meta,
            ask_timeout_seconds=known.ask_timeout_seconds,
            takes_tasks=known.takes_tasks,
            log_level=known.log_level,
        )
        return CallContext(facts, ports, CallLimits(late_clock=late_clock))

    def with_facts(self, facts: CallFacts) -> CallContext:
        """Return the context with other facts."""
        return CallContext(facts, self.ports, self.limits, self.run)

    def with_meta(self, meta: JsonMapping) -> CallContext:
        """Return the context with other `_meta` to forward."""
        return self.with_facts(dataclasses.replace(self.facts, meta=meta))

    def with_answers(self, answers: JsonMapping | None, state: str | None) -> CallContext:
        """Return the context with the answers to an `InputRequired` and its state; both `None` for a call that starts again."""
        return self.with_facts(dataclasses.replace(self.facts, input_responses=answers, request_state=state))

    def with_state(self, state: str | None) -> CallContext:
        """Return the context with another request state: the state of the `InputRequired` result that this round of the call answers."""
        return self.with_answers(self.facts.input_responses, state)

    def with_caller(self, caller: Caller) -> CallContext:
        """Return the context with another receiver of progress, log messages and requests for input."""
        return CallContext(self.facts, dataclasses.replace(self.ports, caller=caller), self.limits, self.run)

    def with_durable(self, durable: DurablePort | None) -> CallContext:
        """Return the context with another port to the durable task."""
        return CallContext(self.facts, dataclasses.replace(self.ports, durable=durable), self.limits, self.run)

    def with_wait(self, wait: Wait) -> CallContext:
        """Return the context with one more concurrency slot."""
        return dataclasses.replace(self, limits=dataclasses.replace(self.limits, waits=(*self.limits.waits, wait)))

    def for_invocation(self, invocation: Invocation) -> CallContext:
        """Return the context of the agent's tool call that this call is."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, invocation=invocation))

    def guarded_by(self, tool_guard: ToolGuard[Any] | None) -> CallContext:
        """Return the context with the gate for the tools that an agent or workflow brings along."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, tool_guard=tool_guard))

    def child(self, invocation: Invocation | None = None) -> CallContext:
        """Return the context for a call inside this one: the same caller, without answers and without progress.

        The idempotency key in `meta` is removed, because it names the outer call.
        """
        facts = dataclasses.replace(
            self.facts,
            meta={key: value for key, value in self.facts.meta.items() if key != IDEMPOTENCY_KEY},
            input_responses=None,
            request_state=None,
            wants_progress=False,
            takes_tasks=False,
            in_task=False,
        )
        return CallContext(facts, self.ports, self.limits, AgentScope(invocation=invocation, tool_guard=self.run.tool_guard))

    def limited(self, clock: CallClock, wait: Wait | None) -> CallContext:
        """Return the context with one more deadline and, if `wait` is given, one more concurrency slot."""
        held = self.limits
        waits = held.waits if wait is None else (*held.waits, wait)
        limits = CallLimits(clocks=(*held.clocks, clock), waits=waits, late_clock=held.late_clock)
        return CallContext(self.facts, self.ports, limits, self.run)

    def let_in(self) -> CallContext:
        """Return the context for an authorized call: without the scopes of the caller's key, because what an agent or workflow may use is
        decided by its file.

        `on_behalf_of` still returns the caller with its scopes.
        """
        return self._from(self.facts.principal.unscoped(), caller=self.facts.on_behalf_of)

    def as_caller(self) -> CallContext:
        """Return the context with the scopes of the caller's key, to judge a value that the caller chose, such as a URI."""
        return self if self.facts.provenance.caller is None else self._from(self.facts.on_behalf_of, caller=None)

    def for_argument(self, name: str, value: str) -> CallContext:
        """Return the context for reading or running `value`, the argument `name` of this call.

        A value that a workflow's or agent's file fixes may be used whatever the caller's scopes are; for other values, the scopes apply.
        Values that an agent's model chooses count as the caller's, because the caller's task controls the model.
        """
        return self if (name, value) in self.facts.provenance.named_in_files else self.as_caller()

    def inside_agent(self, skills: Sequence[str] = (), *, tells_errors: bool = False) -> CallContext:
        """Return the context of an agent's run whose file names `skills`. Constants of a workflow around it no longer apply."""
        named = frozenset((SKILL_ARGUMENT, skill) for skill in skills)
        came = self.facts.provenance
        return self._with_provenance(
            dataclasses.replace(came, agent_depth=came.agent_depth + 1, named_in_files=named, tells_errors=tells_errors)
        )

    def named_in_file(self, constants: frozenset[tuple[str, str]]) -> CallContext:
        """Return the context of a call whose arguments a workflow's file fixes: `constants` are pairs of argument name and value."""
        came = self.facts.provenance
        return self._with_provenance(dataclasses.replace(came, named_in_files=came.named_in_files | constants))

    def as_step(self, durable: DurablePort | None, key: str) -> CallContext:
        """Return the context of the step `key` of a durable task. Servers receive the key as an idempotency key."""
        step = self._with_provenance(dataclasses.replace(self.facts.provenance, step_key=key)).with_durable(durable)
        return step.with_meta({**self.facts.meta, IDEMPOTENCY_KEY: key})

    def detached(self) -> CallContext:
        """Return a context for work that outlives this call: the same caller, rights and gate, without progress and questions."""
        came = dataclasses.replace(self.facts.provenance, step_key="")
        facts = CallFacts(principal=self.facts.principal, meta=self.facts.meta, provenance=came)
        return CallContext(facts, run=AgentScope(tool_guard=self.run.tool_guard))

    def _from(self, principal: Principal, *, caller: Principal | None) -> CallContext:
        came = dataclasses.replace(self.facts.provenance, caller=caller)
        return self.with_facts(dataclasses.replace(self.facts, principal=principal, provenance=came))

    def _with_provenance(self, provenance: Provenance) -> CallContext:
        return self.with_facts(dataclasses.replace(self.facts, provenance=provenance))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress to the caller; `progress` must increase from call to call."""
        await self.ports.caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None = None) -> None:
        """Send a log message to the caller; dropped if the caller did not request messages of this level."""
        await self.ports.caller.log(level, data, logger)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Stop the deadlines, and free the concurrency slots, of this call inside the context, while a person decides."""
        async with contextlib.AsyncExitStack() as stack:
            for clock in self.limits.clocks:
                await stack.enter_async_context(clock.paused())
            if self.ports.presence is not None:
                await stack.enter_async_context(self.ports.presence.waiting())
            for wait in self.limits.waits:
                await stack.enter_async_context(wait())
            yield

    async def here(self) -> None:
        """Wait until the client has a stream open. Use it inside `waiting`, so that the call ends if the client is lost."""
        if self.ports.presence is not None:
            await self.ports.presence.here()

    def question(self, name: str) -> str:
        """Return a key for the next question with this name, to be passed to `ask`; empty outside a durable task."""
        return self.ports.durable.question(name) if self.ports.durable is not None else ""

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
            with anyio.move_on_after(self.facts.ask_timeout_seconds):
                answer = await self.ports.caller.ask(request, key)
        if answer is None:
            raise AskExpired(f"Nobody answered within {self.facts.ask_timeout_seconds:g} s, so the call was ended.")
        method = str(request.get("method"))
        if problem := answer_problem(method, answer):
            raise AnswerRefused(f"The client's answer to {method} is not valid: {problem}.")
        return answer
