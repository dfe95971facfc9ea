"""Completes a value rule for one argument of one tool: implied types, faults, and the form published to clients.

JSON Schema ignores a keyword for another type than the value's, so `{"pattern": "^docs/"}` alone accepts every list and object. Here a
keyword about text implies that the value is text, and a rule about text applies to each element of an argument that is a list of text.
Used by `policy.argument_policy`, which compiles the completed rule, and by `policy.lint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, members_of
from gateway.policy.rule_words import SCHEMES_WORD, WORDS, read_word
from gateway.policy.schema_types import ALL_TYPES, declared_schema, element_types, types_of

KEYWORDS_OF_TYPES: dict[str, frozenset[str]] = {
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}) | WORDS,
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({
        "items", "prefixItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems",
        "unevaluatedItems",
    }),
    "object": frozenset({
        "properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    }),
}  # fmt: skip
"""Type → keywords that judge only values of this type."""

ANY_TYPE_KEYWORDS = frozenset({"type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})

_SILENT = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs", "definitions",
    "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
"""Keywords that never reject a value, such as `title`."""

DEMANDING = ANY_TYPE_KEYWORDS.union(*KEYWORDS_OF_TYPES.values())
"""All keywords that can reject a value: those of JSON Schema 2020-12, and the rule words."""

_SAYS_TYPE = frozenset({"type", "enum", "const"})
_SCALARS = frozenset({"string", "number"})

_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas"})
_PARTS = frozenset({"properties", "patternProperties", "additionalProperties", "items", "prefixItems"})
_REVERSIBLE = frozenset({"not", "if", "contains", "oneOf", "propertyNames", "unevaluatedProperties", "unevaluatedItems"})
"""Keywords under which a narrower schema can accept more, or under which the validator may skip a value. Rule words reject every ambiguous
spelling, so `not` before a word would accept exactly the ambiguous ones."""

_WITH_CHILDREN = _SAME_VALUE | _PARTS | _REVERSIBLE
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})

_MAX_DEPTH = 64
"""Maximum nesting of a value rule; a deeper rule is unusable."""


@dataclass(frozen=True, slots=True)
class ConfinedRule:
    """A value rule, completed for one argument of one tool."""

    judged: JsonObject
    """The rule for the validator: implied types are added, and rule words such as `within` stay keywords."""
    published: JsonObject
    """The rule for clients in plain JSON Schema: each rule word is replaced by a description in words."""


# -- faults --------------------------------------------------------------------------------------------------------


def find_fault(rule: JsonObject) -> str | None:
    """Return why a value rule cannot be applied, as the end of a sentence that starts with the rule; or `None`."""
    return _fault(rule, reversible_by=None, depth=0)


def _fault(node: JsonObject, *, reversible_by: str | None, depth: int) -> str | None:
    if depth > _MAX_DEPTH:
        return f"is nested deeper than {_MAX_DEPTH} levels"
    for keyword in node:
        if keyword not in DEMANDING and keyword not in _SILENT and keyword != SCHEMES_WORD and not keyword.startswith("x-"):
            close = get_close_matches(keyword, sorted(DEMANDING | {SCHEMES_WORD}), 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            return f"uses {keyword!r}{hint}, which is neither a keyword of JSON Schema nor a rule word"
    if SCHEMES_WORD in node and "oneOfHosts" not in node:
        return "has `schemes` without `oneOfHosts`; add the hosts, or [\"*\"] for any host name"
    for word in sorted(WORDS & node.keys()):
        if reversible_by is not None:
            return f"uses {word!r} under {reversible_by!r}, which can invert it; write it at the top, or under `items` or `properties`"
        if "type" in node and "string" not in types_of({"type": node["type"]}, node):
            return f"uses {word!r} beside a `type` without \"string\"; for the elements of a list write it under `items`"
        try:
            read_word(word, node)
        except ValueError as error:
            return str(error)
    for keyword, child in _children(node):
        inner = keyword if keyword in _REVERSIBLE else reversible_by
        problem = _fault(child, reversible_by=inner, depth=depth + 1)
        if problem is not None:
            return problem
    return None


def _children(node: JsonMapping) -> Iterator[tuple[str, JsonObject]]:
    """Yield every direct subschema of `node`, with the keyword under which it is."""
    for keyword, value in node.items():
        if keyword not in _WITH_CHILDREN:
            continue
        listed = cast("list[JsonValue]", value) if isinstance(value, list) else [value]
        for child in members_of(value).values() if keyword in _MAPS else listed:
            found = as_object(child)
            if found is not None:
                yield keyword, found


# -- types ---------------------------------------------------------------------------------------------------------


def confine(name: str, rule: JsonObject, schema: JsonObject) -> ConfinedRule:
    """Complete a valid rule for argument `name` of a tool with input `schema`.

    A keyword for one type implies this type, unless the rule contains `type`, `enum` or `const`. `null` is accepted only if the tool's
    schema names it, because there it means "not given". For a list of text (numbers), a rule about text (numbers) applies to each
    element and its list keywords apply to the list; other lists are rejected.
    """
    declared = declared_schema(schema, name)
    admitted = types_of(declared, schema)
    nullable = "null" in admitted and admitted != ALL_TYPES
    scalars = kinds_of(rule) & _SCALARS
    elements = element_types(declared, schema) - {"null"}
    if not _SAYS_TYPE.isdisjoint(rule) or not scalars or not elements or not elements <= scalars:
        judged = _complete(rule, nullable=nullable)
        return ConfinedRule(judged, _published(_without_said_type(judged, rule, admitted)))
    of_list: JsonObject = {key: value for key, value in rule.items() if key in KEYWORDS_OF_TYPES["array"]}
    element = _complete({key: value for key, value in rule.items() if key not in of_list}, nullable=False)
    own = as_object(of_list.get("items"))
    listed: JsonObject = {**of_list, "type": ["array", "null"] if nullable else "array"}
    listed["items"] = element if own is None else {"allOf": [_complete(own, nullable=False), element]}
    if admitted & scalars:
        judged: JsonObject = {"anyOf": [element, listed]}
        return ConfinedRule(judged, _published(judged) if of_list else _described(element, judged, "Must be {0}, or a list of these."))
    if own is not None:
        return ConfinedRule(listed, _published(listed))
    return ConfinedRule(listed, {**of_list, **_described(element, listed, "Each element must be {0}.")})


def kinds_of(node: JsonMapping) -> frozenset[str]:
    """Return the types that a rule's keywords concern, including keywords under `not`."""
    found = {kind for kind, keywords in KEYWORDS_OF_TYPES.items() if not keywords.isdisjoint(node)}
    negated = as_object(node.get("not"))
    if negated is not None:
        found |= kinds_of(negated)
        for keyword, child in _children(negated):
            if keyword in _SAME_VALUE:
                found |= kinds_of(child)
    return frozenset(found)


