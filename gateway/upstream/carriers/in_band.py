"""Encodes a failed request (`RequestFailure`) as a JSON-RPC error and decodes it again, to pass the failure through the MCP SDK.

The HTTP transport below the SDK (`sdk_http_transport`) must not raise, so it returns a response with the encoded failure to the SDK, and
`sdk_carrier` above the SDK decodes it. The error contains a marker that is random for each process, so that a server cannot forge it.
"""

from __future__ import annotations

import secrets

from gateway.errors import (
    Busy,
    Forbidden,
    Malformed,
    NotSent,
    OutcomeUnknown,
    RequestFailure,
    SessionGone,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from gateway.json_types import JsonMapping
from gateway.protocol import INTERNAL_ERROR, RpcError

_MARKER = secrets.token_hex(16)
_TYPES = {kind.__name__: kind for kind in (Forbidden, Malformed, NotSent, OutcomeUnknown, SessionGone, TooLarge, Unauthorized, Unreachable)}


def to_rpc_error(failure: RequestFailure) -> RpcError:
    """Encode a failure (other than `Rejected`) as a JSON-RPC error, which the SDK passes unchanged from transport to carrier."""
    seconds = failure.retry_after_seconds if isinstance(failure, Busy) else None
    kind = next((name for name, each in _TYPES.items() if type(failure) is each), NotSent.__name__)
    return RpcError(INTERNAL_ERROR, str(failure), {"marker": _MARKER, "failure": kind, "retryAfter": seconds})


def from_rpc_error(error: RpcError, server: str) -> RequestFailure | None:
    """Decode the failure that `to_rpc_error` encoded as a JSON-RPC error. Return `None` if the error came from the server."""
    data: JsonMapping | None = error.data  # may have any type; checked below
    if not isinstance(data, dict) or data.get("marker") != _MARKER:
        return None
    if isinstance(seconds := data["retryAfter"], float):
        return Busy(error.message, server=server, retry_after_seconds=seconds)
    return _TYPES[data["failure"]](error.message, server=server)
