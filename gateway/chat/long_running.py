"""Responses that outlive the call that started them: their status, and the token they are picked up with.

A response that is still being made carries a continuation token; a call with the option `continuation_token` asks how it
stands, or streams what is left; a response without one is done (requirements LR2, LR3). The token is opaque to callers:
plain JSON, to be kept beside the conversation and given back to the client that made it.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, cast

from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonMapping
from gateway.types.options import ChatOptions

STATUS = "status"
"""Key in the additional properties of a response: how it stands, as `LongRunningStatus`, or the provider's own word."""

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
"""How long-running work stands (requirements LR6)."""

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
"""What providers and protocols call the same."""

UNFINISHED = frozenset({"queued", "in_progress"})
"""There is more to come."""


class OpenAIContinuationToken(TypedDict):
    """Where a background response of the Responses API stands."""

    response_id: str
    sequence_number: NotRequired[int]
    """The last event of a stream that need not be sent again."""


def to_status(label: object) -> str:
    """A provider's word for how work stands, as `LongRunningStatus`; one that nobody knows stays as it is."""
    if not isinstance(label, str) or not label:
        return "unknown"
    plain = label.lower().replace("-", "_").replace(" ", "_")
    return _OTHER_WORDS.get(plain, plain)


def token_of(options: ChatOptions) -> OpenAIContinuationToken | None:
    """The continuation token among the options.

    Raises:
        ChatClientInvalidRequestException: It is no token of the Responses API.
    """
    given = cast("JsonMapping", options).get("continuation_token")
    return None if given is None else to_token(given)


def to_token(given: object) -> OpenAIContinuationToken:
    """A caller's token, checked.

    Raises:
        ChatClientInvalidRequestException: It is no token of the Responses API.
    """
    token: JsonMapping = cast("JsonMapping", given) if isinstance(given, dict) else cast("JsonMapping", {})
    response_id, sequence = token.get("response_id"), token.get("sequence_number")
    if not isinstance(response_id, str) or not response_id or "/" in response_id:
        raise ChatClientInvalidRequestException("The continuation token is none of this client's: it names no response.")
    found = OpenAIContinuationToken(response_id=response_id)
    if isinstance(sequence, int):
        found["sequence_number"] = sequence
    return found
