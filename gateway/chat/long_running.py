"""Background responses: their status, and the continuation token with which a later call reads them.

An unfinished response carries a continuation token; a finished one does not. A call with the option `continuation_token` returns the
current state or streams the rest. The token is opaque plain JSON: store it with the conversation and pass it to the client that made it.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, cast

from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonMapping
from gateway.types.options import ChatOptions

STATUS = "status"
"""Key in a response's additional properties: a `LongRunningStatus`, or the provider's own status."""

LongRunningStatus = Literal[
    "queued",
    "in_progress",
    "completed",
    "cancelled",
    "failed",
    "requires_action",
    "expired",
    "rejected",
    "auth_required",
    "input_required",
    "unknown",
]
"""State of a background response or of another long-running run of an agent."""

_OTHER_WORDS = {
    "canceled": "cancelled",
    "cancelling": "in_progress",
    "submitted": "queued",
    "working": "in_progress",
    "running": "in_progress",
    "incomplete": "completed",
    "succeeded": "completed",
    "action_required": "requires_action",
}
"""Names that providers and protocols use → our name of the same state."""

UNFINISHED = frozenset({"queued", "in_progress"})
"""States of work that is not finished."""


class OpenAIContinuationToken(TypedDict):
    """Position in a background response of the Responses API."""

    response_id: str
    sequence_number: NotRequired[int]
    """Last event of the stream that the caller has received."""


def to_status(label: object) -> str:
    """Convert a provider's status to a `LongRunningStatus`; an unknown status is returned in lower case with underscores."""
    if not isinstance(label, str) or not label:
        return "unknown"
    plain = label.lower().replace("-", "_").replace(" ", "_")
    return _OTHER_WORDS.get(plain, plain)


def token_of(options: ChatOptions) -> OpenAIContinuationToken | None:
    """Return the continuation token of the options, or `None`.

    Raises:
        ChatClientInvalidRequestException: The option `continuation_token` is not a token of the Responses API.
    """
    given = cast("JsonMapping", options).get("continuation_token")
    return None if given is None else to_token(given)


def to_token(given: object) -> OpenAIContinuationToken:
    """Return a continuation token that a caller passed, after checking its form.

    Raises:
        ChatClientInvalidRequestException: The value is not a token of the Responses API.
    """
    token: JsonMapping = cast("JsonMapping", given) if isinstance(given, dict) else cast("JsonMapping", {})
    response_id, sequence = token.get("response_id"), token.get("sequence_number")
    if not isinstance(response_id, str) or not response_id or "/" in response_id:
        raise ChatClientInvalidRequestException("The continuation token is not from this client: it names no response.")
    found = OpenAIContinuationToken(response_id=response_id)
    if isinstance(sequence, int):
        found["sequence_number"] = sequence
    return found
