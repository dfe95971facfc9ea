"""Finds rules for values of arguments that accept more than the operator who wrote them probably intended. Used only by `policy.lint`.

A pattern (regular expression) judges one spelling of a text. A pattern without anchors, or a pattern for paths, URLs or mail addresses,
usually accepts other spellings too. For these kinds of arguments, samples of known bypasses are tested against the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.argument_kinds import NAME_OF_KIND, WORD_OF_KIND, ArgumentKind, kinds_of_argument
from gateway.policy.confinement import ANY_TYPE_KEYWORDS, DEMANDING, KEYWORDS_OF_TYPES, confine
from gateway.policy.rule_words import WORDS
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.policy.schema_types import declared_schema, types_of

_TYPE_WORDS = {"string": "texts", "number": "numbers", "array": "lists", "object": "objects"}

_LITERAL_START = re.compile(r"\^((?:[A-Za-z0-9_/ ,:=@~-]|\\[./-])*)")
_LITERAL_END = re.compile(r"((?:[A-Za-z0-9_@-]|\\[./-])+)\$\Z")
_LITERAL_DOMAIN = re.compile(r"@((?:[A-Za-z0-9-]|\\\.)+)")

_FLAGS = re.compile(r"\(\?[a-z]*([im])[a-z]*(?:-[a-z]+)?[:)]")
_FLAG_REASONS = {
    "i": "'(?i)' also accepts other letters, e.g. the Kelvin sign for 'k', and names that differ in case",
    "m": "'(?m)' lets '^' and '$' match at every line, so other lines are not judged",
}

_OPEN_DOT = re.compile(r"(?<!\\)[A-Za-z0-9]\.(?=[A-Za-z])")

_BYPASSES: dict[ArgumentKind, tuple[str, ...]] = {
    "path": (
        "../x", "a/../../x", "..", "%2e%2e/x", "..\\x", "a\\..\\..\\x", "\uff0e\uff0e/x", "/etc/passwd", "C:\\x", "\\\\host\\x", "~/x",
        "file:///etc/passwd", "/../x", "/%2e%2e/x",
    ),
    "url": ("https://evil.example/", "evil.example/", ".evil.example/", "@evil.example/", ":1@evil.example/", "http://evil.example/"),
    "recipient": ("x@evil.example", ".evil.example", ",x@evil.example", "\nBcc: x@evil.example", "@evil.example"),
}  # fmt: skip
"""Kind of argument → texts that careless patterns accept, to test an operator's pattern.

Each text is tested alone, and with the literal text at the start and end of the pattern around it: `docs/../x` for `^docs/`.
"""


def left_open(name: str, rule: JsonObject, schema: JsonObject, *, is_confined: bool = False) -> Iterator[str]:
    """Yield the reasons why a rule for the argument `name` of a tool accepts values that it should reject, one sentence each.

    `rule` must not have a fault that makes it unusable. `schema` is the tool's input schema. `is_confined`: another rule also restricts the
    values of the argument.
    """
    if DEMANDING.isdisjoint(rule):
        yield "the rule requires nothing, so it accepts every value."
        return
    yield from _other_types(name, rule, schema)
    patterns = list(_patterns(rule))
    for pattern in patterns:
        yield from pattern_faults(pattern)
    if holds_by_word(rule):
        return
    is_loose = not is_confined and all(_BOUNDS.isdisjoint(node) for node in _nodes(rule)) and not is_confining(rule)
    for kind in sorted(kinds_of_argument(name, schema)):
        if _has_negated_pattern(rule):
            yield f"`not` with a pattern forbids single spellings, and others mean the same: allow by {WORD_OF_KIND[kind]!r} instead."
        elif is_loose:
            yield f"the rule does not confine the {NAME_OF_KIND[kind]}: say with {WORD_OF_KIND[kind]!r} what is allowed."
        if kind != "path" and any(map(_OPEN_DOT.search, patterns)):
            yield f"'.' in a pattern matches any character: write '\\.', or use {WORD_OF_KIND[kind]!r}."
        sample = _bypass(kind, rule, patterns)
        if sample is not None:
            yield f"{sample!r} passes: say with {WORD_OF_KIND[kind]!r} what is allowed."


def holds_by_word(rule: JsonObject) -> bool:
    """Return whether a rule for an argument, or a part of the rule, uses one of Moongate's own keywords (rule words), such as `within`."""
    return any(not WORDS.isdisjoint(node) for node in _nodes(rule))


def is_confining(rule: JsonObject) -> bool:
    """Return whether a rule for an argument says which texts are accepted, not only, for example, how long they may be.

    It does if it uses `pattern`, `enum`, `const`, or one of Moongate's own keywords (rule words), such as `within`.
    """
    return any(not _CONFINING.isdisjoint(node) for node in _nodes(rule))


_CONFINING = WORDS | {"pattern", "enum", "const"}

_BOUNDS = (KEYWORDS_OF_TYPES["number"] | KEYWORDS_OF_TYPES["array"] | KEYWORDS_OF_TYPES["object"]) - {
    "items", "prefixItems", "properties", "patternProperties", "additionalProperties",
}  # fmt: skip
"""JSON Schema keywords that judge a number, or a list or object as a whole, such as the length of a list."""


