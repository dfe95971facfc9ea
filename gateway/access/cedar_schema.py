"""Generates the Cedar schema of a gateway from the input schemas of its tools, and validates policies against it.

Each tool `SOURCE/NAME` is an action in the action `call`, with the types of its arguments as `context.arguments`. A policy that names only
tools of sources whose tools are not known yet is not validated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.access.cedar_files import CedarPolicy, load_cedarpy
from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of

Tools = Mapping[str, Mapping[str, JsonValue]]
"""Id of a source → name of a tool at the source → its input schema. Sources whose tools are not known are missing."""

MAX_DEPTH = 8
"""Maximum nesting of arguments in the schema. Deeper arguments have no type, so a policy that reads them is not valid."""

_STRING: JsonObject = {"type": "EntityOrCommon", "name": "String"}
_STRINGS: JsonObject = {"type": "Set", "element": _STRING}
_SCALARS: Mapping[str, JsonObject] = {
    "string": _STRING,
    "integer": {"type": "EntityOrCommon", "name": "Long"},
    "boolean": {"type": "EntityOrCommon", "name": "Bool"},
    "number": {"type": "EntityOrCommon", "name": "decimal"},
}
_POLICY_ID = re.compile(r"for policy `[^`]*`,? ?")


@dataclass(frozen=True, slots=True)
class CedarFault:
    """An error in a policy, found by comparing it with the schema."""

    policy: str
    """Id of the policy: file and line."""
    text: str


def build_schema(tools: Tools) -> JsonObject:
    """Return the Cedar schema, in Cedar's JSON form, for tools."""
    actions: JsonObject = {
        "call": {"appliesTo": _applies_to("Tool", {"arguments": {**_shape({}), "required": True}})},
        "read": {"appliesTo": _applies_to("Resource", {})},
        "get": {"appliesTo": _applies_to("Prompt", {})},
    }
    for source, listed in tools.items():
        for name, schema in listed.items():
            arguments = _record(as_object(schema) or {}, as_object(schema) or {}, 0)
            context: JsonObject = {"arguments": {**arguments, "required": True}}
            actions[f"{source}/{name}"] = {"memberOf": [{"id": "call"}], "appliesTo": _applies_to("Tool", context)}
    scopes: JsonObject = {"scopes": {**_STRINGS, "required": False}}
    user = {**dict.fromkeys(("issuer", "subject", "client", "tenant"), _STRING), "groups": _STRINGS, **scopes}
    item: JsonObject = {"memberOfTypes": ["Source"], "shape": _shape({"source": _STRING, "name": _STRING})}
    entities: JsonObject = {
        "Group": {},
        "Source": {},
        "Local": {},
        "User": {"memberOfTypes": ["Group"], "shape": _shape(user)},
        "Key": {"shape": _shape({"name": _STRING, **scopes})},
        **dict.fromkeys(("Tool", "Resource", "Prompt"), item),
    }
    return {"": {"entityTypes": entities, "actions": actions}}


def _applies_to(resource: str, context: JsonObject) -> JsonObject:
    return {"principalTypes": ["User", "Key"], "resourceTypes": [resource], "context": _shape(context)}


def _shape(attributes: Mapping[str, JsonValue]) -> JsonObject:
    return {"type": "Record", "attributes": dict(attributes)}


def _record(node: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    required = items_of(node.get("required"))
    attributes: JsonObject = {}
    for name, child in members_of(node.get("properties")).items():
        kind = _type_of(as_object(child) or {}, root, depth + 1)
        if kind is not None:
            attributes[name] = {**kind, "required": name in required}
    return _shape(attributes)


def _type_of(node: JsonObject, root: JsonObject, depth: int) -> JsonObject | None:
    """Return the Cedar type for a JSON Schema; `None` if it has none, such as for several JSON types."""
    node = _resolved(node, root)
    if depth > MAX_DEPTH:
        return None
    named = node.get("type")
    kinds = [kind for kind in (items_of(named) if isinstance(named, list) else [named]) if kind != "null"]
    if kinds == [None] and (values := items_of(node.get("enum"))):
        kinds = ["string"] if all(isinstance(value, str) for value in values) else []
    if len(kinds) != 1:
        return None
    kind = str(kinds[0])
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        element = _type_of(as_object(node.get("items")) or {}, root, depth + 1)
        return None if element is None else {"type": "Set", "element": element}
    return _record(node, root, depth) if kind == "object" else None


def _resolved(node: JsonObject, root: JsonObject) -> JsonObject:
    """Return the schema that a local `$ref` names, or the schema itself."""
    for _ in range(MAX_DEPTH):
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return node
        found: JsonValue = root
        for part in reference[2:].split("/"):
            found = members_of(found).get(part.replace("~1", "/").replace("~0", "~"))
        node = as_object(found) or {}
    return {}


def validate(policies: Sequence[CedarPolicy], tools: Tools) -> list[CedarFault]:
    """Return the errors in policies, by the schema for `tools`, in the order of the policies. Blocks for long sets.

    Policies about tools of sources that `tools` lacks are skipped, and so are conditions on arguments that such a tool may have.
    """
    judged = [policy for policy in policies if not _waits(policy, tools)]
    if not judged:
        return []
    cedarpy = load_cedarpy()
    result = cedarpy.validate_policies("\n".join(policy.text for policy in judged), json.dumps(build_schema(tools)))
    ids = {f"policy{number}": policy.id for number, policy in enumerate(judged)}
    faults = [CedarFault(ids.get(error.policy_id, ""), _POLICY_ID.sub("", error.error)) for error in result.errors]
    return list(dict.fromkeys(faults))


def _waits(policy: CedarPolicy, tools: Tools) -> bool:
    """Return whether a policy can only be validated when more sources have listed their tools."""
    named = [as_object(policy.action.get("entity")), *(as_object(one) for one in items_of(policy.action.get("entities")))]
    of_tools = [str(entity["id"]) for entity in named if entity is not None and "/" in str(entity.get("id"))]
    if of_tools:
        return any(action.partition("/")[0] not in tools for action in of_tools)
    return policy.reads_context and not tools
