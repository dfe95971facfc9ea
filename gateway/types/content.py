"""`Content`: one piece of a message, whatever its kind.

One class with a `type` instead of a class per kind, so a kind that this version does not know is carried
through a round trip untouched. Provider neutral: the chat clients translate to and from their wires.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.usage import UsageDetails, add_usage_details

USER_INPUT_TYPES = frozenset({"function_approval_request", "oauth_consent_request", "user_input_request"})
"""Kinds that end a run because a person has to answer first."""


@dataclass(slots=True, kw_only=True)
class Content:
    """One piece of a message. Which fields are set depends on `type`; make one with a `from_…` constructor.

    Kinds with fields of their own: `text`, `text_reasoning`, `data`, `uri`, `error`, `function_call`,
    `function_result`, `usage`, `hosted_file`, `function_approval_request`, `function_approval_response`.
    """

    type: str
    id: str | None = None
    """Pairs an approval request with its response."""
    text: str | None = None
    protected_data: str | None = None
    """Encrypted reasoning, only good for handing back to the provider that made it."""
    uri: str | None = None
    """Where the content is; of kind `data`, the content itself as a `data:` URI."""
    media_type: str | None = None
    call_id: str | None = None
    """Pairs a function call with its result."""
    name: str | None = None
    arguments: str | JsonObject | None = None
    """Of a call: as the model wrote them (JSON text), or decoded."""
    result: JsonValue = None
    """What the model sees of a function's outcome."""
    items: list[Content] | None = None
    """A function result's pieces, where it is more than text."""
    exception: str | None = None
    """What really went wrong in a function; kept apart from `result`, which the model sees."""
    message: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    usage_details: UsageDetails | None = None
    file_id: str | None = None
    function_call: Content | None = None
    """The call that an approval is about."""
    approved: bool | None = None
    annotations: list[JsonObject] | None = None
    """Citations: `{"type": "citation", "title", "url", …}`, every key optional."""
    additional_properties: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    unknown: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Keys that this version has no field for; written back as they came."""
    raw_representation: object = field(default=None, compare=False, repr=False)

    @classmethod
    def from_text(cls, text: str, *, annotations: list[JsonObject] | None = None) -> Content:
        """Plain text."""
        return cls(type="text", text=text, annotations=annotations)

    @classmethod
    def from_text_reasoning(cls, text: str = "", *, id: str | None = None, protected_data: str | None = None) -> Content:
        """A model's reasoning; `id` is the provider's, for handing it back."""
        return cls(type="text_reasoning", text=text, id=id, protected_data=protected_data)

    @classmethod
    def from_data(cls, data: bytes, media_type: str) -> Content:
        """Bytes, carried inline."""
        return cls(type="data", uri=f"data:{media_type};base64,{base64.b64encode(data).decode()}", media_type=media_type)

    @classmethod
    def from_uri(cls, uri: str, *, media_type: str | None = None) -> Content:
        """Something elsewhere, or inline when `uri` is a `data:` URI."""
        inline = uri.startswith("data:")
        if inline and media_type is None:
            media_type = uri[5:].split(",", 1)[0].split(";", 1)[0] or "text/plain"
        return cls(type="data" if inline else "uri", uri=uri, media_type=media_type)

    @classmethod
    def from_error(cls, message: str, *, error_code: str | None = None, error_details: str | None = None) -> Content:
        """A failure that the provider reported inside its answer, such as a refusal."""
        return cls(type="error", message=message, error_code=error_code, error_details=error_details)

    @classmethod
    def from_function_call(cls, call_id: str, name: str, *, arguments: str | JsonObject | None = None) -> Content:
        """A model's wish to call a function."""
        return cls(type="function_call", call_id=call_id, name=name, arguments=arguments)

    @classmethod
    def from_function_result(
        cls, call_id: str, *, result: JsonValue = None, exception: str | None = None, items: list[Content] | None = None
    ) -> Content:
        """A function's outcome: `result` is for the model, `exception` for us."""
        return cls(type="function_result", call_id=call_id, result=result, exception=exception, items=items)

    @classmethod
    def from_usage(cls, usage_details: UsageDetails) -> Content:
        """Token counts, as streaming providers send them at the end."""
        return cls(type="usage", usage_details=usage_details)

    @classmethod
    def from_function_approval_request(cls, id: str, function_call: Content) -> Content:
        """A call that waits for a person's consent."""
        return cls(type="function_approval_request", id=id, function_call=function_call)

    def to_function_approval_response(self, approved: bool) -> Content:
        """The answer to this approval request."""
        return Content(type="function_approval_response", id=self.id, function_call=self.function_call, approved=approved)

    @property
    def user_input_request(self) -> bool:
        """Whether a person has to answer this before the run can go on."""
        return self.type in USER_INPUT_TYPES

    def parse_arguments(self) -> JsonObject:
        """A call's arguments as an object; absent or empty ones are `{}`.

        Raises:
            ValueError: They are not a JSON object.
        """
        if isinstance(self.arguments, dict):
            return self.arguments
        if not self.arguments or not self.arguments.strip():
            return {}
        decoded: object = json.loads(self.arguments)
        if not isinstance(decoded, dict):
            raise ValueError(f"arguments must be a JSON object, not {type(decoded).__name__}")
        return cast("JsonObject", decoded)

    def to_dict(self) -> JsonObject:
        """JSON form; `from_dict` reads it back. Unset fields are left out."""
        data: JsonObject = dict(self.unknown)
        for spec in fields(self):
            value: JsonValue = getattr(self, spec.name)
            if value is None or spec.name in ("unknown", "raw_representation") or (spec.name == "additional_properties" and not value):
                continue
            if isinstance(value, Content):
                value = value.to_dict()
            elif spec.name == "items":
                value = [item.to_dict() for item in cast("list[Content]", value)]
            data[spec.name] = value
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Content:
        """Read JSON form, including kinds and keys that this version does not know.

        Raises:
            ValueError: There is no `type`.
        """
        if not isinstance(data.get("type"), str):
            raise ValueError("content needs a 'type'")
        known: JsonObject = {key: value for key, value in data.items() if key in _FIELDS}
        unknown: JsonObject = {key: value for key, value in data.items() if key not in _FIELDS}
        if isinstance(known.get("function_call"), Mapping):
            known["function_call"] = cls.from_dict(known["function_call"])
        if isinstance(known.get("items"), list):
            known["items"] = [cls.from_dict(item) for item in known["items"]]
        return cls(**known, unknown=unknown)


