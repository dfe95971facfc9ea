"""`SamplingDesk`: answers a server's sampling requests for a program, within the program's limits (requirements 3.B).

Budget, then the program's approval, then the token cap; refused requests count too. Counts start anew with each connection
(3.B/38), which is where this differs from the gateway's guard. No prompt or answer text is ever logged.
"""

from __future__ import annotations

import inspect
import logging
from typing import cast

from mcp_types import CreateMessageRequestParams
from pydantic import ValidationError

from gateway.chat.answering import answer_sampling
from gateway.errors import ModelError, PolicyDenied
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.inputs import judge_input
from gateway.upstream.library.options import MCPToolOptions, to_policy

logger = logging.getLogger(__name__)


class SamplingDesk:
    """The sampling side of one `MCPTool`."""

    def __init__(self, server: str, options: MCPToolOptions) -> None:
        self._server = server
        self._client = options.get("client")
        self._approve = options.get("sampling_approval_callback")
        self._policy = to_policy(options)
        self._used = 0
        keys = ("client", "sampling_approval_callback", "sampling_max_tokens", "sampling_max_requests")
        self.is_configured = any(key in options for key in keys)
        """Whether any sampling setting was given."""

    @property
    def capabilities(self) -> JsonObject:
        """What is announced: sampling only where there is a client to answer it (3.B/28)."""
        return {"sampling": {"tools": {}}} if self._client is not None else {}

    def reset(self) -> None:
        """A new connection: count from nothing."""
        self._used = 0

    async def answer(self, request: JsonObject) -> JsonObject:
        """The answer to one request.

        Raises:
            ModelError: There is no client, or it failed; a server is told -32603.
            PolicyDenied: Refused by budget or approval, or it is no sampling request; a server is told -32600.
        """
        params = cast("JsonMapping", request.get("params") or {})
        if request.get("method") != "sampling/createMessage":
            raise PolicyDenied("This program answers no such request.", rule="inputs.method", subject=self._server)
        client = self._client
        if client is None:
            raise ModelError("No chat client answers here.")
        asked = (_count(params), params.get("maxTokens"), self._used)
        logger.warning("%s: sampling request: %d message(s), maxTokens %s, %d before it", self._server, *asked)
        used, self._used = self._used, self._used + 1
        verdict = judge_input(request, self._policy, used)
        if isinstance(verdict, Reject):
            raise self._refuse(verdict.rule, verdict.reason)
        await self._ask_program(params)
        allowed = cast("JsonMapping", verdict.arguments["params"]) if isinstance(verdict, Rewrite) else params
        if allowed.get("maxTokens") != params.get("maxTokens"):
            logger.warning("%s: sampling capped from %s to %s tokens", self._server, params.get("maxTokens"), allowed.get("maxTokens"))
        return await answer_sampling(client, allowed)

    async def _ask_program(self, params: JsonMapping) -> None:
        """The program's own decision, on the request as it came (3.B/30-33)."""
        if self._approve is None:
            raise self._refuse("sampling.approval", "Sampling is refused: no `sampling_approval_callback` is set.")
        try:
            decision: object = self._approve(CreateMessageRequestParams.model_validate(params))
            approved = bool(await decision if inspect.isawaitable(decision) else decision)
        except ValidationError:
            raise self._refuse("sampling.params", "The sampling request is not valid.") from None
        except Exception as error:  # the program's code: whatever it raises means no (3.B/32)
            logger.warning("%s: the sampling approval callback raised %s", self._server, type(error).__name__)
            approved = False
        if not approved:
            raise self._refuse("sampling.approval", "Sampling was not approved.")

    def _refuse(self, rule: str, reason: str) -> PolicyDenied:
        logger.warning("%s: sampling refused by %s", self._server, rule)
        return PolicyDenied(reason, rule=rule, subject=self._server)


def _count(params: JsonMapping) -> int:
    messages = params.get("messages")
    return len(cast("list[object]", messages)) if isinstance(messages, list) else 0
