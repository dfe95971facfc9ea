"""`InputGuard`: decides on each request for input of a remote server, and on the client capabilities that are declared to the server.

Requests for input are sampling, elicitation and roots: requests that an MCP 2025 server sends, and those in `input_required` results of an
MCP 2026 server. `policy.input_requests` has the rules. An allowed request for elicitation or roots goes to the caller. For sampling, the
key `sampling.mode` of the server's policy decides: `deny` refuses the request, `relay` sends it to the caller, and `answer` sends it to a
model of the gateway. With `ask`, a person must approve the request. It then goes to a model of the gateway, or to the caller if no model is
configured. `input_rounds` handles the `input_required` results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import anyio

from gateway.chat.sampling_admission import admit_sampling
from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, InputUnavailable, ModelError, PolicyDenied
from gateway.gate.approvals import Approvals
from gateway.json_types import JsonMapping, JsonObject, members_of
from gateway.policy.approval_policy import describe_sampling
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.input_requests import judge_input
from gateway.policy.metadata import HELD_KEY
from gateway.protocol import SKILLS_EXTENSION, TASKS_EXTENSION
from gateway.storage.records import Records
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import InputRequired
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile, capability_of

if TYPE_CHECKING:
    from gateway.chat.chat_context import SupportsChatGetResponse

logger = logging.getLogger(__name__)

BUDGET_WINDOW_SECONDS = 3600.0
"""Rolling window in which the sampling requests of a caller count towards the quota `sampling.maxRequests`."""

SAMPLING = "sampling/createMessage"

_NOT_RELAYED_EXTENSIONS = frozenset({TASKS_EXTENSION, SKILLS_EXTENSION})
"""Client extensions that are not declared to servers on behalf of a client, because this gateway handles them itself."""


class Models(Protocol):
    """Provides the models that answer servers' sampling requests in place of the client's model. `chat.model_resolver` implements it."""

    def can_answer(self, spec: str) -> bool:
        """Return whether the gateway has the model that `spec` (`sampling.model` in a policy) names, so that it can answer requests."""
        ...

    def resolve(self, spec: str, ctx: CallContext) -> SupportsChatGetResponse:
        """Return the chat client of the model that `spec` (`sampling.model` in a policy) names. Raises `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class InputRequestServices:
    """Services of the gateway that `InputGuard` needs to decide on requests for input. There is one object per gateway."""

    events: EventStream
    records: Records
    approvals: Approvals
    models: Callable[[], Models] | None = None
    """Returns the models that answer sampling requests; called for servers whose policy lets a model answer. `None`: no model answers."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """Verdict of `InputGuard.judge`: send `request` to the caller. It has the server's name added, and possibly a lower token limit."""

    request: JsonObject


@dataclass(frozen=True, slots=True)
class Answered:
    """Verdict of `InputGuard.judge`: a configured model answered the request with `result`, so it does not go to the caller."""

    result: JsonObject


class InputGuard:
    """Decides on the requests for input of one server: relay, answer or refuse. Safe for concurrent calls."""

    def __init__(self, server: str, policy: SourcePolicy, services: InputRequestServices) -> None:
        self._server = server
        self._policy = policy
        self._services = services
        self._model = policy.sampling.model or "auto"
        models = services.models() if services.models is not None and policy.sampling.mode in ("ask", "answer") else None
        self._models = models
        self.answers_itself = models is not None and models.can_answer(self._model)
        """Whether a model of the gateway, not the client's model, answers sampling requests of this server."""
        if policy.sampling.mode == "answer" and not self.answers_itself:
            logger.warning("sampling not offered, because no model is configured setting=policies.%s.sampling", server)
        self.approving: list[tuple[CallContext, str]] = []
        """The calls whose request for input waits for an approval: the context of each call, and its approvers."""

    # -- client capabilities -----------------------------------------------------------------------------------

    def may_request_input(self, *, is_modern: bool) -> bool:
        """Return whether the client may get a request for input while a call of this server's tools runs.

        That is so if a person must approve sampling requests, or if the server uses MCP 2025 (`is_modern` is false) and policy relays its
        requests.
        """
        if self._policy.sampling.mode == "ask":
            return True
        relays = self._policy.sampling.mode == "relay" or self._policy.elicitation.mode == "relay" or self._policy.roots.mode == "relay"
        return relays and not is_modern

    def shared_capabilities(self) -> JsonObject:
        """Return the client capabilities to declare in a session that callers share.

        These are the capabilities whose requests policy relays to callers, or the gateway answers itself.
        """
        declared: JsonObject = {}
        if self._policy.sampling.mode in ("relay", "ask") or self.answers_itself:
            declared["sampling"] = {"tools": {}} if self.answers_itself else {}
        if self._policy.elicitation.mode == "relay":
            declared["elicitation"] = {"form": {}, "url": {}}
        if self._policy.roots.mode == "relay":
            declared["roots"] = {}
        return declared

    def capabilities_for(self, client: ClientProfile) -> JsonObject:
        """Return the client capabilities to declare to the server for calls of `client`.

        These are the capabilities of the client that policy relays, and sampling if a configured model answers the requests. The returned
        object is used for many calls and must not be changed.
        """
        declared: JsonObject = {}
        for name, settings in client.capabilities.items():
            if name == "sampling" or (name == "elicitation" and self._policy.elicitation.mode != "relay"):
                continue
            if name == "roots" and self._policy.roots.mode != "relay":
                continue
            if name == "extensions" and isinstance(settings, dict):
                kept = {k: v for k, v in cast("JsonObject", settings).items() if k not in _NOT_RELAYED_EXTENSIONS}
                if kept:
                    declared[name] = kept
                continue
            if name != "tasks":
                declared[name] = settings
        if self.answers_itself:
            declared["sampling"] = {"tools": {}}
        elif client.can("sampling") and self._policy.sampling.mode in ("relay", "ask"):
            # Not `sampling.context`: the client would add the context of other servers behind this gateway.
            wanted = cast("JsonMapping", client.capabilities["sampling"] or {})
            declared["sampling"] = {key: value for key, value in wanted.items() if key != "context"}
        return declared

    # -- decisions on requests ---------------------------------------------------------------------------------

    async def judge(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """Decide on one request for input of the server during the call `ctx`.

        A refused sampling request counts towards the quota too, unless sampling is denied altogether or nothing could answer the request.

        Raises:
            PolicyDenied: Policy or a person refuses the request.
            InputUnavailable: The client did not declare the capability that the request needs.
            ModelError: No model is configured to answer, or the model failed.
            StorageError: The request cannot be counted, or the decision cannot be recorded.
        """
        if request.get("method") == SAMPLING and self._policy.sampling.mode != "deny":
            return await self._judge_sampling(request, ctx)
        verdict = judge_input(request, self._policy, 0, origin=self._server)
        if isinstance(verdict, Reject):
            self._emit_judged(request, ctx, "refused", rule=verdict.rule)
            await self._services.events.stored()
            raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=self._server)
        self._require(capability_of(request), ctx)
        self._emit_judged(request, ctx, "relayed")
        return Relayed(verdict.arguments if isinstance(verdict, Rewrite) else request)

    async def answer(self, request: JsonObject, ctx: CallContext, key: str = "") -> JsonObject:
        """Return the answer to one request for input, from a configured model or from the caller.

        Inside a durable task (stored by the gateway), `key` identifies the request: when the task is resumed after a restart, an earlier
        answer is used. A request without `key` is sent to the caller again. Raises the errors of `judge` and `CallContext.ask`.
        """
        judged = await self.judge(request, ctx)
        return judged.result if isinstance(judged, Answered) else await ctx.ask(judged.request, key)

    async def _judge_sampling(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        mode = self._policy.sampling.mode
        if mode == "relay":
            self._require("sampling", ctx)
        elif not self.answers_itself and not (mode == "ask" and ctx.facts.client.can("sampling")):
            self._emit_judged(request, ctx, "refused", rule="sampling.model")
            await self._services.events.stored()
            raise ModelError(f"No model is configured to answer for server {self._server!r}; nothing was counted.")
        params = cast("JsonMapping", request.get("params") or {})

        async def approve(asked: JsonMapping) -> Reject | None:
            if mode != "ask":
                return None
            shown = describe_sampling(self._server, asked, _smaller(asked.get("maxTokens"), self._policy.sampling.max_tokens))
            approvals, by = self._services.approvals, self._policy.approval_by
            entry = ctx, approvals.approvers_on_list(ctx, by)
            self.approving.append(entry)
            try:
                return await approvals.approve_sampling(self._server, SAMPLING, shown, ctx, by)
            finally:
                self.approving.remove(entry)

        try:
            allowed = await admit_sampling(self._server, request, self._policy, count=lambda: self._count(ctx), approve=approve)
        except GatewayError as error:
            rule = error.rule if isinstance(error, PolicyDenied) else type(error).__name__
            self._emit_judged(request, ctx, "refused", rule=rule, asked=params.get("maxTokens"))
            await self._services.events.stored()
            raise
        cap = cast("JsonMapping", allowed["params"]).get("maxTokens")
        self._emit_judged(request, ctx, "answered" if self.answers_itself else "relayed", asked=params.get("maxTokens"), allowed=cap)
        await self._services.records.flush()  # the decision is stored before the server receives an answer of a model
        return Answered(await self._ask_model(allowed, ctx)) if self.answers_itself else Relayed(allowed)

    async def _ask_model(self, request: JsonObject, ctx: CallContext) -> JsonObject:
        """Return the configured model's answer to a sampling request. The model gets the server's request, and no data of the gateway."""
        models = cast("Models", self._models)
        try:
            with anyio.fail_after(self._policy.timeout_seconds):
                from gateway.chat.sampling_requests import answer_sampling  # imported here, because few gateways need it

                return await answer_sampling(models.resolve(self._model, ctx), cast("JsonMapping", request["params"]))
        except TimeoutError:
            self._emit_judged(request, ctx, "failed", rule="timeout")
            raise ModelError(f"The model did not answer within {self._policy.timeout_seconds:g} s.") from None
        except ModelError:
            self._emit_judged(request, ctx, "failed", rule="model")
            raise

    def _require(self, capability: str, ctx: CallContext) -> None:
        if not ctx.facts.client.can(capability):
            raise InputUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)

    async def _count(self, ctx: CallContext) -> int:
        """Count a sampling request of this server for the caller in the gateway's database, and return the number of earlier requests.

        Earlier requests are those that this server sent for the caller in the hour before. If the policy sets no quota
        (`sampling.maxRequests`), count nothing and return 0.
        """
        limit = self._policy.sampling.max_requests
        if not limit:
            return 0
        budget = await self._services.records.budget()
        return await budget.count(self._server, ctx.facts.principal.id, limit=limit, window_seconds=BUDGET_WINDOW_SECONDS)

    def _emit_judged(
        self, request: JsonMapping, ctx: CallContext, outcome: str, *, rule: str = "", asked: object = None, allowed: object = None
    ) -> None:
        fields: JsonObject = {"outcome": outcome}
        if rule:
            fields["reason"] = rule
        if request.get("method") == SAMPLING:
            fields["mode"] = self._policy.sampling.mode
            fields["maxTokens"] = allowed
            fields["askedTokens"] = asked if isinstance(asked, int) else None
            fields["tokenCap"] = self._policy.sampling.max_tokens
        self._services.events.emit(
            "ask.judged", source=self._server, name=str(request.get("method"))[:60], principal=ctx.facts.principal.id, fields=fields
        )


def _smaller(asked: object, cap: int | None) -> int | None:
    wanted = asked if isinstance(asked, int) else None
    return min((n for n in (wanted, cap) if n is not None), default=None)


def to_input_required(result: JsonMapping) -> InputRequired:
    """Convert a server's result with `resultType: input_required` to the outcome `InputRequired` of a call."""
    state = result.get("requestState")
    return InputRequired(
        members_of(result.get("inputRequests")),
        state if isinstance(state, str) else None,
        {HELD_KEY: True} if HELD_KEY in members_of(result.get("_meta")) else {},
    )
