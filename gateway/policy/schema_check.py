"""`SchemaCheck`: checks values against one JSON Schema, and explains to a model what does not match.

This is the only module that uses the validator, `jsonschema-rs`. Schemas and values are both untrusted. Therefore no reference is fetched,
regular expressions run in linear time (patterns with look-around have a small backtracking limit), and the sizes of schema and value are
measured first. `policy.argument_policy` uses `SchemaCheck` for the schemas of tools and for the operator's rules for single arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.rule_words import KEYWORDS, MAX_WORD_VALUES, WORDS, has_keywords
from gateway.policy.schema_types import type_name
from gateway.policy.tool_schemas import read_cost

if TYPE_CHECKING:
    import jsonschema_rs

MAX_VALUE_DEPTH = 64
"""Maximum nesting of lists and objects in a call's arguments; deeper arguments are rejected."""

MAX_INTEGER_BITS = 4_096
"""Maximum size, in bits, of an integer in arguments (about 1,200 digits); the validator misreads integers beyond 4,300 digits."""

MAX_WORK = 100_000_000
"""Maximum product of the schema's cost and the number of values in the arguments.

The cost is the number of JSON values in the schema, with each `$ref` counted as the schema to which it refers. At this limit, a check takes
about one second.
"""

MAX_PATTERN_TEXT = 1_048_576
"""Maximum total characters of the texts in arguments that are checked by a schema with regular expressions."""

MAX_LARGE_PATTERN_TEXT = 65_536
"""Maximum total characters of the texts in arguments if the schema has an expensive regular expression.

A regular expression is expensive if it needs a large automaton (`\\p{L}{1,200}`) or backtracking.
"""

MAX_REASON_LENGTH = 500
"""Maximum number of characters of the text that says why arguments are rejected. A model reads the text before it tries again."""

_TYPES = {
    "null": "null", "boolean": "a boolean", "string": "a string", "number": "a number", "array": "an array", "object": "an object",
}  # fmt: skip
"""JSON type → words for a value of this type in a text for models."""

_MAX_ERRORS = 3
"""Maximum number of problems named in one rejection. A model can fix all of them in one retry."""

_MAX_LISTED_WORK = 1_000_000
"""Maximum product of the schema's cost (see `MAX_WORK`) and the number of argument values for which a rejection names several problems.

Above it, only the first problem is named, because the validator can list problems only all at once.
"""

_AUTOMATON_BYTES = (131_072, 4_194_304)
"""Maximum bytes of a compiled regular expression: first the usual limit, then the limit for expressions that need more memory."""

_PREDICATES = frozenset({"anyOf", "oneOf", "const", "falseSchema"}) | WORDS
"""Keywords whose violation is described by a predicate: "argument 'x' must be …". For other keywords, a text follows a colon."""

_BACKTRACKS = 10_000
"""Maximum number of backtracking steps of a regular expression with look-around or back-references."""


@dataclass(slots=True)  # not frozen: creating a frozen instance takes three times as long, and every call creates an instance
class ValueSize:
    """Size of a decoded JSON value, measured before the value is checked against a schema."""

    nodes: int
    """Number of values inside the value, lists and objects included, plus one for the value itself."""
    characters: int
    """Total length of all strings in the value."""
    problem: str | None = None
    """Why the value cannot be checked, as a clause for the rejection: it is nested too deeply, or has an infinite or huge number."""


def measure(value: JsonValue) -> ValueSize:
    """Return the number of values and characters in a decoded JSON value. Measuring stops at the nesting `MAX_VALUE_DEPTH`."""
    nodes, characters, depth = 0, 0, 0
    texts: JsonMapping | None = value  # fast case: an object whose members are all strings, as most arguments are
    if isinstance(texts, dict):
        for text in texts.values():
            if type(text) is not str:
                break
            characters += len(text)
        else:
            return ValueSize(1 + len(texts), characters)
        characters = 0
    problem: str | None = None
    level: list[Any] = [value]
    while level:
        if depth > MAX_VALUE_DEPTH:
            return ValueSize(nodes, characters, f"the arguments are nested deeper than {MAX_VALUE_DEPTH} levels")
        nodes += len(level)
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                characters += len(item)
            elif isinstance(item, dict):
                below.extend(item.values())  # pyright: ignore[reportUnknownArgumentType]  # JSON
            elif isinstance(item, list):
                below.extend(item)  # pyright: ignore[reportUnknownArgumentType]  # JSON
            elif isinstance(item, float) and not isfinite(item):  # `1e999` is read as infinity, which satisfies any `maximum`
                problem = "the arguments hold a number that is not finite"
            elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
                problem = "the arguments hold a number with too many digits"
        level = below
        depth += 1
    return ValueSize(nodes, characters, problem)


