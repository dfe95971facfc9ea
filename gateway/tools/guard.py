"""`GuardedTool`: the one gate around any tool.

The catalog wraps every tool it hands out in this class, so the MCP server, agents, workflows, tasks, the command
line and the console share one path: event → arguments → concurrency → deadline → call → result size → event.
It knows nothing of MCP's wire; `server.calls` makes wire results. Resources and prompts pass `catalog.reads`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import anyio

from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, NotFound, UpstreamRefused, only_cause
from gateway.json_types import JsonObject
from gateway.policy.arguments import ArgumentPolicy
from gateway.policy.decision import Reject, Rewrite, Verdict
from gateway.policy.limits import judge_result
from gateway.telemetry.events import EventStream
from gateway.tools.base import Complete, InputRequired, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallClock, CallContext
from gateway.tools.slot import slot_for

logger = logging.getLogger(__name__)

DROPPED_META_KEY = "dev.moongate/droppedArguments"
"""Key in a result's `_meta` that lists the argument names taken out before the call."""

_MAX_NOTED_NAMES = 20
_MAX_NOTED_LENGTH = 64
"""Dropped names come from the caller: this many, cut to this length, are noted in events and results."""


@dataclass(frozen=True, slots=True)
class ToolGate:
    """The compiled rules of one tool."""

    arguments: ArgumentPolicy
    timeout_seconds: float
    """Working time of one call; waiting for a slot or for a person does not count."""
    max_result_bytes: int

    @classmethod
    def build(cls, definition: ToolDefinition, source_policy: SourcePolicy) -> ToolGate:
        """Compile a source's rules for the tool with this (native) definition. Never raises on what a peer published."""
        arguments = ArgumentPolicy.build(
            definition.name, definition.input_schema, source_policy.additional_arguments, source_policy.arguments
        )
        return cls(arguments, source_policy.timeout_seconds, source_policy.max_result_bytes)


