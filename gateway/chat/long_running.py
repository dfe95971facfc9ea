"""Background responses, which a provider generates without an open connection: their status, and the tokens with which they are read.

An unfinished response has a continuation token; a finished response has none. A model call with the option `continuation_token` returns the
current state of the response or streams the rest. The token is plain JSON that programs should not interpret: store it with the
conversation, and pass it to the client that created it.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict, cast

from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonMapping, members_of
from gateway.types.options import ChatOptions

STATUS = "status"
"""Key in the additional properties of a response. The value is a status such as `queued`, or one that only the provider defines."""

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
"""Status names of providers and protocols → Moongate's name for the same status."""

UNFINISHED = frozenset({"queued", "in_progress"})
"""The statuses of a background response that is not finished."""


class OpenAIContinuationToken(TypedDict):
    """Position in a background response of OpenAI's Responses API, from which its stream can be resumed."""

    response_id: str
    sequence_number: NotRequired[int]
    """Number of the event after which the stream is resumed; if it is missing, the stream is resumed from its start."""


def to_status(label: object) -> str:
    """Convert a provider's status to Moongate's name for it. An unknown status is returned in lower case with underscores,
    and `unknown` if the provider sent none.
    """
    if not isinstance(label, str) or not label:
        return "unknown"
    plain = label.lower().replace("-", "_").replace(" ", "_")
    return _OTHER_WORDS.get(plain, plain)


def token_of(options: ChatOptions) -> OpenAIContinuationToken | None:
    """Return the continuation token in the options of a model call, or `None` without one.

    Raises:
        ChatClientInvalidRequestException: The option `continuation_token` is not a token of the Responses API.
    """
    given = cast("JsonMapping", options).get("continuation_token")
    return None if given is None else to_token(given)


def to_token(given: object) -> OpenAIContinuationToken:
    """Check a continuation token that a caller passed, and return it.

    Raises:
        ChatClientInvalidRequestException: The value is not a token of the Responses API.
    """
    token = members_of(given)
    response_id, sequence = token.get("response_id"), token.get("sequence_number")
    if not isinstance(response_id, str) or not response_id or "/" in response_id:
        raise ChatClientInvalidRequestException("The continuation token is not from this client: it names no response.")
    found = OpenAIContinuationToken(response_id=response_id)
    if isinstance(sequence, int):
        found["sequence_number"] = sequence
    return found
