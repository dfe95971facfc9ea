"""`Approvals`: asks a person to approve a tool call or a server's sampling request, and waits for the decision.

A caller that may approve its own call gets a form (elicitation) in its client; a client of MCP 2026 gets it as `input_required`. Every
other question becomes an entry of the pending list, a table in the database, which people answer with `moongate approvals` or the tool
`review_approvals`. Used by the gate for calls, and by `upstream` for sampling; `policy.approval_policy` decides which calls need an
approval, and from whom. While a call waits, it uses no working time and no concurrency slot. Any answer that is not a clear approval denies
the call.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, cast

import anyio

from gateway.auth.principal import is_operator
from gateway.config.policies import ApprovalBy
from gateway.errors import ASK_AGAIN, GatewayError, InputExpired, InputUnavailable, InputWithdrawn, PolicyDenied, ToolFailed
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.approval_policy import (
    RULE,
    Decision,
    approval_form,
    approvers,
    canonical_arguments,
    describe_call,
    describe_question,
    judge_sampling,
    may_approve_itself,
    may_stand,
    read_decision,
    waits_for,
)
from gateway.policy.decision import Reject
from gateway.policy.framing import shown
from gateway.storage.database_retry import until_stored
from gateway.storage.record_types import ApprovalRule, PendingQuestion, QuestionState
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import InputRequired, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import digest_of, input_requests_of

logger = logging.getLogger(__name__)

INPUT_REQUIRED = "input_required"
"""First word of the progress message that a client receives while its call waits for a person's approval."""

MAX_SHOWN_CHARS = 300
"""Maximum characters of the question in the progress message that a client receives while its call waits for a person's decision."""

POLL_SECONDS = 0.25
"""Interval in seconds at which a waiting call looks in the database for a person's decision, which another process may have stored."""

_DECISIONS: dict[QuestionState, Decision] = {
    "approved": "approve",
    "approved_always": "approve_always",
    "approved_always_with_arguments": "approve_always_with_arguments",
}
"""Maps the state of an answered question in the database to the person's decision. Any other state of an answered question is a denial."""

_DAY_SECONDS = 86_400.0

_NONCE_BYTES = 16

MARK_PREFIX = "approved:"
"""Prefix of an approval mark, a code that proves that a person approved a call.

If an approved call requests input, the mark precedes its `requestState`, so that the person is not asked again when the client retries the
call."""

