"""Whether a server's sampling request may reach a model: budget, then approval, then token cap, in that order.

The one guard of the gateway (`upstream.inputs`) and of programs (`upstream.library`); they differ in who counts and who is
asked. Answering is `answering`'s. Log lines carry counts and limits, never what was asked or answered (requirements 3.B/40).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.inputs import judge_input

logger = logging.getLogger(__name__)

Count = Callable[[], Awaitable[int]]
"""Counts this request and returns how many the budget held before it."""

Approve = Callable[[JsonMapping], Awaitable[Reject | None]]
"""Decides on the untouched parameters (requirements 3.B/33); `None` approves."""


async def admit_sampling(server: str, request: JsonObject, policy: SourcePolicy, *, count: Count, approve: Approve) -> JsonObject:
    """The request as a model may get it; a refused one has been counted all the same.

    Raises:
        PolicyDenied: Budget, approval, mode or the request itself stands against it; `rule` says which.
    """
    params = cast("JsonMapping", request.get("params") or {})
    used = await count()
    limit = policy.sampling.max_requests
    asked = (_length(params.get("messages")), params.get("maxTokens"), used, "no limit" if limit is None else limit)
    logger.warning("%s: sampling request: %d message(s), maxTokens %s, %d before it, limit %s", server, *asked)
    verdict = judge_input(request, policy, used)
    refused = verdict if isinstance(verdict, Reject) else await approve(params)
    if refused is not None:
        logger.warning("%s: sampling refused by %s (%d before it, limit %s)", server, refused.rule, used, asked[3])
        raise PolicyDenied(f"Refused by {refused.rule}: {refused.reason}", rule=refused.rule, subject=server)
    if not isinstance(verdict, Rewrite):
        return request
    allowed = cast("JsonMapping", verdict.arguments["params"])
    if allowed.get("maxTokens") != params.get("maxTokens"):
        logger.warning("%s: sampling capped from %s to %s tokens", server, params.get("maxTokens"), allowed.get("maxTokens"))
    return verdict.arguments


def _length(messages: object) -> int:
    return len(cast("list[object]", messages)) if isinstance(messages, list) else 0
