"""Converts the gateway's exceptions to the JSON-RPC errors that clients receive, for 2025 and 2026 protocol versions.

The exceptions report unknown names, invalid requests, and failures of resource reads, prompts and completions. Most failures of tools are
results already; `failed_call` converts the rest. An unexpected exception is logged, and the client receives only "Internal error".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gateway.errors import (
    AnswerRefused,
    GatewayError,
    InputUnavailable,
    NotFound,
    PolicyDenied,
    Rejected,
    StorageUnusable,
    TaskError,
    ToolFailed,
    text_for_caller,
)
from gateway.policy import scopes
from gateway.protocol import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, RpcError
from gateway.tools.base import Complete
from gateway.tools.ports import Era, nested_capability

logger = logging.getLogger(__name__)

LEGACY_RESOURCE_NOT_FOUND = -32002
"""JSON-RPC error code for a missing resource in 2025 protocol versions. The 2026 version uses -32602."""

PARKED_CALL = "parked call"
"""`NotFound.kind` if a request names a parked call (a call that waits for the client's input) that does not exist, no longer waits, or
belongs to another principal."""

_RELAYED_CODES = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, -32042})
"""JSON-RPC error codes that are relayed: if a remote server answers with one of them, and the client's version of MCP (2025 or 2026)
defines the code, the client receives code, message and data of the error."""

_MODERN_ONLY = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY})
_LEGACY_ONLY = frozenset({-32042})


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The failure of a tool call that raised an exception. The server, tasks and AG-UI each send it to the caller in their own form."""

    error: RpcError
    """The failure as a JSON-RPC error. A task or AG-UI run ends with its code and text; the result of a `tools/call` has the same text."""
    is_result: bool
    """Whether a `tools/call` request is answered with a result with `isError`, because a model can act on the text."""

    def result(self) -> Complete:
        """Return the result with `isError` for a `tools/call` request. Raises `RpcError` if the request is answered with an error."""
        if not self.is_result:
            raise self.error
        return Complete.text(self.error.message, is_error=True)


def failed_call(error: Exception, era: Era) -> CallFailure:
    """Convert an exception of a tool call to what the caller receives. `era` is the caller's protocol era.

    Cancellation is not converted: it is not an `Exception`. A request for input is an outcome of a call, and raises nothing.
    """
    match error:
        case Rejected() if not _relays_code(error.code, era):
            return CallFailure(RpcError(error.code, f"Server {error.server!r} refused the call: {error}"), is_result=True)
        case InputUnavailable():
            is_result = era == "legacy" or not error.capability
        case NotFound():
            is_result = error.kind == PARKED_CALL
        case _:
            is_result = era == "legacy" and isinstance(error, ToolFailed | TaskError)
    return CallFailure(to_rpc_error(error, era), is_result)


def to_rpc_error(error: Exception, era: Era) -> RpcError:
    """Convert an exception to the JSON-RPC error that a client receives. The error code depends on `era`: 2025 or 2026 protocol."""
    match error:
        case RpcError():
            return error
        case NotFound(kind="resource"):
            code = LEGACY_RESOURCE_NOT_FOUND if era == "legacy" else INVALID_PARAMS
            return RpcError(code, f"Resource not found: {error.name}", {"uri": error.name})
        case NotFound(kind="skill" | "directory" | "cursor"):  # of the skills extension
            return RpcError(INVALID_PARAMS, str(error), {"uri": error.name})
        case AnswerRefused() | NotFound():
            return RpcError(INVALID_PARAMS, str(error))
        case InputUnavailable() if era == "modern" and error.capability:
            return RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, str(error), {"requiredCapabilities": nested_capability(error.capability)})
        case Rejected() if _relays_code(error.code, era):
            return RpcError(error.code, str(error), error.data)
        case PolicyDenied(rule=scopes.RULE):
            return RpcError(INVALID_PARAMS, str(error), {"error": "insufficient_scope"})
        case GatewayError():
            if isinstance(error, StorageUnusable):
                logger.warning("request refused reason=storage error=%s", error)
            return RpcError(INTERNAL_ERROR, text_for_caller(error))
        case _:
            logger.error("request failed reason=unexpected-exception", exc_info=error)
            return RpcError(INTERNAL_ERROR, "Internal error")


def _relays_code(code: int, era: Era) -> bool:
    """Whether a remote server's JSON-RPC error with this code is relayed, with its message and data, to clients of protocol era `era`."""
    return code in _RELAYED_CODES and not (code in _MODERN_ONLY and era == "legacy") and not (code in _LEGACY_ONLY and era == "modern")
