"""Headers that repeat what a request holds: as the SDK makes them."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.shared import inbound

from gateway.upstream.param_headers import encode_header_value, marked_headers, param_headers


def deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


REGION: dict[str, Any] = {"type": "string", "x-mcp-header": "Region"}
SCHEMAS: list[Any] = [
    {},
    {"properties": {"region": REGION}},
    {"properties": {"region": REGION, "other": {"type": "integer", "x-mcp-header": "Other"}}},
    {"properties": {"where": {"type": "object", "properties": {"region": REGION, "": {**REGION, "x-mcp-header": "Empty"}}}}},
    {"properties": {"region": {**REGION, "type": "boolean"}}, "default": {"x-mcp-header": "no schema"}, "enum": [{"x-mcp-header": 1}]},
    {"properties": {"region": REGION, "again": {**REGION, "x-mcp-header": "region"}}},
    {"properties": {"region": {**REGION, "type": "number"}}},
    {"properties": {"region": {**REGION, "type": ["string", "null"]}}},
    {"properties": {"region": {"x-mcp-header": "Region"}}},
    {"properties": {"region": {**REGION, "x-mcp-header": ""}}},
    {"properties": {"region": {**REGION, "x-mcp-header": "a b"}}},
    {"properties": {"region": {**REGION, "x-mcp-header": "a\n"}}},
    {"properties": {"region": {**REGION, "x-mcp-header": 10**5_000}}},
    {**REGION},
    {"properties": [REGION], "anyOf": {"a": REGION}, "$ref": REGION, "items": [REGION]},
    *({keyword: REGION} for keyword in ("items", "not", "if", "contentSchema", "additionalProperties")),
    *({keyword: [{}, REGION]} for keyword in ("allOf", "anyOf", "oneOf", "prefixItems")),
    *({keyword: {"a": REGION}} for keyword in ("$defs", "definitions", "patternProperties", "dependentSchemas")),
    {"properties": {"list": {"type": "array", "items": {"properties": {"region": REGION}}}}},
    deep(),
]


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_schema_headers_are_those_the_sdk_finds_or_both_reject_it(number: int) -> None:
    schema = SCHEMAS[number]
    theirs = None if inbound.find_invalid_x_mcp_header(schema) is not None else inbound.x_mcp_header_map(schema)
    assert marked_headers(schema) == theirs


VALUES: list[Any] = [
    "eu", "", " ", " eu", "eu ", "e u", "\teu", "ü", "a\r\nb: c", "\x7f", "=?base64?ZXU=?=", "=?base64?", True, False, 0, -1,
    1.5, None, [], {}, 10**5_000,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_argument_is_copied_to_a_header_as_the_sdk_copies_it(number: int) -> None:
    value = VALUES[number]
    marked = {("a",): "One", ("b", "c"): "Two"}
    for arguments in ({"a": value}, {"b": {"c": value}}, {"b": value}, {"a": 1, "b": {"c": value}}):
        assert param_headers(marked, arguments) == inbound.mcp_param_headers(marked, arguments)
    if isinstance(value, str):
        assert encode_header_value(value) == inbound.encode_header_value(value)