class GuardedTool:
    """Policy around one tool; itself a `Tool`. Shared by concurrent calls."""

    __slots__ = ("_events", "_limiter", "_policy", "_tool", "definition", "exposed_name", "source")

    def __init__(
        self,
        tool: Tool,
        *,
        exposed_name: str,
        source: str,
        policy: ToolGate,
        limiter: anyio.CapacityLimiter | None,
        events: EventStream,
    ) -> None:
        """`limiter` is shared by all tools of one source: a server sees at most that many calls at once."""
        self._tool = tool
        self._policy = policy
        self._limiter = limiter
        self._events = events
        self.exposed_name = exposed_name
        """The name clients call; `definition.name` stays the native one."""
        self.source = source
        """Id of the source the tool is from."""
        inner = tool.definition
        published = policy.arguments.published_schema
        self.definition = inner if published is inner.input_schema else dataclasses.replace(inner, input_schema=published)
        """The inner definition with the schema as published after policy."""

    def check(self, arguments: JsonObject) -> Verdict:
        """Judge a call without running it; whoever is about to start a task asks first."""
        return self._policy.arguments.judge(arguments)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the call if policy lets it, within the source's concurrency, time and size limits.

        A refusal, a timeout and a failure are results with `isError`, because a model can act on them; what an
        unexpected exception says stays in the log. Cancellation passes through. Every leg of a call tells one
        event when it begins (`call.started`, or `call.resumed` with answers) and one when it ends
        (`call.finished`, `call.refused`, or `call.input_required`).

        Raises:
            NotFound: The tool is gone (`kind` is `tool`); the server answers as for an unknown name.
            UpstreamRefused: A remote server answered with a JSON-RPC error, which may cross as one.
        """
        record = _CallRecord()
        resumed = ctx.input_responses is not None or ctx.request_state is not None
        self._tell("call.resumed" if resumed else "call.started", ctx, None)
        try:
            verdict = self.check(arguments)
            if isinstance(verdict, Reject):
                record.refuse(verdict)
                return _noting(Complete.text(f"Refused by {verdict.rule}: {verdict.reason}", is_error=True), verdict.dropped)
            if isinstance(verdict, Rewrite):
                arguments, record.dropped = verdict.arguments, verdict.dropped
            outcome = self._limited(await self._run(arguments, ctx, record), record)
            return _noting(outcome, record.dropped) if record.dropped else outcome
        finally:
            self._tell(record.kind, ctx, record.fields())

    async def _run(self, arguments: JsonObject, ctx: CallContext, record: _CallRecord) -> ToolOutcome:
        slot = slot_for(self._limiter, ctx)
        if slot is not None:
            await slot.take()
        try:
            clock = CallClock(self._policy.timeout_seconds)
            waits = ctx.waits if slot is None else (*ctx.waits, slot)
            inner = dataclasses.replace(ctx, clocks=(*ctx.clocks, clock), waits=waits)
            with clock.scope:
                return await self._settle(arguments, inner, record)
        finally:
            if slot is not None:
                slot.give_back()
        record.outcome = "timeout"
        return Complete.text(
            f"Timed out after {self._policy.timeout_seconds:g} s and was cancelled; it may have taken effect. "
            f"Ask for less in one call, or have the operator raise `timeoutSeconds` of {self.source!r}.",
            is_error=True,
        )

    async def _settle(self, arguments: JsonObject, ctx: CallContext, record: _CallRecord) -> ToolOutcome:
        """The inner outcome, with failures turned into results. One of the four boundaries that catch everything."""
        try:
            outcome = await self._tool.call(arguments, ctx)
        except Exception as raised:
            error = only_cause(raised)
            record.outcome = "failed"
            record.error = type(error).__name__
            if isinstance(error, UpstreamRefused) or (isinstance(error, NotFound) and error.kind == "tool"):
                raise error from None
            if isinstance(error, GatewayError):
                return Complete.text(str(error), is_error=True)
            logger.exception("Tool %s of source %s failed", self.exposed_name, self.source)
            return Complete.text(
                f"Tool {self.exposed_name!r} failed with an internal error; the operator finds the details in the gateway's log.",
                is_error=True,
            )
        record.settle(outcome)
        return outcome

    def _limited(self, outcome: ToolOutcome, record: _CallRecord) -> ToolOutcome:
        if isinstance(outcome, Complete):
            judged = outcome.result
        elif isinstance(outcome, InputRequired):
            judged = dict(outcome.requests)
        else:
            return outcome
        verdict = judge_result(judged, self._policy.max_result_bytes)
        if not isinstance(verdict, Reject):
            return outcome
        record.refuse(verdict)
        return Complete.text(f"Refused by {verdict.rule}: {verdict.reason}", is_error=True)

    def _tell(self, kind: str, ctx: CallContext, fields: JsonObject | None) -> None:
        self._events.emit(kind, source=self.source, name=self.exposed_name, principal=ctx.principal.id, fields=fields)


class _CallRecord:
    """What the closing event of one leg will say."""

    __slots__ = ("_started", "dropped", "error", "kind", "outcome", "rule")

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.kind = "call.finished"
        self.outcome = "cancelled"
        self.rule = ""
        self.error = ""
        self.dropped: tuple[str, ...] = ()

    def refuse(self, verdict: Reject) -> None:
        self.kind, self.outcome, self.rule = "call.refused", "refused", verdict.rule
        self.dropped = self.dropped or verdict.dropped

    def settle(self, outcome: ToolOutcome) -> None:
        if isinstance(outcome, Complete):
            self.outcome = "error" if outcome.is_error else "complete"
        elif isinstance(outcome, InputRequired):
            self.kind, self.outcome = "call.input_required", "input_required"
        else:
            self.outcome = "task"

    def fields(self) -> JsonObject:
        fields: JsonObject = {"outcome": self.outcome, "milliseconds": round((time.perf_counter() - self._started) * 1000, 3)}
        if self.rule:
            fields["rule"] = self.rule
        if self.error:
            fields["error"] = self.error
        if self.dropped:
            fields["dropped"] = _noted(self.dropped)
            fields["droppedCount"] = len(self.dropped)
        return fields


def _noted(names: tuple[str, ...]) -> list[str]:
    return [name[:_MAX_NOTED_LENGTH] for name in names[:_MAX_NOTED_NAMES]]


def _noting(outcome: ToolOutcome, dropped: tuple[str, ...]) -> ToolOutcome:
    """The outcome with the dropped names in its `_meta`; a copy, because a relayed result may have other holders."""
    if not dropped or not isinstance(outcome, Complete):
        return outcome
    meta = outcome.result.get("_meta")
    noted: JsonObject = {**(cast("JsonObject", meta) if isinstance(meta, Mapping) else {}), DROPPED_META_KEY: _noted(dropped)}
    return Complete({**outcome.result, "_meta": noted})
