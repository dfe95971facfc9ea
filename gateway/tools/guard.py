"""`GuardedTool`: the one gate around any tool.

The catalog wraps every tool it hands out in this class, so the MCP server, agents, workflows, tasks, the command
line and the console share one path: event → arguments → concurrency → deadline → call → result size → event.
It knows nothing of MCP's wire; `server.calls` makes wire results. Resources and prompts pass `catalog.reads`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import cast

import anyio
import anyio.to_thread

from gateway.auth.principal import Principal
from gateway.config.policies import ApprovalBy, SourcePolicy, ToolOverride
from gateway.errors import (
    CODE_ERRORS,
    AskExpired,
    AskUnavailable,
    GatewayError,
    NotFound,
    PolicyDenied,
    StorageUnusable,
    ToolFailed,
    UpstreamRefused,
    mask_secrets,
    masked,
    only_cause,
    text_for_caller,
    without_exit,
)
from gateway.json_types import JsonObject
from gateway.policy.approvals import RULE as APPROVAL_RULE
from gateway.policy.approvals import judge_approval
from gateway.policy.arguments import ArgumentPolicy
from gateway.policy.decision import Pass, Reject, Rewrite, Verdict
from gateway.policy.hidden_text import HiddenText, judge_result_text, may_hide, strip_value
from gateway.policy.limits import MOST_COUNTED, Shorten, judge_asks, judge_result
from gateway.policy.own_sources import may_change_something
from gateway.policy.repeats import is_repeatable
from gateway.policy.scopes import OWN_SOURCE, judge_scope
from gateway.policy.shaping import FRAMEWORK_NAMES, NO_NAMES
from gateway.telemetry.events import EventStream
from gateway.tools.approvals import Approvals, Grant
from gateway.tools.base import (
    Complete,
    DescribingTool,
    Held,
    InputRequired,
    Releasable,
    TaskMethod,
    TaskStarted,
    TaskTool,
    Tool,
    ToolDefinition,
    ToolOutcome,
)
from gateway.tools.call_record import RULE_META_KEY, CallRecord, noted_names, refusal, with_dropped
from gateway.tools.context import CallContext
from gateway.tools.published import clean_definition, shape_definition
from gateway.tools.recorded import record_call
from gateway.tools.results import ResultKeeper, Rules, Source, judge_whole, shorten
from gateway.tools.slot import Limiter, Usage, run_within
from gateway.tools.waits import own_task

logger = logging.getLogger(__name__)

DEFAULT_TASK_SECONDS = 3600.0
"""Working time of a remote server's call that runs as a task where the policy names none: one that hangs must not keep its
slot for ever. Waiting for a person and following a server's own task do not count."""


