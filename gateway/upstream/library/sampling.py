"""`SamplingHandler`: answers sampling requests that a server sends to a Python program (`MCPTool`), within the program's limits.

It checks the number of requests, then the program's approval, then the token limit. Refused requests count too. The number is counted per
connection, unlike in the gateway. Texts of prompts and answers are never logged.
"""

from __future__ import annotations

import inspect
import logging
from typing import cast

from mcp_types import CreateMessageRequestParams, CreateMessageResult, CreateMessageResultWithTools, ErrorData
from pydantic import ValidationError

from gateway.chat.sampling_admission import admit_sampling
from gateway.chat.sampling_requests import answer_sampling
from gateway.errors import ModelError, PolicyDenied
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject
from gateway.protocol import INTERNAL_ERROR, INVALID_REQUEST
from gateway.upstream.library.mcp_tool_options import MCPToolOptions, to_policy

logger = logging.getLogger(__name__)

RULE = "sampling.approval"
"""Rule id in the error that reports that the program refused a sampling request."""


class SamplingHandler:
    """Checks and answers the sampling requests of the server of one `MCPTool`, with the program's chat client."""

    def __init__(self, server: str, options: MCPToolOptions) -> None:
        self._server = server
        self._client = options.get("client")
        self._approve = options.get("sampling_approval_callback")
        self._policy = to_policy(options)
        self._used = 0
        keys = ("client", "sampling_approval_callback", "sampling_max_tokens", "sampling_max_requests")
        self.is_configured = any(key in options for key in keys)
        """Whether the program passed any setting for sampling."""

    @property
    def capabilities(self) -> JsonObject:
        """The client capabilities to declare to the server: sampling if the program passed a chat client, else none."""
        return {"sampling": {"tools": {}}} if self._client is not None else {}

    def reset(self) -> None:
        """Reset the count of sampling requests, because a new connection begins."""
        self._used = 0

    def read(self, request: JsonObject) -> CreateMessageRequestParams:
        """Check that a server's request is a sampling request, and return its parameters.

        Raises:
            PolicyDenied: The request is not a valid sampling request. The server gets error -32600.
        """
        if request.get("method") != "sampling/createMessage":
            raise PolicyDenied("This program answers sampling requests only.", rule="inputs.method", subject=self._server)
        try:
            return CreateMessageRequestParams.model_validate(request.get("params") or {})
        except ValidationError:
            raise PolicyDenied("The sampling request is not valid.", rule="sampling.params", subject=self._server) from None

    async def answer_params(self, params: CreateMessageRequestParams) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        """Check one sampling request, and return the chat client's answer to it, or the error for the server."""
        wire = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            answer = await self._answer({"method": "sampling/createMessage", "params": wire})
        except ModelError as error:
            return ErrorData(code=INTERNAL_ERROR, message=str(error))
        except PolicyDenied as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        kind = CreateMessageResultWithTools if isinstance(answer.get("content"), list) else CreateMessageResult
        return kind.model_validate(answer)

    def to_wire(self, answer: CreateMessageResult | CreateMessageResultWithTools | ErrorData) -> JsonObject:
        """Convert a return value of `answer_params` to the JSON result for the server.

        Raises:
            ModelError: `answer` is an internal error (-32603).
            PolicyDenied: `answer` is another error. The server gets error -32600.
        """
        if not isinstance(answer, ErrorData):
            return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        if answer.code == INTERNAL_ERROR:
            raise ModelError(answer.message)
        raise PolicyDenied(answer.message, rule=RULE, subject=self._server)

    async def _answer(self, request: JsonObject) -> JsonObject:
        client = self._client
        if client is None:
            raise ModelError("No chat client is configured to answer sampling requests.")
        try:
            admitted = await admit_sampling(self._server, request, self._policy, count=self._count, approve=self._ask_program)
        except PolicyDenied as error:
            if error.rule != "sampling.maxRequests":
                raise
            limit = self._policy.sampling.max_requests
            reason = f"Refused by {error.rule}: this connection's budget of {limit} sampling requests is spent."
            raise PolicyDenied(reason, rule=error.rule, subject=error.subject) from None
        return await answer_sampling(client, cast("JsonMapping", admitted["params"]))

    async def _count(self) -> int:
        used, self._used = self._used, self._used + 1
        return used

    async def _ask_program(self, params: JsonMapping) -> Reject | None:
        """Call the program's approval callback with a request's parameters. Return `None` if it approves, else why it refuses."""
        if self._approve is None:
            return Reject(RULE, "No `sampling_approval_callback` is set, so sampling is refused.")
        try:
            decision: object = self._approve(CreateMessageRequestParams.model_validate(params))
            approved = bool(await decision if inspect.isawaitable(decision) else decision)
        except ValidationError:
            return Reject("sampling.params", "The sampling request is not valid.")
        except Exception as error:  # an exception in the program's code refuses the request
            logger.warning("sampling approval callback failed server=%s error=%s", self._server, type(error).__name__)
            approved = False
        return None if approved else Reject(RULE, "The program did not approve it.")