@dataclass(slots=True)
class _Compiled:
    validator: jsonschema_rs.Validator
    cost: int
    max_characters: int | None
    max_values: int | None = None
    """Maximum number of values in a checked argument if the schema is a rule with Moongate's keywords such as `within`; else `None`."""


class SchemaCheck:
    """Checks values against one JSON Schema, which the first check compiles. A schema that does not compile rejects every value."""

    __slots__ = ("_compiled", "_is_rule", "_problem", "_refusal", "_schema")

    def __init__(self, schema: JsonObject, *, is_rule: bool = False, refusal: str | None = None) -> None:
        """Store `schema` without copying it.

        `is_rule`: the schema is an operator's rule. It has the dialect 2020-12, may use Moongate's own keywords (rule words, such as
        `within`), and its `format` is checked. `refusal`: reject every value with this text, for a schema that is known to be unusable.
        """
        self._schema = schema
        self._refusal = refusal
        self._is_rule = is_rule
        self._compiled: _Compiled | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why this schema cannot be used, or `None` if it can; compiles the schema.

        The text is the end of a sentence whose subject is the schema.
        """
        if self._compiled is None and self._problem is None:
            self._compile()
        return self._problem

    def find(self, value: JsonValue, size: ValueSize, *, root: str = "") -> str | None:
        """Return why `value` does not match the schema, as text for a model, or `None` if it matches.

        `size` is the measured size of the arguments of the call. `root` is the name of the argument whose value is checked; without
        `root`, `value` contains all arguments of the call.
        """
        compiled = self._compiled
        if compiled is None:
            if self._refusal is not None:
                return self._refusal
            if self.problem is not None:
                return f"the schema {self._problem}, so its arguments cannot be checked; tell the operator of the server"
            compiled = cast("_Compiled", self._compiled)
        if size.problem is not None:
            return size.problem
        if compiled.cost * size.nodes > MAX_WORK:
            return f"the arguments have {size.nodes} values, too many to check against a schema this large"
        if compiled.max_characters is not None and size.characters > compiled.max_characters:
            return f"the arguments have more than {compiled.max_characters} characters, the most that this schema's patterns are run on"
        if compiled.max_values is not None and not isinstance(value, str) and measure(value).nodes > compiled.max_values:
            return f"argument {_cut(root, 120)!r} has more than {compiled.max_values} values, the most that its rule is applied to"
        try:
            if compiled.validator.is_valid(value):
                return None
            return self._explain(compiled, value, size, root)
        except ValueError:  # lone surrogates, or keys that are not strings
            return "the arguments are not valid JSON: a text has half a surrogate pair, or a key is not a string; send valid Unicode text"

    def _explain(self, compiled: _Compiled, value: JsonValue, size: ValueSize, root: str) -> str:
        import jsonschema_rs

        if compiled.cost * size.nodes <= _MAX_LISTED_WORK:
            errors = list(islice(compiled.validator.iter_errors(value), _MAX_ERRORS))
        else:
            try:
                compiled.validator.validate(value)
                errors = []
            except jsonschema_rs.ValidationError as error:
                errors = [error]
        lines = dict.fromkeys(describe(error, value, root) for error in errors)
        return "; ".join(lines) or "the arguments do not match the schema"

    def _compile(self) -> None:
        cost = read_cost(self._schema)
        if cost.problem is not None:
            self._problem = cost.problem
            return
        self._compiled, self._problem = _build(self._schema, cost.cost, cost.patterns, is_rule=self._is_rule)


def _build(schema: JsonObject, cost: int, patterns: int, *, is_rule: bool) -> tuple[_Compiled | None, str | None]:
    """Compile a schema. Return the compiled schema and `None`, or `None` and the reason why the schema does not compile.

    An operator's rule (`is_rule`) has the dialect 2020-12; a server's schema without `$schema` may have an older dialect.
    """
    import jsonschema_rs as engine  # loaded by the first call: 40 ms that listing tools does not need

    small, large = _AUTOMATON_BYTES
    engines: list[tuple[Any, int]] = [
        (engine.RegexOptions(size_limit=small), MAX_PATTERN_TEXT),
        (engine.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=small), MAX_LARGE_PATTERN_TEXT),
        (engine.RegexOptions(size_limit=large), MAX_LARGE_PATTERN_TEXT),
        (engine.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=large), MAX_LARGE_PATTERN_TEXT),
    ]
    own: dict[str, Any] = {"validate_formats": is_rule}
    if is_rule:
        own |= {"ignore_unknown_formats": False, "keywords": KEYWORDS}
    dialects: list[Any] = [engine.validator_for]
    if is_rule:
        dialects = [engine.Draft202012Validator]
    elif "$schema" not in schema:
        dialects = [engine.Draft202012Validator, engine.Draft7Validator, engine.Draft4Validator]
    first: Exception | None = None
    for dialect in dialects:
        for options, max_characters in engines if patterns else engines[:1]:
            try:
                validator = dialect(schema, pattern_options=options, mask="the value", offline=True, **own)
            except (ValueError, engine.ReferencingError) as error:  # ValidationError is a ValueError
                first = first or error
                continue
            max_values = MAX_WORD_VALUES if is_rule and has_keywords(schema, WORDS) else None
            return _Compiled(validator, cost, max_characters if patterns else None, max_values), None
    return None, _why_unusable(first)


def _why_unusable(error: Exception | None) -> str:
    import jsonschema_rs as engine

    text = str(getattr(error, "message", error)).splitlines()[0] if error else ""
    if isinstance(error, engine.ValidationError):
        if isinstance(error.kind, engine.ValidationErrorKind.Referencing):
            return f"has a reference that cannot be resolved; other documents are not fetched ({_cut(text, 160)})"
        if isinstance(error.kind, engine.ValidationErrorKind.Custom) and error.schema_path[-1:] == ["format"]:
            return f"uses an unknown `format` ({_cut(repr(error.instance), 60)})"
    return f"is not a valid JSON Schema ({_cut(text, 160)})"


# -- explanations --------------------------------------------------------------------------------------------------


def describe(error: jsonschema_rs.ValidationError, value: JsonValue, root: str = "") -> str:
    """Describe an error of the validator to a model: which argument, what is wrong, what is expected. Never contains the value.

    `value` is the checked value of the argument with the name `root`; without `root`, it contains all arguments of the call.
    """
    from jsonschema_rs import ValidationErrorKind as kinds  # its members are the classes of the validator's errors

    path = _path(error.instance_path, root)
    missing = getattr(error.kind, "property", None) if error.kind.name == "required" else None
    if isinstance(missing, str):
        inner = f"{path}.{missing}" if path else missing
        return f"argument {_cut(inner, 120)!r} is required but missing"
    subject = f"argument {_cut(path, 120)!r}" if path else "the arguments"
    match error.kind.name:
        case "anyOf" | "oneOf":
            said = _alternatives(error) or error.message
        case "type":
            said = f"{error.message} but {_TYPES[type_name(_at(value, error.instance_path))]}"
        case "const":
            said = f"must be {error.message.removesuffix(' was expected')}"
        case "falseSchema":
            closes = error.schema_path[-1:] == ["additionalProperties"]
            said = "may not have any properties" if closes else "is not allowed"
        case "pattern" if isinstance(error.kind, kinds.BacktrackLimitExceeded | kinds.RegexEngineFailure):
            said = "the value cannot be matched against its pattern within the step limit"
        case _:
            said = error.message
    is_predicate = error.kind.name in _PREDICATES or said.startswith("the value ")
    return f"{subject}{'' if is_predicate else ':'} {_cut(said.removeprefix('the value '), 240)}"


def _alternatives(error: jsonschema_rs.ValidationError) -> str:
    context = cast("Sequence[Sequence[jsonschema_rs.ValidationError]] | None", getattr(error.kind, "context", None)) or ()
    depth = len(error.instance_path)
    said = dict.fromkeys(_alternative(inner, depth) for branch in context for inner in branch[:1])
    return "fits none of the alternatives: " + "; ".join(islice(said, _MAX_ERRORS)) if said else ""


def _alternative(error: jsonschema_rs.ValidationError, depth: int) -> str:
    path = _path(error.instance_path[depth:], "")
    return f"{path}: {error.message}" if path else error.message


def _path(parts: Sequence[str | int], root: str) -> str:
    text = root
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _at(value: JsonValue, parts: Sequence[str | int]) -> JsonValue:
    for part in parts:
        if not isinstance(value, dict | list):
            return None
        value = cast("JsonMapping", value)[cast("str", part)]
    return value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def sentence(parts: Iterator[str] | Sequence[str]) -> str:
    """Return the parts of a rejection's reason as sentences with capitals and full stops, cut to `MAX_REASON_LENGTH` characters."""
    return _cut(" ".join(f"{part[:1].upper()}{part[1:]}." for part in parts if part), MAX_REASON_LENGTH)
