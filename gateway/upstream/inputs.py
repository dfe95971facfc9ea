"""What a remote server may ask the caller: capabilities to declare, and the one judgement of every ask.

Used for requests a legacy server sends and for those a modern one embeds in `input_required` results; the rules
themselves are `policy.inputs`. Holds the sampling budgets of one server, counted per principal.
"""

from __future__ import annotations

import time
from collections import deque
from typing import cast

from gateway.config.policies import SourcePolicy
from gateway.errors import AskUnavailable, PolicyDenied
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.inputs import judge_input
from gateway.telemetry.events import EventStream
from gateway.tools.base import InputRequired
from gateway.tools.context import CallContext, ClientProfile, capability_of

BUDGET_WINDOW_SECONDS = 3600.0
"""Sampling requests are counted over this rolling window (requirements 3.B, issue text)."""

_NOT_RELAYED_EXTENSIONS = frozenset({"io.modelcontextprotocol/tasks", "io.modelcontextprotocol/skills"})
"""Extensions that end at this gateway: a server must not be told that it may use them."""


def asks_relayed(policy: SourcePolicy) -> bool:
    """Whether any kind of ask of this server can reach a caller."""
    return policy.sampling.mode == "relay" or policy.elicitation.mode == "relay" or policy.roots.mode == "relay"


def declared_capabilities(policy: SourcePolicy) -> JsonObject:
    """Client capabilities for a connection that several callers share: what policy would relay at all."""
    declared: JsonObject = {}
    if policy.sampling.mode == "relay":
        declared["sampling"] = {}
    if policy.elicitation.mode == "relay":
        declared["elicitation"] = {"form": {}, "url": {}}
    if policy.roots.mode == "relay":
        declared["roots"] = {}
    return declared


def relayed_capabilities(client: ClientProfile, policy: SourcePolicy) -> JsonObject:
    """Client capabilities to declare on behalf of one caller: what it declared and policy relays."""
    declared: JsonObject = {}
    for name, settings in client.capabilities.items():
        if name == "sampling" and policy.sampling.mode != "relay":
            continue
        if name == "elicitation" and policy.elicitation.mode != "relay":
            continue
        if name == "roots" and policy.roots.mode != "relay":
            continue
        if name == "extensions" and isinstance(settings, dict):
            kept = {k: v for k, v in cast("JsonObject", settings).items() if k not in _NOT_RELAYED_EXTENSIONS}
            if kept:
                declared[name] = kept
            continue
        if name != "tasks":
            declared[name] = settings
    return declared


class InputGuard:
    """Judges what one server asks for. One instance per server; safe for concurrent calls."""

    def __init__(self, server: str, policy: SourcePolicy, events: EventStream) -> None:
        self._server = server
        self._policy = policy
        self._events = events
        self._used: dict[str, deque[float]] = {}

    def judge(self, request: JsonObject, ctx: CallContext) -> JsonObject:
        """The request to put to the caller, possibly with a lowered token cap.

        Refused requests count towards the budget too (requirements 3.B/35).

        Raises:
            PolicyDenied: Policy refuses it.
            AskUnavailable: The caller did not declare the capability.
        """
        capability = capability_of(request)
        used = self._count(ctx.principal.id) if capability == "sampling" else 0
        verdict = judge_input(request, self._policy, used)
        refused = verdict if isinstance(verdict, Reject) else None
        self._events.emit(
            "ask.judged",
            source=self._server,
            name=str(request.get("method")),
            principal=ctx.principal.id,
            fields={"outcome": refused.rule if refused else "relayed"},
        )
        if refused is not None:
            raise PolicyDenied(f"Refused by {refused.rule}: {refused.reason}", rule=refused.rule, subject=self._server)
        if not ctx.client.can(capability):
            raise AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)
        return verdict.arguments if isinstance(verdict, Rewrite) else request

    def judge_all(self, outcome: InputRequired, ctx: CallContext) -> InputRequired:
        """`judge` for every request of an `input_required` result; one refusal refuses the whole."""
        judged = {key: self.judge(dict(request), ctx) for key, request in outcome.requests.items()}
        return InputRequired(judged, outcome.state, outcome.meta)

    def _count(self, principal: str) -> int:
        """Requests of `principal` in the window before this one; records this one."""
        now = time.monotonic()
        times = self._used.setdefault(principal, deque())
        while times and now - times[0] > BUDGET_WINDOW_SECONDS:
            times.popleft()
        used = len(times)
        limit = self._policy.sampling.max_requests
        if limit is None or used < limit:
            times.append(now)
        return used


def to_input_required(result: JsonMapping) -> InputRequired:
    """The outcome of a wire result with `resultType: input_required`."""
    requests = result.get("inputRequests")
    state = result.get("requestState")
    return InputRequired(
        cast("dict[str, JsonObject]", requests) if isinstance(requests, dict) else {},
        state if isinstance(state, str) else None,
    )
