"""`pass_gate`: executes the steps of the gate, which are the checks that every tool call and every read passes, in order.

No other code runs a tool or reads from a source. `gate.tools` implements the steps for tools; `gate.reads` for resources, prompts,
completion and skills; `gate.own_tools` for the tools and functions that agents and workflows define themselves. Two limits are checked
earlier by other modules: the requests that a caller may have in progress (`server.usage`), and the tasks that may start per minute
(`policy.task_scheduling`).

Decided: the gate has no step for rates. Because: both limits protect the gateway from its clients, and hold before it parses a request or
stores a task; the calls that an agent makes for one request count as this request. Revisit when: roles set a rate per tool.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from gateway.auth.principal import Principal
from gateway.errors import GatewayError, mask_secrets
from gateway.gate.approvals import Approvals
from gateway.gate.call_journal import CallJournal
from gateway.gate.concurrency import ActiveCalls, Limiter, run_within
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.storage.result_store import ResultStore
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.context import CallContext

OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class GateServices:
    """The objects that the checks of all tool calls and reads of a gateway share."""

    events: EventStream
    approvals: Approvals | None = None
    """Asks people for approvals. Without it, calls that need an approval are refused."""
    store: ResultStore | None = None
    """Stores the results over the size limit, of which clients receive a shortened copy. Without a store, such results are refused."""

    mask: Callable[[str], str] | None = None
    """Function that removes secrets from the text of an error."""
    journal: CallJournal | None = None
    """Records every call and read for the audit log and the metrics; `None` if nothing records them."""


@dataclass(frozen=True, slots=True)
class SourceGate:
    """The objects that the checks of all tool calls and reads of one source of tools share."""

    source: str
    """Id of the source."""
    services: GateServices
    limiter: Limiter | None = None
    """Limits how many calls and reads of the source run at once; `None` without a limit."""
    active: ActiveCalls | None = None
    """Counts the running calls and reads of the source, so that the source can be closed after all have ended."""


class GatedCall(ABC, Generic[OutcomeT]):
    """One tool call, or one read of a resource, prompt, completion or skills, with the steps that `pass_gate` executes for it.

    It also records how the call ended, for the event that is emitted then. Subclasses implement the steps for tools and for reads.
    """

    __slots__ = ("ctx", "gate", "name", "needs_approval", "outcome", "rule", "seconds", "size", "started")

    def __init__(self, gate: SourceGate, name: str, ctx: CallContext, seconds: float) -> None:
        """`gate` has the limits of the call's source. `seconds` limits how long `run` may take.

        The time in which the call waits for a concurrency slot, or for a person's answer, does not count for `seconds`.

        `name` is the name of the tool or prompt, or the URI of the resource, as clients see it.
        """
        self.gate = gate
        self.name = name
        """Name of the tool or prompt, or URI of the resource, as clients see it; the id of the source for a listing of skills."""
        self.ctx = ctx
        self.outcome = "cancelled"
        """How the call ended, for the event that is emitted then: `complete`, `refused`, `timeout`, …"""
        self.rule = ""
        """Id of the policy rule that refused the call; empty if the call was not refused."""
        self.seconds = seconds
        self.needs_approval = False
        """Whether a person must approve the call."""
        self.size: int | None = None
        """Bytes of the result as JSON; `None` if unknown."""
        self.started = time.perf_counter()

    def begin(self) -> None:  # reads and requests about tasks keep the empty method
        """Emit the event that a tool call begins, for the console and the audit log. The subclass for tool calls implements this.

        This default implementation emits nothing, because no such event exists for reads (of resources, prompts, …) and task requests.
        """

    @abstractmethod
    def authorize(self) -> Reject | None:
        """Return a refusal if the scopes of the caller's API key do not allow the call; else `None`.

        The scopes are then removed from `ctx`, because they do not limit further calls that the tool makes.
        """

    def judge_arguments(self) -> Reject | None:
        """Check the arguments of the call, and remove those that the tool may not get. Return a refusal; `None` if the call is allowed."""
        return None

    async def approve(self) -> Reject | None:
        """Ask a person to approve the call, and wait for the decision. Return a refusal; `None` if approved."""
        return None

    @abstractmethod
    def run(self, ctx: CallContext) -> Awaitable[OutcomeT]:
        """Call the tool, or read from the source. `ctx` contains the deadline and the concurrency slot of the call."""

    def is_plain(self, outcome: OutcomeT) -> bool:
        """Whether `pass_gate` may skip `judge_outcome`, because `judge_outcome` would return the outcome unchanged. False by default."""
        return False

    @abstractmethod
    async def judge_outcome(self, outcome: OutcomeT) -> OutcomeT:
        """Check the outcome of the call. Return it without hidden characters and within the size limit, or return a refusal."""

    @abstractmethod
    def refuse(self, verdict: Reject) -> OutcomeT:
        """Handle a refusal of the call by policy, and record it for the event that is emitted when the call ends.

        A tool call returns an outcome that reports the refusal to the model. A read, or a request about a task, raises `PolicyDenied`.
        """

    @abstractmethod
    def fail(self, error: GatewayError) -> OutcomeT:
        """Handle `error`, which `run` raised, and record it for the event that is emitted when the call ends.

        Raises `error` again, except in one case: if a tool call failed because a person did not answer a question in time (`InputExpired`),
        it returns an outcome that reports this to the model.
        """

    @abstractmethod
    def time_out(self) -> OutcomeT:
        """Handle a timeout of `run`, and record it for the event that is emitted when the call ends.

        A tool call returns an outcome that reports the timeout to the model. A read, or a request about a task, raises an exception.
        """

    def complete(self, outcome: OutcomeT) -> OutcomeT:
        """Return the outcome with additions of the gateway, such as the names of removed arguments."""
        return outcome

    @abstractmethod
    def end(self) -> None:
        """Emit the event (for the console and the audit log) that the call ended, with its outcome."""

    @property
    def is_noted(self) -> bool:
        """Whether the call is recorded for the audit log or metrics when it ends."""
        journal = self.gate.services.journal
        return journal is not None and (journal.notes_local or self.ctx.facts.principal.kind != "local")

    def report(self, kind: str, fields: JsonObject) -> None:
        """Emit the event `kind`, by which the call ended, and record the call for the audit log and metrics."""
        services, source = self.gate.services, self.gate.source
        if (journal := services.journal) is not None:
            if self.is_noted:
                journal.note(kind, source, self.name, self.ctx, fields, self.size)
            if self.rule:
                fields = {**fields, **journal.describe(self.ctx)}
        services.events.emit(kind, source=source, name=self.name, principal=self.ctx.facts.principal.id, fields=fields)

    def report_change(self) -> None:
        """Emit the event `call.audited`, which the audit log always records, because the call may have changed something."""
        services, fields = self.gate.services, cast("JsonObject", {"outcome": self.outcome})
        if services.journal is not None:
            fields |= services.journal.describe(self.ctx, self.size)
        principal = self.ctx.facts.principal.id
        services.events.emit("call.audited", source=self.gate.source, name=self.name, principal=principal, fields=fields)

    def mask(self, error: Exception) -> None:
        """Remove secrets from the text of `error`, in place, if it is a `GatewayError`. Other exceptions are not changed."""
        if self.gate.services.mask is not None and isinstance(error, GatewayError):
            mask_secrets(error, self.gate.services.mask)

    @property
    def milliseconds(self) -> float:
        """Milliseconds since this object was created, which is when the call arrived, with three decimals."""
        return int((time.perf_counter() - self.started) * 1e6) / 1000


async def audit_refusal(gate: SourceGate, name: str, principal: Principal, rule: str, *, is_read: bool = False) -> None:
    """Record in the audit log that a call or read was refused before it reached `pass_gate`, by `call.refused` or `read.refused`."""
    fields: JsonObject = {"outcome": "refused", "rule": rule}
    if principal.owner != principal.id:
        fields["owner"] = principal.owner
    kind = "read.refused" if is_read else "call.refused"
    gate.services.events.emit(kind, source=gate.source, name=name, principal=principal.id, fields=fields)
    await gate.services.events.stored()


async def pass_gate(call: GatedCall[OutcomeT]) -> OutcomeT:
    """Execute a tool call or read with all its checks, and return its outcome.

    The steps are: scopes, arguments, approval, concurrency and deadline, the work itself (`call.run`), and the checks of the outcome. A
    refused call never reaches `call.run`. The end event is emitted however the call ends: with a result, a refusal, an error, at its
    deadline, or cancelled. A refusal is stored in the audit log before it is returned (`EventStream.stored`).
    """
    active = call.gate.active
    call.begin()
    if active is not None:
        active.begin()
    try:
        refused = call.authorize() or call.judge_arguments()
        if refused is None and call.needs_approval:
            refused = await call.approve()
        if refused is not None:
            return call.refuse(refused)
        try:
            outcome = await run_within(call.gate.limiter, call.seconds, call.ctx, call.run)  # concurrency, deadline, run
        except GatewayError as error:
            outcome = call.fail(error)
        if outcome is None:
            outcome = call.time_out()
        if not call.is_plain(outcome):
            outcome = await call.judge_outcome(outcome)  # content, size
        return call.complete(outcome)
    finally:
        if active is not None:
            active.end()
        call.end()
        if call.rule:
            await call.gate.services.events.stored()