def _complete(node: JsonObject, *, nullable: bool) -> JsonObject:
    """Return `node` with implied types added, also in subschemas where a stricter subschema makes the whole rule stricter."""

    def below(keyword: str, child: JsonObject) -> JsonObject:
        return _complete(child, nullable=nullable and keyword in _SAME_VALUE)

    result = _with_children(node, _SAME_VALUE | _PARTS, below)
    if _SAYS_TYPE.isdisjoint(node):
        kinds = kinds_of(node)
        implied = sorted(kinds | {"null"}) if kinds and nullable else sorted(kinds)
        if implied:
            result["type"] = implied[0] if len(implied) == 1 else cast("JsonValue", implied)
    return result


def _with_children(node: JsonObject, keywords: frozenset[str], change: Callable[[str, JsonObject], JsonObject]) -> JsonObject:
    """Return a copy of `node` in which `change` replaces each subschema under `keywords`."""
    result = dict(node)

    def changed(keyword: str, child: JsonValue) -> JsonValue:
        found = as_object(child)
        return child if found is None else change(keyword, found)

    for keyword in keywords & node.keys():
        value = node[keyword]
        if keyword in _MAPS:
            result[keyword] = {name: changed(keyword, child) for name, child in members_of(value).items()}
        elif isinstance(value, list):
            result[keyword] = [changed(keyword, child) for child in cast("list[JsonValue]", value)]
        else:
            result[keyword] = changed(keyword, value)
    return result


# -- for clients ---------------------------------------------------------------------------------------------------


def _without_said_type(judged: JsonObject, rule: JsonObject, admitted: frozenset[str]) -> JsonObject:
    """Return `judged` without an implied `type` that the tool's schema requires anyway, because clients handle simple schemas better."""
    if "type" in rule or "type" not in judged or not admitted <= types_of({"type": judged["type"]}, judged):
        return judged
    return {key: value for key, value in judged.items() if key != "type"}


def _published(node: JsonObject) -> JsonObject:
    """Return the rule `node` in plain JSON Schema, as clients see it.

    Moongate's own keywords (`within`, `oneOfHosts`, …) become text in `description`, because no `pattern` expresses them exactly.
    """
    words = sorted(WORDS & node.keys())
    result = _with_children(node, _SAME_VALUE | _PARTS, lambda _, child: _published(child))
    wanted = [f"Must be {read_word(word, node).wanted}." for word in words]
    for word in (*words, SCHEMES_WORD):
        result.pop(word, None)
    if wanted:
        said = result.get("description")
        result["description"] = " ".join([*([said] if isinstance(said, str) and said else []), *wanted])
    return result


def _described(element: JsonObject, judged: JsonObject, form: str) -> JsonObject:
    """Return a list's rule `judged` as it is published. If `element` has only rule words, that is a description made with `form`."""
    if not element.keys() <= WORDS | {SCHEMES_WORD, "type"}:
        return _published(judged)
    wanted = "; ".join(read_word(word, element).wanted for word in sorted(WORDS & element.keys()))
    return {"description": form.format(wanted)}