_FIELDS = frozenset(spec.name for spec in fields(Content)) - {"unknown", "raw_representation"}


def to_contents(contents: Sequence[Content | str | JsonMapping]) -> list[Content]:
    """Contents from what callers write: a string is text, a mapping is JSON form."""
    result: list[Content] = []
    for item in contents:
        if isinstance(item, Content):
            result.append(item)
        elif isinstance(item, str):
            result.append(Content.from_text(item))
        else:
            result.append(Content.from_dict(item))
    return result


def fold_contents(contents: list[Content], more: Sequence[Content]) -> None:
    """Append streamed pieces to `contents`, joining what belongs together.

    Neighbouring text joins text, reasoning joins reasoning of the same id, and a call's argument fragments
    join the call of the same `call_id` (an empty id means the latest one).
    """
    for piece in more:
        target = _joinable(contents, piece)
        if target is None:
            contents.append(piece)
        elif piece.type == "function_call":
            target.name = target.name or piece.name
            if isinstance(piece.arguments, str):
                target.arguments = (target.arguments if isinstance(target.arguments, str) else "") + piece.arguments
            target.additional_properties.update(piece.additional_properties)
        elif piece.type == "usage":
            target.usage_details = add_usage_details(target.usage_details, piece.usage_details)
        else:
            target.text = (target.text or "") + (piece.text or "")
            target.id = target.id or piece.id
            target.protected_data = piece.protected_data or target.protected_data
            if piece.annotations:
                target.annotations = [*(target.annotations or []), *piece.annotations]


def _joinable(contents: list[Content], piece: Content) -> Content | None:
    if piece.type == "function_call":
        return next((c for c in reversed(contents) if c.type == "function_call" and (not piece.call_id or c.call_id == piece.call_id)), None)
    last = contents[-1] if contents else None
    if last is None or last.type != piece.type:
        return None
    if piece.type == "text_reasoning":
        return last if not piece.id or not last.id or last.id == piece.id else None
    return last if piece.type in ("text", "usage") else None