@dataclass(frozen=True, slots=True)
class ToolGate:
    """The compiled rules of one tool."""

    arguments: ArgumentPolicy
    published: ToolDefinition
    """The definition as clients see it, under its native name."""
    timeout_seconds: float
    """Working time of one call; waiting for a slot or for a person does not count."""
    max_task_seconds: float
    """The same for a call that runs as a task; infinite for our own sources where nobody set a limit."""
    max_result_bytes: int
    max_kept_bytes: int
    hidden_text: HiddenText
    mask: Callable[[str], str] | None = None
    """Takes secrets out of what errors say."""
    keeper: ResultKeeper | None = None
    """Keeps the whole of results over `max_result_bytes`; without one they are refused."""
    needs_approval: bool = False
    """A person decides on each call."""
    approval_by: ApprovalBy | None = None
    """Who that may be; `None` for the gateway's default."""
    queues: tuple[JsonObject, ...] = ()
    """What its tasks wait for their turn by, beside their caller's: `of` (`source` or `tool`), `running`, `perMinute`."""
    resumes: bool = True
    """Whether its tasks are taken up again after their process died."""
    is_local: bool = False
    """The tool is ours, not a remote server's."""
    is_repeatable: bool = False
    """A second call changes nothing more, as far as the operator is to be believed (`policy.repeats`)."""
    is_own: bool = False
    """An agent or workflow brings the tool along itself (`own_tools`): its exceptions reach the run unchanged, and a durable task does
    not record its call as a step."""
    is_audited: bool = False
    """Each finished call emits `call.audited`, because it may have changed something."""

    @classmethod
    def build(
        cls,
        definition: ToolDefinition,
        source_policy: SourcePolicy,
        *,
        is_local: bool = False,
        is_own: bool = False,
        keeper: ResultKeeper | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> ToolGate:
        """Compile a source's rules for the tool with this (native) definition. Never raises on what a peer published.

        What is ours (`is_local`) may name its arguments as it likes, and its texts are not searched. The arguments of a tool that an
        agent or workflow brings along (`is_own`, which implies `is_local`) are judged only if a rule of the operator names them.
        """
        is_local = is_local or is_own
        override = source_policy.overrides.get(definition.name)
        hidden_text: HiddenText = "allow" if is_local else source_policy.hidden_text
        shown = definition if hidden_text == "allow" else clean_definition(definition)
        arguments = ArgumentPolicy.build(
            definition.name,
            shown.input_schema,
            source_policy.additional_arguments,
            source_policy.arguments,
            denied=NO_NAMES if is_local else FRAMEWORK_NAMES,
            override=override,
            only_with_rules=is_own,
        )
        published = shape_definition(shown, override, arguments.published_schema)
        if published.task == "never" and any(fnmatchcase(definition.name, glob) for glob in source_policy.tasks.promote):
            published = dataclasses.replace(published, task="optional", task_by="gateway")
        limits = source_policy.max_result_bytes, source_policy.max_kept_bytes
        needs_approval = judge_approval(definition.name, source_policy.approval, by_author=definition.needs_approval)
        if needs_approval:
            published = dataclasses.replace(published, may_ask=True)
        longest = source_policy.tasks.max_wait_seconds
        unlimited = math.inf if is_local else max(DEFAULT_TASK_SECONDS, source_policy.timeout_seconds)
        times = source_policy.timeout_seconds, unlimited if longest is None else longest
        queues = _queues(source_policy, override)
        resumes = source_policy.tasks.resume
        trusted = is_local or source_policy.trust_annotations
        repeats = is_repeatable(definition.name, definition.annotations, idempotent=source_policy.idempotent, trust_annotations=trusted)
        audited = is_own and may_change_something(definition.annotations)
        how = mask, keeper, needs_approval, source_policy.approval_by, queues, resumes, is_local, repeats, is_own, audited
        return cls(arguments, published, *times, *limits, hidden_text, *how)


class GuardedTool:
    """Policy around one tool; itself a `Tool`. Shared by concurrent calls."""

    __slots__ = (
        "_approvals",
        "_events",
        "_limiter",
        "_needs_task",
        "_policy",
        "_short_bytes",
        "_tool",
        "_usage",
        "definition",
        "exposed_name",
        "source",
    )

    def __init__(
        self,
        tool: Tool,
        *,
        exposed_name: str,
        source: str,
        policy: ToolGate,
        limiter: Limiter | None,
        events: EventStream,
        approvals: Approvals | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`limiter` is shared by all tools of one source: a server sees at most that many calls at once. `usage` counts its calls.

        Without `approvals` nobody can be asked, so calls that need an approval are refused.
        """
        self._tool = tool
        self._needs_task = not getattr(tool, "asks_for_tasks", False)
        self._policy = policy
        self._short_bytes = policy.max_result_bytes // MOST_COUNTED
        """A result of so much JSON is within the limit, however it is counted."""
        self._limiter = limiter
        self._events = events
        self._approvals = approvals
        self._usage = usage
        self.exposed_name = exposed_name
        """The name clients call; `definition.name` stays the native one."""
        self.source = source
        """Id of the source the tool is from."""
        self.definition = policy.published
        """The definition as published after policy; still under the native name."""

    @property
    def name(self) -> str:
        """The name clients call (`NamedTool`)."""
        return self.exposed_name

    @property
    def description(self) -> str:
        """The published description (`NamedTool`)."""
        return self.definition.description or ""

    def running(self, tool: Tool) -> GuardedTool:
        """The same gate around another way to run this tool."""
        return GuardedTool(
            tool,
            exposed_name=self.exposed_name,
            source=self.source,
            policy=self._policy,
            limiter=self._limiter,
            events=self._events,
            approvals=self._approvals,
            usage=self._usage,
        )

    @property
    def arguments(self) -> ArgumentPolicy:
        """The rules of its arguments, for whoever explains a verdict."""
        return self._policy.arguments

    @property
    def needs_approval(self) -> bool:
        """Whether a person decides on each call."""
        return self._policy.needs_approval

    @property
    def task_limits(self) -> list[JsonObject]:
        """What a task of this tool waits for its turn by, beside its caller's limits (`policy.turns`)."""
        scopes = {"source": f"source:{self.source}", "tool": f"tool:{self.source}/{self.definition.name}"}
        return [{"scope": scopes[queue["of"]], **{k: v for k, v in queue.items() if k != "of"}} for queue in self._policy.queues]

    @property
    def resumes(self) -> bool:
        """Whether a task of it is taken up again after its process died."""
        return self._policy.resumes

    @property
    def timeout_seconds(self) -> float:
        """Working time of a call that is no task."""
        return self._policy.timeout_seconds

    @property
    def is_local(self) -> bool:
        """Whether the tool is ours, not a remote server's."""
        return self._policy.is_local

    def admit(self, principal: Principal) -> Verdict:
        """Whether this caller may use the tool at all."""
        return judge_scope(principal.scopes, "tools", self.source, self.definition.name)

    def described(self, wire: JsonObject, scopes: Sequence[str]) -> JsonObject:
        """The listed tool as a caller with these scopes gets it: its description may name what only some callers may use."""
        description = self.description_for(scopes)
        return wire if description == self.definition.description else {**wire, "description": description}

    def description_for(self, scopes: Sequence[str] | None, named: Sequence[str] = ()) -> str:
        """The published description as `DescribingTool` has it; an operator's own description is the same for everybody."""
        tool, published = self._tool, self.definition.description
        if not isinstance(tool, DescribingTool) or published != tool.definition.description:
            return published or ""
        return tool.description_for(scopes, named)

    def check(self, arguments: JsonObject, principal: Principal) -> Verdict:
        """Judge a call without running it; whoever is about to start a task asks first."""
        if principal.scopes is not None and isinstance(verdict := self.admit(principal), Reject):
            return verdict
        return self._policy.arguments.judge(arguments)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the call if policy lets it, within the source's concurrency, time and size limits.

        A refusal, a timeout and a failure are results with `isError`, because a model can act on them; what an
        unexpected exception says stays in the log. Cancellation passes through. Every leg of a call tells one
        event when it begins (`call.started`, or `call.resumed` with answers) and one when it ends
        (`call.finished`, `call.refused`, or `call.input_required`).

        Raises:
            AskUnavailable: The caller cannot be asked what the tool needs; the server says so in the words of the client's era.
            NotFound: The tool is gone (`kind` is `tool`); the server answers as for an unknown name.
            UpstreamRefused: A remote server answered with a JSON-RPC error, which may cross as one.
        """
        if self._needs_task and ctx.late_clock is not None:
            await own_task()
        record = CallRecord()
        resumed = ctx.input_responses is not None or ctx.request_state is not None
        kind, principal = "call.resumed" if resumed else "call.started", ctx.principal.id
        self._events.emit(kind, source=self.source, name=self.exposed_name, principal=principal)
        if self._usage is not None:
            self._usage.begin()
        try:
            verdict = self.check(arguments, ctx.principal)
            if isinstance(verdict, Reject):
                record.refuse(verdict)
                self._note_dropped(verdict.dropped)
                return with_dropped(refusal(verdict.rule, verdict.reason), verdict.dropped)
            if isinstance(verdict, Rewrite):
                arguments, record.dropped = verdict.arguments, verdict.dropped
                self._note_dropped(verdict.dropped)
            grant = await self._approved(arguments, ctx) if self._policy.needs_approval else None
            if isinstance(grant, Reject):
                record.refuse(grant)
                return with_dropped(refusal(grant.rule, grant.reason), record.dropped)
            ctx = grant.opened(ctx) if grant is not None else ctx
            if ctx.principal.scopes is not None and self.source != OWN_SOURCE:
                ctx = ctx.let_in()
            try:
                outcome = await self._run(arguments, ctx, record)
            except AskExpired as error:
                outcome = record.timed_out(str(error))
            if outcome is None:
                outcome = record.timed_out(self._out_of_time(ctx))
            if not self._is_short_and_plain(outcome) and not record.has_passed:
                outcome = await self._passed(outcome, ctx, record)
            outcome = grant.sealed(outcome) if grant is not None else outcome
            return with_dropped(outcome, record.dropped) if record.dropped else outcome
        finally:
            if self._usage is not None:
                self._usage.end()
            self._events.emit(record.kind, source=self.source, name=self.exposed_name, principal=principal, fields=record.fields())
            if self._policy.is_audited and record.kind == "call.finished":
                fields: JsonObject = {"outcome": record.outcome}
                self._events.emit("call.audited", source=self.source, name=self.exposed_name, principal=principal, fields=fields)

    async def _approved(self, arguments: JsonObject, ctx: CallContext) -> Grant | Reject:
        """Ask a person, before the call takes a slot or any of its time."""
        if self._approvals is None:
            return Reject(APPROVAL_RULE, "A person must approve this call, and there is nobody here to ask.")
        return await self._approvals.approve_call(self.source, self.definition.name, arguments, ctx, self._policy.approval_by)

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Ask about a task of this tool (`TaskTool`); its result passes what every result passes.

        Raises:
            NotFound: No such task (`kind` is `task`).
            UpstreamRefused: A remote server answered with a JSON-RPC error.
        """
        if not isinstance(self._tool, TaskTool):
            raise NotFound("task", "")
        with anyio.move_on_after(self._policy.timeout_seconds):
            try:
                answer = self._readable(await self._tool.task(method, params, ctx))
            except GatewayError as error:
                self._mask(error)
                raise
            result = answer.get("result")
            if isinstance(result, dict):
                record = CallRecord()
                outcome = self._cleaned(Complete(cast("JsonObject", result)), record)
                outcome = await self._limited(outcome, ctx, record)
                answer["result"] = outcome.result if isinstance(outcome, Complete) else result
            return answer
        raise ToolFailed(f"No answer about the task within {self._policy.timeout_seconds:g} s.")

    def _run(self, arguments: JsonObject, ctx: CallContext, record: CallRecord) -> Awaitable[ToolOutcome | None]:
        """As `run_within`. Not a coroutine itself: each costs every call its steps."""
        seconds = self._policy.max_task_seconds if ctx.in_task else self._policy.timeout_seconds
        work = self._settle if ctx.durable is None or self._policy.is_own else self._recorded
        return run_within(self._limiter, seconds, ctx, work, arguments, record)

    def _out_of_time(self, ctx: CallContext) -> str:
        policy = self._policy
        seconds, key = policy.timeout_seconds, "timeoutSeconds"
        if ctx.in_task:
            seconds, key = policy.max_task_seconds, "tasks.maxWaitSeconds"
        return (
            f"Timed out after {seconds:g} s and was cancelled; it may have taken effect. "
            f"Ask for less in one call, or have the operator raise `{key}` of {self.source!r}."
        )

    async def _recorded(self, arguments: JsonObject, record: CallRecord, ctx: CallContext) -> ToolOutcome:
        """The outcome as a step of a durable task. It passes the gate before it is recorded, so what is on record is what the run gets.

        The claim of a large result that passes whole is given back when the result is on record.
        """
        assert ctx.durable is not None
        claims: list[Releasable] = []
        fresh: ToolOutcome | None = None

        async def settle(inner: CallContext) -> ToolOutcome:
            nonlocal fresh
            outcome = await self._settle(arguments, record, inner)
            if not self._is_short_and_plain(outcome):
                async with inner.clocks[-1].paused():  # judging is not the tool's work
                    outcome = await self._passed(outcome, inner, record, claims)
            fresh = outcome
            return outcome

        try:
            outcome, record.has_passed = await record_call(
                ctx.durable, self._tool, self.exposed_name, arguments, ctx, settle, is_repeatable=self._policy.is_repeatable
            )
        except ToolFailed as error:
            record.outcome = "failed"
            return Complete.text(str(error), is_error=True)
        finally:
            for claim in claims:
                claim.release()
        if fresh is not None:  # with the JSON it was read from, which need not be written again
            return fresh
        record.settle(outcome)
        return outcome

    async def _settle(self, arguments: JsonObject, record: CallRecord, ctx: CallContext) -> ToolOutcome:
        """The inner outcome, with failures turned into results. One of the four boundaries that catch everything."""
        try:
            outcome = await self._tool.call(arguments, ctx)
        except (*CODE_ERRORS, BaseExceptionGroup) as raised:
            error = only_cause(without_exit(raised, lambda text: ToolFailed(f"Tool {self.exposed_name!r} failed: {text}")))
            record.fail(error)
            self._mask(error)
            if self._policy.is_own:
                raise
            if isinstance(error, UpstreamRefused | AskUnavailable) or (isinstance(error, NotFound) and error.kind == "tool"):
                raise error from None
            if isinstance(error, PolicyDenied):
                return Complete({**Complete.text(str(error), is_error=True).result, "_meta": {RULE_META_KEY: error.rule}})
            if isinstance(error, GatewayError):
                if isinstance(error, StorageUnusable):
                    logger.warning("Tool %s of source %s failed: %s", self.exposed_name, self.source, error)
                return Complete.text(text_for_caller(error), is_error=True)
            logger.exception("Tool %s of source %s failed", self.exposed_name, self.source)
            return Complete.text(
                f"Tool {self.exposed_name!r} failed with an internal error; the operator finds the details in the gateway's log.",
                is_error=True,
            )
        record.settle(outcome)
        if self._policy.is_local and record.outcome == "error" and self._policy.mask is not None and isinstance(outcome, Complete):
            return Complete(cast("JsonObject", masked(outcome.result, self._policy.mask)))  # what the operator's own code says
        return outcome

    def _mask(self, error: Exception) -> None:
        if self._policy.mask is not None and isinstance(error, GatewayError):
            mask_secrets(error, self._policy.mask)

    def _is_short_and_plain(self, outcome: ToolOutcome) -> bool:
        """Whether an outcome's own JSON tells at a glance that it passes as it is."""
        encoded = outcome.encoded if isinstance(outcome, Complete) else None
        return encoded is not None and len(encoded) == 1 and len(encoded[0]) <= self._short_bytes and not may_hide(encoded[0])

    async def _passed(
        self, outcome: ToolOutcome, ctx: CallContext, record: CallRecord, claims: list[Releasable] | None = None
    ) -> ToolOutcome:
        """The outcome without hidden text and within its size. A large one is judged elsewhere, then gives its claim back.

        With `claims`, the claim of one that passes whole is not given back but added there.
        """
        if not isinstance(outcome, Complete) or outcome.claim is None:
            return await self._limited(self._cleaned(outcome, record), ctx, record)
        await own_task()
        passed: Complete | None = None
        try:
            passed = await self._passed_large(outcome, ctx, record)
            return passed
        except ToolFailed as error:
            record.outcome = "failed"
            return Complete.text(str(error), is_error=True)
        finally:
            if claims is None or passed is None or passed.claim is None:
                outcome.claim.release()
            else:
                claims.append(outcome.claim)

    async def _passed_large(self, outcome: Complete, ctx: CallContext, record: CallRecord) -> Complete:
        """As `_passed`: in the helper process that holds the result, or in a worker thread."""
        policy, claim = self._policy, outcome.claim
        rules = Rules(policy.hidden_text, policy.max_result_bytes, policy.max_kept_bytes)
        source = Source(ctx.principal.id, self.exposed_name, output_schema=self.definition.output_schema)
        if isinstance(claim, Held):
            judged = await claim.judge(rules, policy.keeper, source)
            if judged is None:
                outcome = Complete.received(await claim.whole())
        else:
            judge = partial(judge_whole, outcome.result, rules, policy.keeper, source)
            judged = await (anyio.to_thread.run_sync(judge) if policy.keeper is None else policy.keeper.work(judge))
        if judged is None:
            return outcome
        if judged.rule:
            return record.refuse(Reject(judged.rule, judged.reason))
        record.shortened = judged.is_shortened
        return Complete(judged.result)

    def _cleaned(self, outcome: ToolOutcome, record: CallRecord) -> ToolOutcome:
        """The outcome without hidden text, or a refusal. Asks of an `InputRequired` were cleaned where they were judged."""
        if self._policy.hidden_text == "allow":
            return outcome
        if isinstance(outcome, TaskStarted):
            self._readable(outcome.task)
            return outcome
        if not isinstance(outcome, Complete) or ((parts := outcome.looked_at) is not None and not any(map(may_hide, parts))):
            return outcome
        verdict = judge_result_text(outcome.result, self._policy.hidden_text)
        match verdict:
            case Reject():
                return record.refuse(verdict)
            case Rewrite():
                return Complete(verdict.arguments)
            case Pass():
                return outcome

    def _readable(self, task: JsonObject) -> JsonObject:
        """A task's state whose messages hide nothing; what it resulted in is judged as every result."""
        if self._policy.hidden_text != "allow":
            for key in ("statusMessage", "error"):
                if key in task:
                    task[key] = strip_value(task[key])
        return task

    async def _limited(self, outcome: ToolOutcome, ctx: CallContext, record: CallRecord) -> ToolOutcome:
        policy = self._policy
        if isinstance(outcome, Complete):
            known = sum(map(len, outcome.encoded)) if outcome.encoded is not None else None
            verdict = judge_result(outcome.result, policy.max_result_bytes, policy.max_kept_bytes, known)
        elif isinstance(outcome, InputRequired):
            verdict = judge_asks(dict(outcome.requests), policy.max_result_bytes)
        else:
            return outcome
        if isinstance(verdict, Shorten) and isinstance(outcome, Complete):
            await own_task()
            source = Source(ctx.principal.id, self.exposed_name, output_schema=self.definition.output_schema)
            shortened = await shorten(outcome.result, verdict, policy.keeper, source)
            if not isinstance(shortened, Reject):
                record.shortened = True
                return Complete(shortened)
            verdict = shortened
        if not isinstance(verdict, Reject):
            return outcome
        return record.refuse(verdict)

    def _note_dropped(self, names: tuple[str, ...]) -> None:
        """By name only: what a caller gave for them may be secret (requirements 3.A/25)."""
        if names:
            count = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
            logger.info("%s: %s dropped that it may not get: %s", self.exposed_name, count, ", ".join(map(ascii, noted_names(names))))


def _queues(policy: SourcePolicy, override: ToolOverride | None) -> tuple[JsonObject, ...]:
    wanted: list[tuple[str, int | None, int | None]] = [("source", policy.tasks.max_running, policy.tasks.starts_per_minute)]
    if override is not None:
        wanted.append(("tool", override.max_running_tasks, override.task_starts_per_minute))
    return tuple({"of": of, "running": running, "perMinute": rate} for of, running, rate in wanted if running or rate)
