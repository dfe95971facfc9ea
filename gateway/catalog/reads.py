"""`ReadGate`: the gate of resources, prompts, completion and skills, with the same limits and events as `GuardedTool`'s.

Reads have no arguments to judge, so what is left is the slot, the deadline, the size and the record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.to_thread

from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, PolicyDenied, UpstreamTimeout, mask_secrets
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.hidden_text import HiddenText, judge_result_text
from gateway.policy.limits import Shorten, judge_asks, judge_result
from gateway.policy.scopes import ScopeKind, judge_scope
from gateway.telemetry.events import EventStream
from gateway.tools.base import Finished, InputRequired, Received
from gateway.tools.context import CallContext
from gateway.tools.results import ResultKeeper, Source, shorten
from gateway.tools.slot import Limiter, Usage, run_within

Subject = tuple[ScopeKind, str]
"""Of what kind it is, and its native name or URI."""


class ReadGate:
    """The gate of one source."""

    def __init__(
        self,
        source: str,
        policy: SourcePolicy,
        limiter: Limiter,
        events: EventStream,
        keeper: ResultKeeper | None = None,
        *,
        is_local: bool = False,
        usage: Usage | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        """`limiter` is the one the source's tools use: reads and calls share its slots; `keeper` keeps what is shortened.
        `usage` counts them; `mask` takes secrets out of what errors say.

        Texts of our own (`is_local`) are not searched for what is hidden in them.
        """
        self._source = source
        self._policy = policy
        self._limiter = limiter
        self._hidden_text: HiddenText = "allow" if is_local else policy.hidden_text
        self._events = events
        self._keeper = keeper
        self._usage = usage
        self._mask = mask

    async def run(
        self,
        method: str,
        name: str,
        ctx: CallContext,
        work: Callable[[CallContext], Awaitable[Finished | InputRequired]],
        hidden_text: HiddenText | None = None,
        subject: Subject | None = None,
    ) -> Finished | InputRequired:
        """Run one read within the source's limits; `work` gives the result as exposed, `name` is the exposed name or URI.
        `hidden_text` is what becomes of it where that is not the source's own rule; `subject` is what is read, by which the caller's
        scopes are judged, and left out where the answer is sifted.

        Raises:
            UpstreamTimeout: It took longer than `timeoutSeconds`.
            PolicyDenied: The caller has no scope for it; the result is larger than `maxKeptBytes`, cannot be kept, or has hidden text
                that is refused.
        """
        outcome = "error"
        started = anyio.current_time()
        if self._usage is not None:
            self._usage.begin()
        try:
            result = await run_within(self._limiter, self._policy.timeout_seconds, self._let_in(ctx, subject), work)
            if result is None:
                outcome = "timeout"
                raise UpstreamTimeout(f"{method} of {name!r} took longer than {self._policy.timeout_seconds:g} s.", server=self._source)
            outcome = "complete" if isinstance(result, Finished) else "input_required"
            return await self._limited(method, name, ctx, result, hidden_text or self._hidden_text)
        except GatewayError as error:
            outcome = type(error).__name__ if outcome != "timeout" else outcome
            if self._mask is not None:
                mask_secrets(error, self._mask)
            raise
        finally:
            if self._usage is not None:
                self._usage.end()
            milliseconds = round((anyio.current_time() - started) * 1000, 3)
            self._events.emit(
                "read.finished",
                source=self._source,
                name=name,
                principal=ctx.principal.id,
                fields={"method": method, "outcome": outcome, "milliseconds": milliseconds},
            )

    async def finish(
        self,
        method: str,
        name: str,
        ctx: CallContext,
        work: Callable[[CallContext], Awaitable[JsonObject]],
        hidden_text: HiddenText | None = None,
        subject: Subject | None = None,
    ) -> JsonObject:
        """`run` for what never asks: the payload itself."""

        async def finished(inner: CallContext) -> Finished:
            return Finished(await work(inner))

        outcome = await self.run(method, name, ctx, finished, hidden_text, subject)
        assert isinstance(outcome, Finished)
        return outcome.result

    def _let_in(self, ctx: CallContext, subject: Subject | None) -> CallContext:
        if ctx.principal.scopes is None:
            return ctx
        if subject is not None and isinstance(verdict := judge_scope(ctx.principal.scopes, subject[0], self._source, subject[1]), Reject):
            raise PolicyDenied(verdict.reason, rule=verdict.rule, subject=subject[1])
        return ctx.let_in()

    async def _limited(
        self, method: str, name: str, ctx: CallContext, outcome: Finished | InputRequired, hidden_text: HiddenText
    ) -> Finished | InputRequired:
        policy = self._policy
        if isinstance(outcome, InputRequired):
            verdict = judge_asks(dict(outcome.requests), policy.max_result_bytes)
        else:
            claim = outcome.result.claim if isinstance(outcome.result, Received) else None
            clean = partial(judge_result_text, outcome.result, hidden_text)
            cleaned = clean() if claim is None else await anyio.to_thread.run_sync(clean)
            if isinstance(cleaned, Reject):
                raise PolicyDenied(f"{method} of {name!r} was refused by {cleaned.rule}: {cleaned.reason}", rule=cleaned.rule, subject=name)
            outcome = Finished(cleaned.arguments) if isinstance(cleaned, Rewrite) else outcome
            verdict = judge_result(outcome.result, policy.max_result_bytes, policy.max_kept_bytes)
        if isinstance(verdict, Shorten) and isinstance(outcome, Finished):
            source = Source(ctx.principal.id, name, form="messages" if method == "prompts/get" else "contents")
            shortened = await shorten(outcome.result, verdict, self._keeper, source)
            if not isinstance(shortened, Reject):
                return Finished(shortened)
            verdict = shortened
        if isinstance(verdict, Reject):
            raise PolicyDenied(f"{method} of {name!r} was refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=name)
        return outcome
