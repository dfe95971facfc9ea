"""Completes an operator's rule for one argument of one tool: adds implied types, finds faults, and builds the version for clients.

A rule is a JSON Schema that may contain Moongate's own keywords (rule words, such as `within`). In JSON Schema, a keyword that is about one
type has no effect on values of other types, so `{"pattern": "^docs/"}` alone accepts every list and object. In a completed rule, a keyword
about text implies that the value is text. If the argument is a list of text, a rule about text applies to each element. Used by
`policy.argument_policy`, which compiles the completed rule, and by `policy.lint`.
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
"""JSON type → keywords of JSON Schema, and rule words of Moongate, that judge only values of this type."""

ANY_TYPE_KEYWORDS = frozenset({"type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})

_SILENT = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs", "definitions",
    "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
"""Keywords of JSON Schema that never reject a value, such as `title`."""

DEMANDING = ANY_TYPE_KEYWORDS.union(*KEYWORDS_OF_TYPES.values())
"""All keywords that can reject a value: keywords of JSON Schema 2020-12, and Moongate's own (rule words, such as `within`)."""

_SAYS_TYPE = frozenset({"type", "enum", "const"})
_SCALARS = frozenset({"string", "number"})

_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas"})
_PARTS = frozenset({"properties", "patternProperties", "additionalProperties", "items", "prefixItems"})
_REVERSIBLE = frozenset({"not", "if", "contains", "oneOf", "propertyNames", "unevaluatedProperties", "unevaluatedItems"})
"""JSON Schema keywords under which Moongate's own keywords (rule words, such as `within`) are refused.

Under some of them, such as `not`, a stricter subschema makes the whole rule accept more: a rule word rejects every ambiguous spelling of a
text, so `not` with a rule word would accept exactly the ambiguous spellings. The validator may skip the subschemas of the others.
"""

_WITH_CHILDREN = _SAME_VALUE | _PARTS | _REVERSIBLE
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})

_MAX_DEPTH = 64
"""Maximum nesting of an operator's rule for an argument; a deeper rule is unusable."""


@dataclass(frozen=True, slots=True)
class ConfinedRule:
    """An operator's rule for values, completed for one argument of one tool: as the validator applies it, and as clients see it."""

    judged: JsonObject
    """The rule for the validator: implied types are added, and Moongate's own keywords (rule words, such as `within`) are kept."""
    published: JsonObject
    """The rule for clients as standard JSON Schema: a text in `description` replaces each rule word, such as `within`."""


# -- faults --------------------------------------------------------------------------------------------------------


def find_fault(rule: JsonObject) -> str | None:
    """Return why an operator's rule for an argument cannot be applied, or `None` if no fault is found.

    The text is the end of a sentence whose subject is the rule, for example "is nested deeper than 64 levels".
    """
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
    """Yield a pair for each direct subschema of the JSON Schema `node`: the keyword that contains the subschema, and the subschema."""
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
    """Return the completed form of an operator's valid rule for the argument `name` of a tool with the input schema `schema`.

    A keyword that judges only values of one type implies this type, unless the rule contains `type`, `enum` or `const`. Together with an
    implied type, `null` is accepted if the tool's schema accepts `null`, because the tool then reads `null` as "not given".

    A rule about text without `type`, `enum` and `const` applies to each element of an argument that is a list of text. Lists of other
    elements are then rejected, and keywords about lists apply to the list itself. The same holds for rules about numbers.
    """
    declared = declared_schema(schema, name)
    admitted = types_of(declared, schema)
    nullable = "null" in admitted and admitted != ALL_TYPES
    scalars = kinds_of(rule) & _SCALARS
    elements = element_types(declared, schema) - {"null"}
    if not _SAYS_TYPE.isdisjoint(rule) or not scalars or not elements or not elements <= scalars:
        judged = _complete(rule, nullable=nullable)
        return ConfinedRule(judged, _published(_without_stated_type(judged, rule, admitted)))
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
    """Return the JSON types that the keywords of a rule judge, including keywords under `not`."""
    found = {kind for kind, keywords in KEYWORDS_OF_TYPES.items() if not keywords.isdisjoint(node)}
    negated = as_object(node.get("not"))
    if negated is not None:
        found |= kinds_of(negated)
        for keyword, child in _children(negated):
            if keyword in _SAME_VALUE:
                found |= kinds_of(child)
    return frozenset(found)


def _complete(node: JsonObject, *, nullable: bool) -> JsonObject:
    """Return a copy of the rule `node` with implied types added: `{"pattern": …}` gets `"type": "string"`.

    Types are also added in subschemas, but not under keywords such as `not`, because a stricter subschema there makes the rule accept
    more. With `nullable`, `null` is accepted too.
    """

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
    """Return a copy of the JSON Schema `node` in which `change` replaced each direct subschema under one of `keywords`."""
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


def _without_stated_type(judged: JsonObject, rule: JsonObject, admitted: frozenset[str]) -> JsonObject:
    """Return the completed rule `judged` without its implied `type` if the tool's schema already requires that type.

    Clients handle simple schemas better. A `type` that the operator wrote in `rule` is kept.
    """
    if "type" in rule or "type" not in judged or not admitted <= types_of({"type": judged["type"]}, judged):
        return judged
    return {key: value for key, value in judged.items() if key != "type"}


def _published(node: JsonObject) -> JsonObject:
    """Return the rule `node` as standard JSON Schema for clients.

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
    """Return the rule `judged` for clients, for an argument that is a list. `element` is the part of the rule for one element.

    If `element` contains only Moongate's own keywords (rule words, such as `within`), the result is only a `description`. Its text is
    `form`, in which a description of the accepted elements replaces `{0}`.
    """
    if not element.keys() <= WORDS | {SCHEMES_WORD, "type"}:
        return _published(judged)
    wanted = "; ".join(read_word(word, element).wanted for word in sorted(WORDS & element.keys()))
    return {"description": form.format(wanted)}
