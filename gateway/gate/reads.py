"""`ReadGate`: the gate of the resources, prompts, completions and skills of one source.

It binds the steps of `gate.pipeline` to reads. Reads have no arguments to judge and need no approval. Used by the catalog.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, PolicyDenied, UpstreamTimeout
from gateway.gate.pipeline import GatedCall, SourceGate, pass_gate
from gateway.gate.results import ResultOrigin, ResultRules, judge_large, judge_small
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import HiddenText
from gateway.policy.result_limits import judge_input_request
from gateway.policy.scopes import RULE as SCOPES
from gateway.policy.scopes import ScopeKind, judge_scope
from gateway.tools.base import Finished, InputRequired, Received
from gateway.tools.context import CallContext

ReadWork = Callable[[CallContext], Awaitable[Finished | InputRequired]]
"""Reads from the source, and returns the result with the URIs that clients use (exposed URIs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A request of a client to read a resource, a prompt, a completion or skills."""

    method: str
    """MCP method of the request."""
    name: str
    """Exposed URI of the resource, name of the prompt, or for a listing of skills the id of the source."""
    subject: tuple[ScopeKind, str] | None = None
    """Kind and native name or URI that the scopes of the caller's key must allow. `None` if the scopes filter the answer instead."""
    hidden_text: HiddenText | None = None
    """Replaces the source's rule for hidden text. Clients compare files of skills with digests, so nothing is removed from those."""


class ReadGate:
    """Takes the reads of one source through the gate."""

    def __init__(self, gate: SourceGate, policy: SourcePolicy, *, is_local: bool = False) -> None:
        """`gate` is shared with the source's tools. Texts of local sources (`is_local`) are not searched for hidden characters."""
        self.gate = gate
        self.timeout_seconds = policy.timeout_seconds
        hidden_text: HiddenText = "allow" if is_local else policy.hidden_text
        self.rules = ResultRules(hidden_text, policy.max_result_bytes, policy.max_kept_bytes)

    async def read(self, read: Read, ctx: CallContext, work: ReadWork) -> Finished | InputRequired:
        """Take a read through the gate.

        Raises:
            UpstreamTimeout: The read took longer than `timeoutSeconds`.
            PolicyDenied: The caller's key has no scope for the read; or the result is larger than `maxKeptBytes`, cannot be kept, or
                has hidden text that is refused.
        """
        return await pass_gate(ReadCall(self, read, ctx, work))

    async def fetch(self, read: Read, ctx: CallContext, work: Callable[[CallContext], Awaitable[JsonObject]]) -> JsonObject:
        """Take a read through the gate like `read`, for work that never requests input. Return the MCP result."""

        async def finished(inner: CallContext) -> Finished:
            return Finished(await work(inner))

        outcome = await self.read(read, ctx, finished)
        assert isinstance(outcome, Finished)
        return outcome.result


class ReadCall(GatedCall[Finished | InputRequired]):
    """One read on its way through the gate."""

    __slots__ = ("_gate", "_read", "_work")

    def __init__(self, gate: ReadGate, read: Read, ctx: CallContext, work: ReadWork) -> None:
        super().__init__(gate.gate, read.name, ctx, gate.timeout_seconds)
        self._gate = gate
        self._read = read
        self._work = work

    def begin(self) -> None:
        """Do nothing: reads emit an event only when they end."""

    def authorize(self) -> Reject | None:
        """Judge whether the scopes of the caller's key allow to read the resource or prompt."""
        scopes, subject = self.ctx.facts.principal.scopes, self._read.subject
        if scopes is None:
            return None
        if subject is not None and isinstance(verdict := judge_scope(scopes, subject[0], self.gate.source, subject[1]), Reject):
            return verdict
        self.ctx = self.ctx.let_in()
        return None

    async def run(self, ctx: CallContext) -> Finished | InputRequired:
        """Read from the source."""
        try:
            outcome = await self._work(ctx)
        except Exception:
            self.outcome = "error"
            raise
        self.outcome = "complete" if isinstance(outcome, Finished) else "input_required"
        return outcome

    def is_plain(self, outcome: Finished | InputRequired) -> bool:
        """Return false: every result of a read is judged by `judge_outcome`."""
        return False

    async def judge_outcome(self, outcome: Finished | InputRequired) -> Finished | InputRequired:
        """Remove or refuse hidden text, then shorten or refuse what is too large. A large result is judged in a worker thread."""
        read, store = self._read, self.gate.services.store
        rules = self._gate.rules
        if read.hidden_text is not None:
            rules = dataclasses.replace(rules, hidden_text=read.hidden_text)
        if isinstance(outcome, InputRequired):
            verdict = judge_input_request(dict(outcome.requests), rules.max_result_bytes)
            return self.refuse(verdict) if isinstance(verdict, Reject) else outcome
        origin = ResultOrigin(self.ctx.facts.principal.id, read.name, form="messages" if read.method == "prompts/get" else "contents")
        is_large = isinstance(outcome.result, Received) and outcome.result.claim is not None
        judged = await (judge_large if is_large else judge_small)(outcome.result, rules, store, origin)
        if judged is None:
            return outcome
        return self.refuse(Reject(judged.rule, judged.reason)) if judged.rule else Finished(judged.result)

    def refuse(self, verdict: Reject) -> Finished | InputRequired:
        """Raise `PolicyDenied` with the reason of the refusal."""
        self.outcome, self.rule = "refused", verdict.rule
        read = self._read
        if verdict.rule == SCOPES and read.subject is not None:
            raise PolicyDenied(verdict.reason, rule=SCOPES, subject=read.subject[1])
        text = f"{read.method} of {read.name!r} was refused by {verdict.rule}: {verdict.reason}"
        raise PolicyDenied(text, rule=verdict.rule, subject=read.name)

    def fail(self, error: GatewayError) -> Finished | InputRequired:
        """Raise `error`, after secrets were removed from its text."""
        self.outcome = type(error).__name__
        if isinstance(error, PolicyDenied):
            self.outcome, self.rule = "refused", error.rule
        self.mask(error)
        raise error

    def time_out(self) -> Finished | InputRequired:
        """Raise `UpstreamTimeout`, because the read took longer than `timeoutSeconds`."""
        self.outcome = "timeout"
        read = self._read
        raise UpstreamTimeout(f"{read.method} of {read.name!r} took longer than {self.seconds:g} s.", server=self.gate.source)

    def end(self) -> None:
        """Emit `read.finished`, or `read.refused` if policy refused it."""
        fields: JsonObject = {"method": self._read.method, "outcome": self.outcome, "milliseconds": self.milliseconds}
        if self.rule:
            fields["rule"] = self.rule
        kind = "read.refused" if self.outcome == "refused" else "read.finished"
        self.gate.services.events.emit(kind, source=self.gate.source, name=self.name, principal=self.ctx.facts.principal.id, fields=fields)
