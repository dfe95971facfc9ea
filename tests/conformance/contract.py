"""What the official suite expects of a server under test: names, texts and schemas, as data.

The suite (`@modelcontextprotocol/conformance`) looks these up by name, so none of them may change. `upstream` serves them.
"""

from __future__ import annotations

import base64
from typing import Any

ROUND = "test_input_required_result_"
"""Start of the names of everything that asks back in rounds (SEP-2322)."""

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000a49444154789c6300010000050001"
        "0d0a2db40000000049454e44ae426082"
    )
).decode()
"""A picture of one pixel."""

WAV = base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data\0\0\0\0").decode()
"""A sound of no length."""


def shape(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}


STRING = {"type": "string"}
NOTHING = shape()
NAME = shape("name", name=STRING)
COLOR = shape("color", color=STRING)
CONFIRMED = shape("ok", ok={"type": "boolean"})
CONTEXT = shape("context", context=STRING)

DEFAULTS = shape(
    name={**STRING, "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={**STRING, "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
"""A form with a default of every primitive kind (SEP-1034)."""

_CHOICES = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
ENUMS = shape(
    untitledSingle={**STRING, "enum": ["option1", "option2", "option3"]},
    titledSingle={**STRING, "oneOf": _CHOICES},
    legacyEnum={**STRING, "enum": ["opt1", "opt2"], "enumNames": ["Option one", "Option two"]},
    untitledMulti={"type": "array", "items": {**STRING, "enum": ["option1", "option2", "option3"]}},
    titledMulti={"type": "array", "items": {"anyOf": _CHOICES}},
)
"""A form with every way to write a choice (SEP-1330)."""

DIALECT_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"address": {"$anchor": "address", "type": "object", "properties": {"street": STRING, "city": STRING}}},
    "type": "object",
    "properties": {"name": STRING, "address": {"$ref": "#/$defs/address"}, "phone": STRING, "contact": {"enum": ["phone", "mail"]}},
    "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["address"]}]}],
    "if": {"properties": {"contact": {"const": "phone"}}, "required": ["contact"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["address"]},
    "additionalProperties": False,
}
"""One keyword of every family that a relay may lose: dialect, definitions with an anchor, composition, a condition, a closed object."""

TEXT_RESOURCES = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "Watched resource content",
}
BINARY_RESOURCE = "test://static-binary"
TEMPLATE = "test://template/{id}/data"

PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    f"{ROUND}prompt": (),
}
"""Prompt → names of its arguments."""
