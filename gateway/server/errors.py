"""The one ladder from our exceptions to wire errors. Handlers raise what it makes; `build` hands it to the SDK.

A tool's failure is a result, made by the gate; what arrives here are unknown names, malformed requests and the
failures of reads, prompts and completion. Internals never reach the wire: an unexpected exception is logged and
becomes "Internal error".
"""

from __future__ import annotations

import logging

from gateway.errors import (
    AnswerRefused,
    AskUnavailable,
    GatewayError,
    NotFound,
    PolicyDenied,
    StorageUnusable,
    UpstreamRefused,
    text_for_caller,
)
from gateway.policy import scopes
from gateway.protocol import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, RpcError
from gateway.tools.context import Era, nested_capability

logger = logging.getLogger(__name__)

LEGACY_RESOURCE_NOT_FOUND = -32002
"""Legacy clients know a missing resource by this code; the modern spec moved it to -32602."""

_RELAYED_CODES = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, -32042})
"""Codes of a remote server that mean the same to our client, so they pass with their message and data."""

_MODERN_ONLY = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY})
_LEGACY_ONLY = frozenset({-32042})


def to_rpc_error(error: Exception, era: Era) -> RpcError:
    """The wire error for an exception that reached the protocol boundary."""
    match error:
        case RpcError():
            return error
        case NotFound(kind="resource"):
            code = LEGACY_RESOURCE_NOT_FOUND if era == "legacy" else INVALID_PARAMS
            return RpcError(code, f"Resource not found: {error.name}", {"uri": error.name})
        case AnswerRefused():
            return RpcError(INVALID_PARAMS, str(error))
        case NotFound():
            return RpcError(INVALID_PARAMS, str(error))
        case AskUnavailable() if era == "modern" and error.capability:
            return RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, str(error), {"requiredCapabilities": nested_capability(error.capability)})
        case UpstreamRefused() if relays_code(error.code, era):
            return RpcError(error.code, str(error), error.data)
        case PolicyDenied(rule=scopes.RULE):
            return RpcError(INVALID_PARAMS, str(error), {"error": "insufficient_scope"})
        case GatewayError():
            if isinstance(error, StorageUnusable):
                logger.warning("a request was refused: %s", error)
            return RpcError(INTERNAL_ERROR, text_for_caller(error))
        case _:
            logger.error("unexpected failure of a request", exc_info=error)
            return RpcError(INTERNAL_ERROR, "Internal error")


def relays_code(code: int, era: Era) -> bool:
    """Whether a remote server's error code passes to a client of `era` as it is."""
    return code in _RELAYED_CODES and not (code in _MODERN_ONLY and era == "legacy") and not (code in _LEGACY_ONLY and era == "modern")
