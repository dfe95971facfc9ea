"""`ReadGate`: applies policy to reads of the resources, prompts, completions and skills of one source. Used by the catalog.

It implements the steps of `gate.pipeline` for reads, which need neither a check of arguments nor an approval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, NotFound, PolicyDenied, UpstreamTimeout
from gateway.gate.pipeline import GatedCall, SourceGate, pass_gate
from gateway.gate.results import ResultOrigin, ResultRules, judge_large, judge_small
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import is_hidden
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import HiddenText
from gateway.policy.result_limits import judge_input_request
from gateway.policy.scopes import RULE as SCOPES
from gateway.policy.scopes import ScopeKind
from gateway.tools.base import Finished, InputRequired, Received
from gateway.tools.context import CallContext

ReadWork = Callable[[CallContext], Awaitable[Finished | InputRequired]]
"""A function that reads a resource, prompt, completion or skills from a source. URIs in its result are those that clients use (exposed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Facts about a client's request to read a resource, prompt, completion or skills. Policy judges the request by these facts."""

    method: str
    """MCP method of the request."""
    name: str
    """URI of the resource or name of the prompt, as clients see it. For a listing of skills: the id of the source."""
    subject: tuple[ScopeKind, str] | None = None
    """Kind, and name or URI at the source, of what is read: the rights of the caller must allow it. `None` if the rights filter the
    result instead of forbidding the read."""
    kind: str = ""
    """`NotFound.kind` for an item that does not exist for the caller; empty for `resource` or `prompt`."""
    shown: str = ""
    """Name or URI in the client's request, if it differs from `name`."""
    hidden_text: HiddenText | None = None
    """What to do with hidden (invisible) characters in the result; `None` applies the source's policy. Set for files of skills, from which
    nothing may be removed, because clients compare them with digests."""


class ReadGate:
    """Applies policy to the reads of the resources, prompts, completions and skills of one source.

    It checks scopes, limits concurrency and time, judges results, and emits audit events.
    """

    def __init__(self, gate: SourceGate, policy: SourcePolicy, *, is_local: bool = False) -> None:
        """`gate` has the limits that the source's reads share with its tool calls. `policy` is the policy of the source.

        Results of local sources (`is_local`) are not searched for hidden characters.
        """
        self.gate = gate
        self.timeout_seconds = policy.timeout_seconds
        hidden_text: HiddenText = "allow" if is_local else policy.hidden_text
        self.rules = ResultRules(hidden_text, policy.max_result_bytes, policy.max_kept_bytes)

    async def read(self, read: Read, ctx: CallContext, work: ReadWork) -> Finished | InputRequired:
        """Run `work`, which reads from the source, with all checks of policy. Return its result, or its requests for input.

        Raises:
            UpstreamTimeout: The read took longer than `timeoutSeconds`.
            NotFound: The item does not exist for the caller, by its roles or Cedar policies.
            PolicyDenied: The caller has no scope for the read; or the result is larger than `maxKeptBytes`, cannot be stored, or
                has hidden characters that are refused.
        """
        return await pass_gate(ReadCall(self, read, ctx, work))

    async def fetch(self, read: Read, ctx: CallContext, work: Callable[[CallContext], Awaitable[JsonObject]]) -> JsonObject:
        """Run `work`, which reads from the source and never requests input, with all checks of policy. Return the MCP result.

        Raises the exceptions of `read`.
        """

        async def finished(inner: CallContext) -> Finished:
            return Finished(await work(inner))

        outcome = await self.read(read, ctx, finished)
        assert isinstance(outcome, Finished)
        return outcome.result


class ReadCall(GatedCall[Finished | InputRequired]):
    """One request that reads a resource, prompt, completion or skills of a source, with the steps that `gate.pipeline` executes for it.

    The steps are: authorization, the read itself, checks of the result, and an audit event.
    """

    __slots__ = ("_gate", "_read", "_work")

    def __init__(self, gate: ReadGate, read: Read, ctx: CallContext, work: ReadWork) -> None:
        super().__init__(gate.gate, read.name, ctx, gate.timeout_seconds)
        self._gate = gate
        self._read = read
        self._work = work

    def authorize(self) -> Reject | None:
        """Return a refusal if the rights of the caller do not allow the read; `None` if they do."""
        rights, subject = self.ctx.facts.principal.rights, self._read.subject
        if rights is None:
            return None
        if subject is not None and isinstance(verdict := rights.decide(subject[0], self.gate.source, subject[1]).verdict, Reject):
            return verdict
        self.ctx = self.ctx.authorized()
        return None

    async def run(self, ctx: CallContext) -> Finished | InputRequired:
        """Read the resource, prompt, completion or skills from the source, and record for the audit event how the read ended."""
        try:
            outcome = await self._work(ctx)
        except Exception:
            self.outcome = "error"
            raise
        self.outcome = "complete" if isinstance(outcome, Finished) else "input_required"
        if isinstance(outcome, Finished) and isinstance(outcome.result, Received):
            self.size = sum(map(len, outcome.result.encoded))
        return outcome

    async def judge_outcome(self, outcome: Finished | InputRequired) -> Finished | InputRequired:
        """Check the result of the read: remove or refuse hidden characters, then shorten or refuse a result over the size limit.

        A large result is checked in a worker thread. Requests for input over the size limit are refused.
        """
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
        """Raise `PolicyDenied` with the reason of a refusal, or `NotFound` for a hidden item, and record it for the audit event."""
        self.outcome, self.rule = "refused", verdict.rule
        read = self._read
        if is_hidden(verdict):
            kind = read.kind or ("prompt" if read.subject is not None and read.subject[0] == "prompts" else "resource")
            raise NotFound(kind, read.shown or read.name)
        if verdict.rule == SCOPES and read.subject is not None:
            raise PolicyDenied(verdict.reason, rule=SCOPES, subject=read.subject[1])
        text = f"{read.method} of {read.name!r} was refused by {verdict.rule}: {verdict.reason}"
        raise PolicyDenied(text, rule=verdict.rule, subject=read.name)

    def fail(self, error: GatewayError) -> Finished | InputRequired:
        """Record `error` for the audit event, remove secrets from its text, and raise it."""
        self.outcome = type(error).__name__
        if isinstance(error, PolicyDenied):
            self.outcome, self.rule = "refused", error.rule
        self.mask(error)
        raise error

    def time_out(self) -> Finished | InputRequired:
        """Raise `UpstreamTimeout`, because the read took longer than `timeoutSeconds`."""
        self.outcome = "timeout"
        read, fix = self._read, f"try again, or have the operator raise `timeoutSeconds` of {self.gate.source!r}"
        raise UpstreamTimeout(f"{read.method} of {read.name!r} took longer than {self.seconds:g} s; {fix}.", server=self.gate.source)

    def end(self) -> None:
        """Emit the event that the read ended: `read.refused` if policy refused it, else `read.finished`."""
        fields: JsonObject = {"method": self._read.method, "outcome": self.outcome, "milliseconds": self.milliseconds}
        if self.rule:
            fields["rule"] = self.rule
        self.report("read.refused" if self.outcome == "refused" else "read.finished", fields)