def _nodes(rule: JsonObject) -> Iterator[JsonObject]:
    """Yield a rule and its subschemas for the same value, properties and elements, except under keywords such as `not` and `contains`."""
    stack: list[JsonValue] = [rule]
    while stack:
        node = as_object(stack.pop())
        if node is None:
            continue
        yield node
        stack += [node.get(key) for key in ("items", "additionalProperties", "then", "else")]
        for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            stack += items_of(node.get(key))
        for key in ("properties", "patternProperties", "dependentSchemas"):
            stack += members_of(node.get(key)).values()


def _patterns(rule: JsonObject) -> Iterator[str]:
    for node in _nodes(rule):
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            yield pattern


def _has_negated_pattern(rule: JsonObject) -> bool:
    return any("pattern" in node for part in _nodes(rule) for node in _nodes(members_of(part.get("not"))))


def _other_types(name: str, rule: JsonMapping, schema: JsonObject) -> Iterator[str]:
    """If the `type` of a rule accepts types that no other keyword of the rule restricts, yield a sentence for each restricted type.

    Example: a rule with `type: [string, array]` and a `pattern` accepts every list.
    """
    if "type" not in rule or not ANY_TYPE_KEYWORDS.isdisjoint(rule.keys() - {"type"}):
        return
    possible = types_of({"type": rule["type"]}, schema) & types_of(declared_schema(schema, name), schema) - {"null"}
    used = {kind: sorted(keywords & rule.keys()) for kind, keywords in KEYWORDS_OF_TYPES.items()}
    judged = {kind for kind, keywords in used.items() if keywords}
    for kind in sorted(judged):
        if possible - judged:
            others = " and ".join(_TYPE_WORDS.get(other, other) for other in sorted(possible - judged))
            yield f"{used[kind][0]!r} only judges {_TYPE_WORDS[kind]}, and its `type` accepts {others} too: leave only {kind!r} in it."


# -- patterns ------------------------------------------------------------------------------------------------------


def pattern_faults(pattern: str) -> Iterator[str]:
    """Yield the reasons why a regular expression accepts more texts than it seems to, one sentence each. Example: it has no `^`."""
    branches = _branches(pattern)
    bare = [re.sub(r"\A\(\?[a-z-]+\)", "", branch) for branch in branches]
    starts = [branch.startswith(("^", "\\A")) for branch in bare]
    ends = [branch.endswith(("$", "\\z")) and not branch.endswith("\\$") for branch in bare]
    if len(branches) > 1 and (any(starts) or any(ends)) and not (all(starts) and all(ends)):
        yield "'^' and '$' belong to one alternative each: write ^(…|…)$."
    elif not all(starts):
        yield "the pattern may match anywhere in the text: begin it with '^'."
    elif not all(ends):
        yield "anything may follow the match: end the pattern with '$' (after '.*' if that is intended)."
    flag = _FLAGS.search(pattern)
    if flag is not None:
            yield f"{_FLAG_REASONS[flag.group(1)]}, and clients do not support the flag: write the pattern without it."
    if "\\Z" in pattern:
        yield "'\\Z' accepts a line break at the end: write '$'."


def worth_knowing(name: str, schema: JsonObject, *, always_given: bool) -> Iterator[str]:
    """Yield notes for the author of a rule for the argument `name`, such as that a call may leave out the argument.

    `schema` is the tool's input schema. `always_given`: an override always sends the argument.
    """
    if not always_given and name not in items_of(schema.get("required")):
        yield "the argument is optional, and this rule does not judge a call without it; an override can set a default."


def _branches(pattern: str) -> list[str]:
    """Split a regular expression at each `|` outside parentheses and character classes."""
    found: list[str] = [""]
    depth, in_class, skip = 0, False, False
    for character in pattern:
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0:
            found.append("")
            continue
        found[-1] += character
    return found


# -- samples -------------------------------------------------------------------------------------------------------


def _bypass(kind: ArgumentKind, rule: JsonObject, patterns: list[str]) -> str | None:
    """Return a text that `rule` accepts although it evades the purpose of the rule, such as `../x` for a path; otherwise `None`."""
    check = SchemaCheck(confine("value", rule, {"properties": {"value": {"type": "string"}}}).judged, is_rule=True)
    for sample in (sample for pattern in patterns for sample in _samples(kind, pattern)):
        if check.find(sample, measure(sample)) is None:
            return sample
    return None


def _samples(kind: ArgumentKind, pattern: str) -> Iterator[str]:
    for branch in _branches(pattern):
        start, end = _LITERAL_START.match(branch), _LITERAL_END.search(branch)
        before = start.group(1).replace("\\", "") if start is not None else ""
        after = end.group(1).replace("\\", "") if end is not None else ""
        domain = _LITERAL_DOMAIN.search(branch)
        address = f"x@{domain.group(1).replace(chr(92), '')}" if domain is not None else ""
        for lead in dict.fromkeys((before, before[: before.rfind("/") + 1], address, "")):
            for text in dict.fromkeys(f"{lead}{bypass}{tail}" for bypass in _BYPASSES[kind] for tail in ("", after)):
                if kind != "url" or _leads_away(text):
                    yield text


def _leads_away(url: str) -> bool:
    try:
        return (urlsplit(url).hostname or "").endswith("evil.example")
    except ValueError:
        return False
