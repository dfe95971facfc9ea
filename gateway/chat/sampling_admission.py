"""Admits or rejects sampling requests of servers before a model is called, by the number of requests, their tokens and an approval.

The gateway (`upstream.input_guard`) and Python programs (`upstream.library`) both use this module, with their own counters and approvals.
`sampling_requests` answers the admitted requests. Log lines contain counts and limits, never the content of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.input_requests import judge_input

logger = logging.getLogger(__name__)

Count = Callable[[], Awaitable[int]]
"""Function that counts the current sampling request, and returns how many earlier requests count towards the policy's `max_requests`."""

Approve = Callable[[JsonMapping], Awaitable[Reject | None]]
"""Async function that receives the `params` of a sampling request as the server sent them, and decides whether to answer it.

It returns `None` to approve the request, or the reason for a rejection."""


async def admit_sampling(server: str, request: JsonObject, policy: SourcePolicy, *, count: Count, approve: Approve) -> JsonObject:
    """Check a server's sampling request, and return it with the policy's limits applied, such as a lower `maxTokens`.

    Rejected requests also count towards the policy's maximum number of requests.

    Raises:
        PolicyDenied: The policy rejects the request (too many requests, sampling is off, invalid content), or `approve` does; `rule`
            names the reason.
    """
    params = cast("JsonMapping", request.get("params") or {})
    used = await count()
    limit = policy.sampling.max_requests
    asked = (_length(params.get("messages")), params.get("maxTokens"), used, "none" if limit is None else limit)
    logger.warning("sampling requested server=%s messages=%d max_tokens=%s used=%d limit=%s", server, *asked)
    verdict = judge_input(request, policy, used)
    refused = verdict if isinstance(verdict, Reject) else await approve(params)
    if refused is not None:
        logger.warning("sampling refused server=%s rule=%s used=%d limit=%s", server, refused.rule, used, asked[3])
        raise PolicyDenied(f"Refused by {refused.rule}: {refused.reason}", rule=refused.rule, subject=server)
    if not isinstance(verdict, Rewrite):
        return request
    allowed = cast("JsonMapping", verdict.arguments["params"])
    if allowed.get("maxTokens") != params.get("maxTokens"):
        logger.warning("sampling capped server=%s max_tokens=%s capped=%s", server, params.get("maxTokens"), allowed.get("maxTokens"))
    return verdict.arguments


def _length(messages: object) -> int:
    return len(cast("list[object]", messages)) if isinstance(messages, list) else 0