_APPROVED_KEY = "approved_at_gate"
"""Key in the metadata of an agent's tool call (`FunctionInvocationContext.metadata`): true if a person approved the call."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a person: whether a tool call or a sampling request may run, or which values to enter in a workflow's form."""

    kind: Literal["call", "sampling", "question"]
    source: str
    name: str
    """Name of the tool at its source, MCP method of the sampling request, or name of the workflow."""
    shown: str
    """The text that the person reads."""
    arguments: str = ""
    """Digest of the call's arguments. If it is empty, the person can approve only this call, not all future calls of the tool as well."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The approval of one round of a call. A round is one request of the client with its result; the result may request input.

    The request state of a result that requests input gets `mark`, an authentication code. The client's next request of the call (the next
    round) presents the mark, so that the person is not asked again. Each mark is valid once.
    """

    mark: str
    presented: str = ""
    """The mark that the client presented in the request state of this round; empty in the first round of a call."""

    def opened(self, ctx: CallContext) -> CallContext:
        """Return the call's context without the approval mark in its request state, because the tool must not receive the mark."""
        state = ctx.facts.request_state
        if not self.presented or state is None:
            return ctx
        rest = state[len(self.presented) :]
        return ctx.with_state(rest[1:] if rest else None)

    def sealed(self, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome of the round. If the outcome requests input, `mark` is put in front of its request state."""
        if not isinstance(outcome, InputRequired):
            return outcome
        return dataclasses.replace(outcome, state=self.mark if outcome.state is None else f"{self.mark}:{outcome.state}")


def approved_in_run(ctx: CallContext) -> bool:
    """Whether a person already approved this call of an agent's run.

    Either of two approvals counts: the approval in the agent's conversation that a tool's `approval_mode` requires, or the approval at the
    gate that policy requires (`note_approved`).
    """
    metadata: JsonObject = ctx.run.invocation.metadata if ctx.run.invocation is not None else {}
    return metadata.get(_APPROVED_KEY) is True or getattr(metadata.get("approval_response"), "approved", None) is True


def note_approved(ctx: CallContext) -> None:
    """Record in the metadata of an agent's tool call that a person approved it as policy requires. `approved_in_run` reads this."""
    if ctx.run.invocation is not None:
        ctx.run.invocation.metadata[_APPROVED_KEY] = True


class Approvals:
    """Asks people to approve tool calls and sampling requests, and waits for their decisions, for any number of calls concurrently."""

    def __init__(
        self,
        records: Records | None,
        events: EventStream,
        *,
        standing_days: float = 0,
        default_by: Callable[[], ApprovalBy] = lambda: "caller",
        chosen_by: Callable[[], ApprovalBy | None] = lambda: None,
    ) -> None:
        """`records` stores questions that wait for a person's answer. Without it, calls that the caller cannot approve in a form are
        refused.

        A person may also approve a call and similar future calls ("always"); such a standing approval is valid for `standing_days`, and is
        not offered if this is 0. `default_by` returns who may approve if the policy of a source does not set it, and `chosen_by` the value
        of `server.approvalBy`, if it is set.
        """
        self._records = records
        self._default_by = default_by
        self._chosen_by = chosen_by
        self._spent: set[str] = set()
        self._standing_days = standing_days if records is not None else 0.0
        self._own_key = secrets.token_bytes(32)
        self._events = events

    def approvers_on_list(self, ctx: CallContext, by: ApprovalBy | None) -> str:
        """Return a text that says who must approve a call, if people answer on the list of pending questions (a database table).

        Return an empty text if the caller answers instead, in a form (elicitation) that the client shows. `by` is who may
        approve according to the policy of the tool's source.
        """
        by, caller = by or self._default_by(), ctx.facts.on_behalf_of
        is_own = may_approve_itself(by, caller.id, is_operator=is_operator(caller))
        return "" if is_own and ctx.facts.client.can("elicitation.form") else approvers(by)

    async def approve_call(
        self, source: str, name: str, arguments: JsonObject, ctx: CallContext, by: ApprovalBy | None = None
    ) -> Grant | Reject:
        """Ask a person to approve one round of a call (one request of the client). Return the approval, or a refusal.

        The person is not asked if an earlier round of the call was approved, or if a person approved this and similar calls before with the
        decision "always". `by` is who may approve according to the policy of the tool's source.

        Raises:
            InputUnavailable: The client would have to show a form, but cannot be asked.
        """
        by = by or self._default_by()
        try:
            mark = await self._mark(source, name, arguments, ctx)
            key = input_requests_of(ctx, f"{source}/{name}", arguments).question("approval")
            if (presented := await self._presented(source, name, arguments, ctx, key)) is not None:
                return Grant(mark, presented)
            digest = canonical_arguments(arguments) if self._standing_days and may_stand(source, name) else ""
            if digest and await self._has_standing_rule(source, name, digest, ctx.facts.principal.id, by):
                return Grant(mark)
            question = Question("call", source, name, describe_call(source, name, arguments), digest)
            refused = await self.ask(question, ctx, by, key)
        except InputUnavailable:
            raise
        except GatewayError as error:
            return Reject(RULE, f"A person must approve this call, and could not be asked: {error}")
        return refused or Grant(mark)

    async def approve_sampling(self, source: str, method: str, shown: str, ctx: CallContext, by: ApprovalBy | None) -> Reject | None:
        """Ask a person to approve a server's sampling request, described by the text `shown`. Return a refusal; `None` if approved.

        `by` is who may approve according to the policy of the server. Raises the errors of `ask`.
        """
        refused = judge_sampling(source, by or self._chosen_by(), has_forms=ctx.facts.client.can("elicitation.form"))
        return refused or await self.ask(Question("sampling", source, method, shown), ctx, by)

    async def ask(self, question: Question, ctx: CallContext, by: ApprovalBy | None = None, key: str = "") -> Reject | None:
        """Ask a person a question, and wait for the decision. Return a refusal; `None` if approved.

        `by` is who may decide according to the policy of the question's source. Inside a durable task (a background call that continues
        after a restart), `key` identifies the question (`CallContext.question`): when the task is resumed, an approval that was given under
        the same key is used, without asking again.

        Raises:
            PolicyDenied: Too many questions of this caller are pending, or there is no list of questions, and no form can be shown.
            InputUnavailable, InputWithdrawn: The client that must show the form cannot be asked, or its connection ended.
            StorageError: The question or the decision cannot be stored in the database.
        """
        durable, place = ctx.ports.durable if key else None, f"{key}/{digest_of(question.shown)}"
        if durable is not None and durable.kept(place) == "approved":
            return None
        by = by or self._default_by()
        caller = ctx.facts.on_behalf_of
        channel = "list" if self.approvers_on_list(ctx, by) else "client"
        outcome: Literal["approved", "denied", "expired", "unavailable"] = "unavailable"
        decided_by = ""
        started = time.perf_counter()
        try:
            if channel == "client":
                decision, decided_by = await self._by_form(question, ctx, key), caller.id
            else:
                decision, decided_by = await self._by_list(question, ctx, by, key)
            if decision in ("approve_always", "approve_always_with_arguments"):
                exactly = decision == "approve_always_with_arguments"
                await self._keep_rule(question, ctx, with_arguments=exactly, made_by=decided_by)
            outcome = "denied" if decision == "decline" else "expired" if decision == "expired" else "approved"
        finally:
            waited = round((time.perf_counter() - started) * 1000)
            fields: JsonObject = {"what": question.kind, "outcome": outcome, "channel": channel, "by": by, "milliseconds": waited}
            if decided_by:
                fields["decidedBy"] = decided_by
            self._events.emit(
                "approval.decided", source=question.source, name=question.name, principal=ctx.facts.principal.id, fields=fields
            )
        if outcome == "approved":
            if self._records is not None:
                await self._records.flush()
            if durable is not None:
                await durable.keep(place, outcome)
            return None
        if outcome == "expired":
            text = f"Nobody approved it within {ctx.facts.ask_timeout_seconds:g} s ({waits_for(by)} must); {ASK_AGAIN}."
            return Reject(f"{RULE}.expired", text)
        return Reject(RULE, "The person did not approve it. Do not try it again unless they ask for it.")

    async def _by_form(self, question: Question, ctx: CallContext, key: str) -> Decision | Literal["expired"]:
        standing = bool(question.arguments) and is_operator(ctx.facts.on_behalf_of)
        try:
            return read_decision(await ctx.ask(approval_form(question.shown, standing=standing), key), standing=standing)
        except ToolFailed:
            return "decline"
        except InputWithdrawn:
            raise
        except InputExpired:
            return "expired"

    async def _has_standing_rule(self, source: str, name: str, digest: str, principal: str, by: ApprovalBy) -> bool:
        """Whether a stored rule, from an earlier decision "always", approves this call of tool `name` without a question.

        `digest` is the digest of the arguments. If callers may not approve their own calls (`by`), a rule that the caller itself made does
        not count.
        """
        assert self._records is not None
        rule = await (await self._records.rules()).find(principal, source, name, digest)
        if rule is not None and by == "other-principal" and rule.made_by == principal:
            return False
        if rule is not None:
            fields: JsonObject = {"what": "call", "outcome": "approved", "channel": "rule", "rule": rule.id}
            self._events.emit("approval.decided", source=source, name=name, principal=principal, fields=fields)
            await self._events.stored()
        return rule is not None

    async def _keep_rule(self, question: Question, ctx: CallContext, *, with_arguments: bool, made_by: str) -> None:
        assert self._records is not None
        now = shared_now()
        rule = ApprovalRule(
            id=secrets.token_hex(5),
            principal=ctx.facts.principal.id,
            source=question.source,
            name=question.name,
            arguments=question.arguments if with_arguments else "",
            shown=question.shown,
            created_at=now,
            expires_at=now + self._standing_days * _DAY_SECONDS,
            made_by=made_by,
        )
        await (await self._records.rules()).add(rule)
        fields: JsonObject = {"id": rule.id, "arguments": "these" if with_arguments else "any", "madeBy": made_by}
        self._events.emit("approval.rule", source=rule.source, name=rule.name, principal=rule.principal, fields=fields)

    async def _by_list(self, question: Question, ctx: CallContext, by: ApprovalBy, key: str) -> tuple[Decision | Literal["expired"], str]:
        """Put a question on the list of pending questions (in the database), and wait until a person decides, or the question expires.

        Return the decision, and the id of the principal that decided; an empty id if nobody decided.
        """
        ended = await self._wait_on_list(question, ctx, key, hint="moongate approvals approve {id}` or `deny", by=by)
        decision = _DECISIONS.get(ended.state)
        if decision is not None:
            return (decision if question.arguments else "approve"), ended.decided_by
        return ("expired" if ended.state == "expired" else "decline"), ended.decided_by

    async def put_form(self, source: str, name: str, message: str, form: JsonObject, ctx: CallContext, key: str = "") -> JsonObject:
        """Put a workflow's form on the list of pending questions (in the database), and return the answer as an elicitation result.

        This is for calls whose client cannot show forms: people answer with `moongate approvals` or the tool `review_approvals`.
        `message` and `form` (a JSON Schema) are those of the elicitation. Inside a durable task (a background call that continues after a
        restart), `key` identifies the question.

        Raises:
            InputExpired: Nobody answered in time.
            PolicyDenied: Too many questions of this caller are pending, or there is no list of questions (`records` is `None`).
            StorageError: The question cannot be put on the list.
        """
        fields_wanted = cast("JsonMapping", form.get("properties") or {})
        question = Question("question", source, name, describe_question(name, message, fields_wanted))
        hint = "moongate approvals answer {id} FIELD=VALUE…` or `deny {id}"
        ended = await self._wait_on_list(question, ctx, key, hint=hint, by="caller", form=form)
        if ended.state == "expired":
            raise InputExpired(f"Nobody answered within {ctx.facts.ask_timeout_seconds:g} s, so {name!r} was ended; {ASK_AGAIN}.")
        fields: JsonObject = {"what": "question", "outcome": ended.state, "channel": "list"}
        self._events.emit("approval.decided", source=source, name=name, principal=ctx.facts.principal.id, fields=fields)
        await self._events.stored()
        return {"action": "accept", "content": ended.answer or {}} if ended.state == "answered" else {"action": "decline"}

    async def _wait_on_list(
        self, question: Question, ctx: CallContext, key: str, *, hint: str, by: ApprovalBy, form: JsonObject | None = None
    ) -> PendingQuestion:
        """Put a question on the list of pending questions (in the database), wait until a person decides or it expires, and return it.

        `hint` is the command that answers, with `{id}` in place of the question's id. A durable task (a background call) that is resumed
        after a restart puts no second question on the list: it waits for its earlier question, or uses the decision on it. While the
        database is not available, the wait continues until the question expires.
        """
        if self._records is None:
            text = "The connected client cannot show forms; use one with elicitation, or a gateway that `moongate run` started."
            raise PolicyDenied(text, rule=RULE, subject=question.source)
        asks = await self._records.questions()
        durable, place = ctx.ports.durable if key else None, f"{key}/{digest_of(question.shown)}/listed"
        kept = cast("JsonObject", durable.kept(place) or {}) if durable is not None else {}
        if "taken" in kept:
            taken = _entry(question, ctx, by, form)
            return dataclasses.replace(taken, state=kept["taken"], answer=kept["answer"], decided_by=kept["decidedBy"])
        entry = await asks.get(kept["id"]) if kept else None
        if entry is None or entry.state in ("withdrawn", "expired", "delivered"):
            entry = _entry(question, ctx, by, form)
            if durable is not None:  # before the entry is stored, because a person may decide it while this process is down
                await durable.keep(place, {"id": entry.id})
            await asks.add(entry)
        fields: JsonObject = {"id": entry.id, "by": entry.by}
        self._events.emit("approval.waiting", source=question.source, name=question.name, principal=entry.principal, fields=fields)
        command = hint.format(id=entry.id)
        logger.warning("approval waiting source=%s name=%s command=%r", question.source, question.name, command)
        text = _waiting_text(question, ctx, by, command)
        message = f"{INPUT_REQUIRED}: {shown(question.shown, MAX_SHOWN_CHARS)} {text}"
        try:
            with ctx.ports.durable.shows(message) if ctx.ports.durable is not None else nullcontext():
                async with ctx.waiting():
                    await ctx.progress(0.0, None, message)
                    await ctx.log("warning", text, "moongate")
                    ended = await until_stored(lambda: asks.get(entry.id), deadline=entry.expires_at)
                    while ended is not None and ended.state == "open":
                        await anyio.sleep(POLL_SECONDS)
                        ended = await until_stored(lambda: asks.get(entry.id), deadline=entry.expires_at)
                    await ctx.here()
            if ended is None:
                return dataclasses.replace(entry, state="withdrawn")
            decided = ended.state
            is_decided = decided == "answered" or decided in _DECISIONS
            if is_decided and not await until_stored(lambda: asks.move(entry.id, decided, "delivered"), deadline=entry.expires_at):
                return dataclasses.replace(ended, state="expired")
            await ctx.progress(0.0, None, f"{question.name!r} of {question.source!r} was answered.")
            if durable is not None:
                await durable.keep(place, {"taken": ended.state, "answer": ended.answer, "decidedBy": ended.decided_by})
            return ended
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    if durable is None or not await durable.will_resume():
                        await asks.move(entry.id, "open", "withdrawn")
                except GatewayError as error:
                    logger.info("pending question not withdrawn id=%s error=%s", entry.id, error)

    async def _mark(self, source: str, name: str, arguments: JsonObject, ctx: CallContext, nonce: str = "") -> str:
        """Return a new approval mark: an authentication code (HMAC-SHA-256) with which this caller can retry this call once.

        The retried call needs no approval. With `nonce`, return the mark with this nonce, to compare it with a presented mark.
        """
        nonce = nonce or secrets.token_hex(_NONCE_BYTES)
        said = json.dumps([nonce, source, name, arguments, ctx.facts.principal.id], sort_keys=True).encode()
        key = self._own_key if self._records is None else await self._records.key("approvals")
        return f"{MARK_PREFIX}{nonce}{hmac.digest(key, said, 'sha256').hex()}"

    async def _presented(self, source: str, name: str, arguments: JsonObject, ctx: CallContext, key: str) -> str | None:
        """Return the approval mark in the request state of a call if it is valid, and record it as used; `None` without a valid mark.

        An approval mark is a code that proves that a person approved the call in an earlier round. Each mark is valid once, because a
        client could send a request state again, and run the call any number of times with one approval. Only a durable task that is
        resumed may use its own mark again; `key` identifies the question in the task.
        """
        state = ctx.facts.request_state or ""
        if not state.startswith(MARK_PREFIX):
            return None
        nonce = state[len(MARK_PREFIX) :][: 2 * _NONCE_BYTES]
        mark = await self._mark(source, name, arguments, ctx, nonce)
        if len(nonce) != 2 * _NONCE_BYTES or not hmac.compare_digest(state[: len(mark)].encode(), mark.encode()):
            return None
        durable = ctx.ports.durable if key else None
        if durable is not None and durable.kept(f"{key}/mark") == nonce:
            return mark
        if not await self._spend(nonce, ctx.facts.ask_timeout_seconds):
            return None
        if durable is not None:
            await durable.keep(f"{key}/mark", nonce)
        return mark

    async def _spend(self, nonce: str, seconds: float) -> bool:
        if self._records is not None:
            return await (await self._records.questions()).spend(nonce, seconds)
        is_new = nonce not in self._spent
        self._spent.add(nonce)
        return is_new


def _waiting_text(question: Question, ctx: CallContext, by: ApprovalBy, command: str) -> str:
    """Return a text about a call that waits for a decision: its tool, how long it waits, who must decide, and the command that answers."""
    waits = f"{question.name!r} of {question.source!r} waits up to {_span(ctx.facts.ask_timeout_seconds)} for a decision"
    return f"{waits}: {waits_for(by)} must decide (`{command}`)."


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _entry(question: Question, ctx: CallContext, by: ApprovalBy, form: JsonObject | None) -> PendingQuestion:
    """Return the database record of a new question that a person must answer. `form` is the JSON Schema if it is a workflow's form."""
    now = shared_now()
    return PendingQuestion(
        id=secrets.token_hex(5),
        kind=question.kind,
        source=question.source,
        name=question.name,
        principal=ctx.facts.principal.id,
        shown=question.shown,
        state="open",
        created_at=now,
        expires_at=now + ctx.facts.ask_timeout_seconds,
        form=form,
        by=by,
    )
