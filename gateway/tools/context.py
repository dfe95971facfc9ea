"""`CallContext`: the state of one call (its facts, client, deadlines and agent run). `CallClock` and `LateClock`: deadlines of calls.

The server or the CLI creates a `CallContext` for each incoming call, and passes it on as an argument; an agent or workflow derives a child
context for each call that it makes. A `CallContext` holds no services and no settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import anyio

from gateway.auth.principal import Principal
from gateway.errors import ASK_AGAIN, AnswerRefused, InputExpired
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.input_answers import answer_problem
from gateway.policy.metadata import IDEMPOTENCY_KEY
from gateway.tools.call_facts import SKILL_ARGUMENT, CallFacts, Provenance
from gateway.tools.ports import Caller, LogLevel, NoCaller, Presence

Wait = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""Function that returns a context manager for a call's wait for a person. The context manager releases a concurrency slot of the call."""


class CallClock:
    """The deadline of one call, without the time for which the call waits for a person. The gate runs the call inside `scope`.

    The gate is the code that checks each call and then runs it.
    """

    __slots__ = ("_ends_at", "_is_abandoned", "_left", "_paused", "_scope", "ended", "is_left")

    def __init__(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now; the time inside `paused` does not count. Infinity means no deadline."""
        self._ends_at = time.monotonic() + seconds
        self._scope: anyio.CancelScope | None = None
        self._paused = 0
        self._left = seconds
        self._is_abandoned = False
        self.is_left = False
        """Whether the call has ended. Only set for calls on the server's fast path (without the SDK), whose clock is in a `LateClock`."""
        self.ended = ""
        """Why `end` ended the call before its deadline; empty if `end` was not called."""

    @property
    def scope(self) -> anyio.CancelScope:
        """The cancel scope in which the call runs. It cancels the call at the deadline."""
        if self._scope is None:
            self._scope = anyio.CancelScope(deadline=self._ends_at)
        return self._scope

    @property
    def is_over(self) -> bool:
        """Whether the deadline or `end` cancelled the call; false if the caller cancelled it."""
        return self._scope is not None and self._scope.cancel_called and not self._is_abandoned

    def abandon(self) -> None:
        """Record that the caller has cancelled the call, so that `is_over` stays false."""
        self._is_abandoned = True

    def end(self, reason: str) -> None:
        """Cancel the call now, because its request for input was not answered, and store `reason` in `ended` for the error message.

        The server that requested the input may not notice this by itself.
        """
        self.ended = reason
        self.scope.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Async context manager: stop the deadline while the call waits for a person. Several waits may overlap."""
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
    """Holds the deadline (`CallClock`) of a call on the fast path (without the MCP SDK). The server enforces it only if the call is slow.

    Entering a cancel scope with a deadline takes 6 µs, 5 % of a call on the fast path, and most calls end before their deadline.
    """

    __slots__ = ("_is_closed", "_seconds", "clock")

    def __init__(self, seconds: float) -> None:
        """Create an object without a deadline. After `seconds`, the server begins to enforce the deadline that the object then holds.

        The gate, which runs the call, enforces shorter deadlines from the start.
        """
        self._seconds = seconds
        self._is_closed = False
        self.clock: CallClock | None = None
        """The clock whose deadline the server enforces; `None` if the gate, which runs the call, enforces all deadlines."""

    def takes(self, clock: CallClock, seconds: float) -> bool:
        """Let the fast path enforce the deadline of `clock`, `seconds` from now; return false if the gate must enforce it.

        The gate, which runs the call, calls this method for each deadline of the call. The fast path enforces only one of them: the first
        that is later than the `seconds` of `__init__`. After `close`, the fast path accepts no deadline.
        """
        if self._is_closed or self.clock is not None or seconds <= self._seconds:
            return False
        self.clock = clock
        return True

    def close(self) -> None:
        """Make `takes` refuse all further clocks, because the server has begun to enforce the deadline."""
        self._is_closed = True


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step of a durable task (a background call that continues after a restart). It has just begun, or has a recorded result."""

    is_done: bool
    value: JsonValue
    """The result of the step, as JSON, that an earlier attempt of the task recorded; `None` if `is_done` is false."""
    finish: Callable[[JsonValue], Awaitable[None]]
    """Function that records the result of the step. The code that began the step calls it when the step has ended."""


class DurablePort(Protocol):
    """Protocol of the step log, in which the code of a durable task (a background call that continues after a restart) records its steps.

    When a task is resumed, its code runs from the start, and recorded steps return their recorded results. The protocol is defined in this
    module, so that tools, agents and workflows need not import the task engine (`tasks`).
    """

    @property
    def version(self) -> int:
        """Version of the rules by which the steps of the task are named. A task keeps the version with which it was started."""
        ...

    def scoped(self, label: str) -> DurablePort:
        """Return a step log for one part of the task, in which names and numbers of steps are separate from those of other parts."""
        ...

    def asking(self, label: str) -> DurablePort:
        """Return a step log with the same steps, in which the keys of questions (requests for input) contain `label`.

        Parts of the task that run concurrently must use different labels. Otherwise the key of a question would depend on which part asks
        first, and a resumed task would not find the stored answer.
        """
        ...

    def question(self, name: str) -> str:
        """Return the key of the next question (request for input) with this name. A resumed task finds the stored answer by this key.

        The keys are numbered. Code inside a recorded step does not run again. It must therefore use the step log of its step (`scoped`):
        otherwise later questions of a resumed task would get other numbers.
        """
        ...

    def judges(self, key: str) -> None:
        """Announce that the code checks each answer to the question with this key, and calls `judged` to report whether it can be used.

        The client that sends the answer gets its response only after this report, or after a time limit. The response contains the reason
        of a refusal.
        """
        ...

    async def judged(self, key: str, problem: str = "") -> bool:
        """Report that the answer to the question with this key was used, or, with `problem`, why it cannot be used.

        A refused answer is removed, and the client that sent it receives the problem as an error. The question is then open again: the code
        can send the same request with the same key, and clients see it under the same name. Returns false if the question had no answer.
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
        """Run `work` as a step, record its JSON result and return it. If the result was recorded before, return it without running `work`.

        `work` receives the step's idempotency key, which is the same at every attempt. Steps of the same name are numbered in the order in
        which they begin. `repeatable` decides whether a step that was in flight when the process died runs again. It is a boolean, or a
        function that receives the step's key without the task's id. If it may not run again by itself, a person must agree. While the
        question is open, the deadlines of `ctx`, the call that contains the step, are paused.

        Raises:
            ToolFailed: The outcome of an earlier attempt is unknown, and no person agreed to repeat the step.
        """
        ...

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> StartedStep:
        """Begin a step of the task, whose result `StartedStep.finish` records later. Parameters and errors are those of `step`."""
        ...

    def shows(self, message: str) -> contextlib.AbstractContextManager[None]:
        """Return a context manager inside which `message` is the task's status message, even if other parts of the task report progress."""
        ...

    async def keep(self, name: str, value: JsonValue) -> None:
        """Store a JSON value (a checkpoint) with the task under a name, and replace an earlier value of this name."""
        ...

    def kept(self, name: str) -> JsonValue:
        """Return the value that `keep` stored with the task under a name, or `None`."""
        ...

    async def will_resume(self) -> bool:
        """Return whether another process, or the next start, will resume the task, whose code is being cancelled in this process.

        If so, in-flight calls of the task must not be cancelled on their servers, because the resumed task waits for their results.
        """
        ...


class Invocation(Protocol):
    """Protocol of one tool call of an agent's run, implemented by `FunctionInvocationContext`."""

    metadata: JsonObject
    """Values that all middleware of the tool call share."""
    kwargs: JsonObject
    """The values that the program passed to the run of the agent as `function_invocation_kwargs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPorts:
    """The interfaces of a call to its client and to the durable task that contains it."""

    caller: Caller = field(default_factory=NoCaller)
    presence: Presence | None = None
    """Tracks whether the client is connected, for requests in a 2025 session over HTTP; `None` if a request ends with its connection."""
    durable: DurablePort | None = None
    """Records the steps of the durable task (a background call that continues after a restart) that contains the call; else `None`."""


@dataclass(slots=True, kw_only=True)  # not frozen, as `CallContext`
class CallLimits:
    """The deadlines and concurrency slots of a call and of all calls that contain it. A `CallLimits` object is never changed."""

    clocks: tuple[CallClock, ...] = ()
    """The deadlines of the call and of the calls that contain it. All of them stop while the call waits for a person."""
    waits: tuple[Wait, ...] = ()
    """Functions that return context managers. Each context manager releases one concurrency slot while the call waits for a person."""
    late_clock: LateClock | None = None
    """Holds the deadline of a call on the server's fast path (without the SDK); `None` for other calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScope:
    """The run of an agent or workflow that contains a call. For a run in a gateway, the object is a `toolbox.GuardedScope`."""

    invocation: Invocation | None = None
    """The tool call of an agent's run that caused this call; `None` outside an agent's run."""


NO_RUN = AgentScope()
"""The `AgentScope` of calls outside agents and workflows."""


@dataclass(slots=True)  # not frozen, because creating a frozen object takes three times as long, and each call creates two of them
class CallContext:
    """The context of one call: its facts, interfaces to its client, limits, and agent run. Methods derive contexts of nested calls.

    A `CallContext` is never changed after its creation.
    """

    facts: CallFacts = field(default_factory=CallFacts)
    ports: CallPorts = field(default_factory=CallPorts)
    limits: CallLimits = field(default_factory=CallLimits)
    run: AgentScope = NO_RUN

    @staticmethod
    def of_request(known: CallFacts, principal: Principal, meta: JsonMapping, ports: CallPorts, late_clock: LateClock) -> CallContext:
        """Create the context of a call on the server's fast path (without the SDK).

        `known` are the facts of an earlier call of the client. If both calls have the same principal, and neither has `_meta` to forward,
        the context contains the object `known` itself.
        """
        facts = known
        if meta or known.meta or known.principal is not principal:
            facts = CallFacts(
                principal=principal,
                client=known.client,
                meta=meta,
                ask_timeout_seconds=known.ask_timeout_seconds,
                takes_tasks=known.takes_tasks,
                log_level=known.log_level,
            )
        return CallContext(facts, ports, CallLimits(late_clock=late_clock), NO_RUN)

    def with_facts(self, facts: CallFacts) -> CallContext:
        """Return a copy of the context with `facts` in place of its facts."""
        return CallContext(facts, self.ports, self.limits, self.run)

    def with_meta(self, meta: JsonMapping) -> CallContext:
        """Return a copy of the context with `meta` as the `_meta` that may be forwarded to servers."""
        return self.with_facts(dataclasses.replace(self.facts, meta=meta))

    def with_answers(self, answers: JsonMapping | None, state: str | None) -> CallContext:
        """Return a copy of the context for a retry of the call: with `answers` to its requests for input, and its `requestState`.

        `answers` has the client's answers by key. If both parameters are `None`, the copy is for a new call.
        """
        return self.with_facts(dataclasses.replace(self.facts, input_responses=answers, request_state=state))

    def with_state(self, state: str | None) -> CallContext:
        """Return a copy of the context with another `requestState`, that of the call's last `InputRequired` result."""
        return self.with_answers(self.facts.input_responses, state)

    def with_caller(self, caller: Caller) -> CallContext:
        """Return a copy of the context that sends progress, log messages and requests for input to `caller`."""
        return CallContext(self.facts, dataclasses.replace(self.ports, caller=caller), self.limits, self.run)

    def with_durable(self, durable: DurablePort | None) -> CallContext:
        """Return a copy of the context with another step log of the durable task that contains the call, or without a step log."""
        return CallContext(self.facts, dataclasses.replace(self.ports, durable=durable), self.limits, self.run)

    def with_wait(self, wait: Wait) -> CallContext:
        """Return a copy of the context with one more concurrency slot. The context manager of `wait` releases it while the call waits."""
        return dataclasses.replace(self, limits=dataclasses.replace(self.limits, waits=(*self.limits.waits, wait)))

    def for_invocation(self, invocation: Invocation) -> CallContext:
        """Return a copy of the context with `invocation`, the tool call of an agent's run that causes this call."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, invocation=invocation))

    def child(self, invocation: Invocation | None = None) -> CallContext:
        """Return the context for a nested call of the same principal and client, without the outer call's answers to requests for input.

        The nested call accepts no MCP task, and requests no progress from servers. The idempotency key in `meta` is removed, because it
        identifies the outer call.
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
        return CallContext(facts, self.ports, self.limits, dataclasses.replace(self.run, invocation=invocation))

    def limited(self, clock: CallClock, wait: Wait | None) -> CallContext:
        """Return a copy of the context with one more deadline (`clock`) and, for a `wait`, one more concurrency slot (`with_wait`)."""
        held = self.limits
        waits = held.waits if wait is None else (*held.waits, wait)
        limits = CallLimits(clocks=(*held.clocks, clock), waits=waits, late_clock=held.late_clock)
        return CallContext(self.facts, self.ports, limits, self.run)

    def authorized(self) -> CallContext:
        """Return the context for a call that the gate has authorized: its principal no longer has the scopes of the caller's API key.

        The scopes thus do not apply to nested calls, through which an agent or workflow uses the tools that its file names. `on_behalf_of`
        still has the scopes.
        """
        return self._from(self.facts.principal.unscoped(), caller=self.facts.on_behalf_of)

    def as_caller(self) -> CallContext:
        """Return the context with the scopes of the caller's API key, to check a value that the caller chose, such as a URI."""
        return self if self.facts.provenance.caller is None else self._from(self.facts.on_behalf_of, caller=None)

    def for_argument(self, name: str, value: str) -> CallContext:
        """Return the context with which to check whether this call may use `value`, the value of its argument `name` (such as a URI).

        The scopes of the caller's API key apply to the value, unless a workflow's or agent's file contains it. The scopes also apply to
        values that an agent's model chooses, because the caller's prompt controls the model.
        """
        return self if (name, value) in self.facts.provenance.named_in_files else self.as_caller()

    def inside_agent(self, skills: Sequence[str] = (), *, shows_errors: bool = False) -> CallContext:
        """Return the context for an agent's run. Its calls may load the `skills` that the agent's file names, despite the API key's scopes.

        Argument values in the file of a surrounding workflow (`named_in_file`) are no longer exempt from the caller's scopes, because in
        the run a model chooses the arguments. With `shows_errors`, the model receives the texts of unexpected exceptions of Python
        functions.
        """
        named = frozenset((SKILL_ARGUMENT, skill) for skill in skills)
        came = self.facts.provenance
        return self._with_provenance(
            dataclasses.replace(came, agent_depth=came.agent_depth + 1, named_in_files=named, shows_errors=shows_errors)
        )

    def named_in_file(self, constants: frozenset[tuple[str, str]]) -> CallContext:
        """Return the context of a call with `constants` from a workflow's file. The scopes of the caller's API key do not apply to them.

        Each constant is a pair of argument name and value. With `runs-as: caller`, they apply.
        """
        came = self.facts.provenance
        if came.runs_as_caller:
            return self
        return self._with_provenance(dataclasses.replace(came, named_in_files=came.named_in_files | constants))

    def for_file(self, runs_as: Literal["file", "caller"]) -> CallContext:
        """Return the context for a run of an agent or workflow whose file has this `runs-as`.

        With `caller`, the calls of the run need the rights of the original caller in addition to being named in the file.
        """
        base = self.as_caller() if runs_as == "caller" else self
        came = base.facts.provenance
        if came.runs_as_caller == (runs_as == "caller"):
            return base
        named = frozenset[tuple[str, str]]() if runs_as == "caller" else came.named_in_files
        return base._with_provenance(dataclasses.replace(came, runs_as_caller=runs_as == "caller", named_in_files=named))

    def as_step(self, durable: DurablePort | None, key: str) -> CallContext:
        """Return the context of a call that is a step of a durable task. Servers receive the step's `key` as an idempotency key."""
        step = self._with_provenance(dataclasses.replace(self.facts.provenance, step_key=key)).with_durable(durable)
        return step.with_meta({**self.facts.meta, IDEMPOTENCY_KEY: key})

    def detached(self) -> CallContext:
        """Return a context for work that continues after this call.

        The context has the same principal, and the same policy checks for an agent's or workflow's own tools. It sends no progress and no
        requests for input.
        """
        came = dataclasses.replace(self.facts.provenance, step_key="")
        facts = CallFacts(principal=self.facts.principal, meta=self.facts.meta, provenance=came)
        return CallContext(facts, run=dataclasses.replace(self.run, invocation=None))

    def _from(self, principal: Principal, *, caller: Principal | None) -> CallContext:
        came = dataclasses.replace(self.facts.provenance, caller=caller)
        return self.with_facts(dataclasses.replace(self.facts, principal=principal, provenance=came))

    def _with_provenance(self, provenance: Provenance) -> CallContext:
        return self.with_facts(dataclasses.replace(self.facts, provenance=provenance))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send a progress notification to the caller; `progress` must increase from call to call."""
        await self.ports.caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None = None) -> None:
        """Send a log message to the caller. It is dropped if the caller did not request messages of this level."""
        await self.ports.caller.log(level, data, logger)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Async context manager for a wait for a person: it stops the deadlines of this call, and releases its concurrency slots."""
        async with contextlib.AsyncExitStack() as stack:
            for clock in self.limits.clocks:
                await stack.enter_async_context(clock.paused())
            if self.ports.presence is not None:
                await stack.enter_async_context(self.ports.presence.waiting())
            for wait in self.limits.waits:
                await stack.enter_async_context(wait())
            yield

    async def here(self) -> None:
        """Wait until the client has an open stream for messages. Use it inside `waiting`, which ends the call if the client is lost."""
        if self.ports.presence is not None:
            await self.ports.presence.here()

    def question(self, name: str) -> str:
        """Return the key for the next request for input with this name, to be passed to `ask`; empty outside a durable task."""
        return self.ports.durable.question(name) if self.ports.durable is not None else ""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input (elicitation, sampling or roots) to the caller, and return the answer, within `ask_timeout_seconds`.

        During the wait, the deadlines of this call stop and its concurrency slots are released. Inside a durable task, `key` (from
        `question`) identifies the request: in a resumed task, a request with the same key gets the stored answer, and a request without a
        key is resent.

        Raises:
            InputUnavailable: The caller cannot receive this request.
            InputExpired: The caller did not answer in time.
            AnswerRefused: The answer does not have the form that the request requires.
        """
        answer: JsonObject | None = None
        async with self.waiting():
            with anyio.move_on_after(self.facts.ask_timeout_seconds):
                answer = await self.ports.caller.ask(request, key)
        if answer is None:
            raise InputExpired(f"Nobody answered within {self.facts.ask_timeout_seconds:g} s, so the call was ended; {ASK_AGAIN}.")
        method = str(request.get("method"))
        if problem := answer_problem(method, answer):
            raise AnswerRefused(f"The client's answer to {method} is not valid: {problem}.")
        return answer
