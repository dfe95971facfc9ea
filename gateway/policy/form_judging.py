"""Decides whether an elicitation form asks the user for a secret such as a password, from all texts of the form.

MCP (client/elicitation): servers must not use form mode to request sensitive information; they use URL mode instead. The word lists of more
than 30 languages are in `form_words`. The functions are pure; `input_requests` calls `judge_form` for servers, `agents.remote` for
remote agents.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, children_of, items_of, members_of
from gateway.policy.form_reading import Hit, Reading, read_text
from gateway.policy.secret_requests import (
    asks_in_description,
    asks_in_label,
    asks_in_prose,
    asks_in_sample,
    names_ordinary_thing,
    names_other_thing,
    names_part,
)

MAX_FORM_CHARS = 20_000
"""Maximum number of characters in an elicitation form. A list of all time zones, which is a long legitimate text, has 10,000."""

MAX_FORM_PARTS = 4_000
"""Maximum number of JSON values and member names in an elicitation form."""

MIN_ADDRESS_PARTS = 2
"""Minimum number of postal address fields in a form for "PIN code" to mean an Indian postal code instead of a secret."""

_UNJUDGED_PARAMS = frozenset({"_meta", "mode", "elicitationId", "requestedSchema", "task"})
_STRUCTURE = frozenset({"type", "format", "pattern", "$ref", "$id", "$schema", "$anchor", "contentEncoding", "contentMediaType"})
_SAMPLES = frozenset({"default", "examples", "example", "enum", "const"})
_HINT = re.compile(r"(?i)widget|control|component|input|format|mode|variant|kind|type")

_GROUPS_OF_FOUR = re.compile(r"(?:\\d\{4\}[^\\]{0,9}){3}\\d\{4\}|\\d\{4\}[^\\]{0,6}\)\{3\}")
_SIXTEEN_DIGITS = re.compile(r"\\d\{1[3-9](?:,1[3-9])?\}")
_IDENTITY_PATTERNS = (r"\d{3}-\d{2}-\d{4}", r"\d{3}-?\d{2}-?\d{4}", r"\d{3}\.\d{3}\.\d{3}-\d{2}", r"\d{17}[\dx]")
_CODE_PATTERN = re.compile(r"\\d\{[4-8](?:,[4-8])?\}")
_CREDENTIAL_VALUE = re.compile(
    r"\b(?:sk-[\w…*.-]{3,}|gh[pousr]_[\w…*.]{3,}|github_pat_\w*|xox[abprs]-[\w…*.-]{2,}|AKIA[\w…*.]{4,}|glpat-[\w…*.-]{3,}"
    r"|AIza[\w…*.-]{4,}|eyJ[\w-]{8,})|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:(?:starts?|begins?|beginning) with [`'\"]?(?:sk-|ghp_|xox|AKIA))"
)
_IDENTITY_VALUE = re.compile(r"(?<![\w-])(?:\d{3}-\d{2}-\d{4}|\d{3}\.\d{3}\.\d{3}-\d{2})(?![\w-])")
_CARD_VALUE = re.compile(r"(?<!\d)(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|3[47]\d\d|6011|65\d\d)(?:[ -]?\d){9,15}(?!\d)")

Use = Literal["label", "description", "prose", "sample"]
"""Role of a text in an elicitation form: a field's name or title (`label`), its description, a possible value of the field (`sample`), or
other displayed text (`prose`)."""


@dataclass(frozen=True, slots=True)
class FormProblem:
    """Why an elicitation form is refused: the id of the rule, and the reason as text."""

    rule: Literal["elicitation.secret", "elicitation.size"]
    reason: str


@dataclass(slots=True)
class _Field:
    name: str
    schema: JsonMapping
    takes_text: bool
    is_number: bool
    choices: int
    """Number of values from which the user chooses; 0 for a field without a choice."""
    texts: list[str] = field(default_factory=list[str])
    """All strings in the field's schema."""


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    use: Use
    where: str
    """Name of the place in the form that contains the text. It begins the sentence that says why the form is refused."""
    field: _Field | None = None


def judge_form(params: JsonMapping) -> FormProblem | None:
    """Return why an elicitation form is refused (it asks for a secret, or is too large), or `None` if the user may see it.

    `params` are the parameters of `elicitation/create`.
    """
    if not _is_within_size(params):
        text = f"The form has more than {MAX_FORM_CHARS} characters or {MAX_FORM_PARTS} parts. Ask for less, or on a page (mode `url`)."
        return FormProblem("elicitation.size", text)
    texts = [*_message_texts(params), *_schema_texts(params.get("requestedSchema"))]
    fields = list({id(text.field): text.field for text in texts if text.field is not None}.values())
    form = _Form(texts, fields)
    return next((_refused(where, kind) for where, kind in form.secrets()), None)


def _refused(where: str, kind: str) -> FormProblem:
    reason = f"{where} asks for a secret ({kind}), and a form passes its answer through programs that would read it."
    return FormProblem("elicitation.secret", f"{reason} The server has to ask on a page of its own (elicitation mode `url`).")


def _is_within_size(params: JsonMapping) -> bool:
    chars = parts = 0
    stack: list[JsonValue] = [value for key, value in params.items() if key != "_meta"]
    while stack and chars <= MAX_FORM_CHARS and parts <= MAX_FORM_PARTS:
        item = stack.pop()
        parts += 1
        if isinstance(item, str):
            chars += len(item) if item.isascii() or len(item) > MAX_FORM_CHARS else len(unicodedata.normalize("NFKC", item))
        elif isinstance(item, list):
            values = cast("list[JsonValue]", item)
            stack += values[:MAX_FORM_PARTS]
            parts += max(0, len(values) - MAX_FORM_PARTS)
        elif isinstance(item, dict):
            node = cast("JsonObject", item)
            chars += sum(map(len, node))
            parts += len(node)
            stack += node.values()
    return chars <= MAX_FORM_CHARS and parts <= MAX_FORM_PARTS


# -- texts ---------------------------------------------------------------------------------------------------------


def _message_texts(params: JsonMapping) -> Iterator[_Text]:
    """Yield the texts in an elicitation request outside its `requestedSchema`, such as the message."""
    for key, value in params.items():
        if key not in _UNJUDGED_PARAMS:
            where = "The message" if key == "message" else f"The text {key[:40]!r}"
            yield from (_Text(text, "prose", where) for text in _strings(value))


def _strings(value: JsonValue) -> Iterator[str]:
    stack: list[JsonValue] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        else:
            stack += children_of(item)


def _schema_texts(schema: JsonValue) -> Iterator[_Text]:
    """Yield the names of a form's fields and the texts in its schema, each with its field. Nested fields, which MCP forbids, are included.

    Values of keywords such as `type` and `pattern` are left out.
    """
    stack: list[tuple[str, JsonValue, _Field | None]] = [("", schema, None)]
    while stack:
        key, item, owner = stack.pop()
        if isinstance(item, str):
            if owner is not None:
                owner.texts.append(item)
            if key not in _STRUCTURE:
                yield _Text(item, _use_of(key, owner), _place_of(key, owner), owner)
        elif isinstance(item, list):
            stack += [(key, value, owner) for value in cast("list[JsonValue]", item)]
        elif isinstance(item, dict):
            node = cast("JsonObject", item)
            for name, value in node.items():
                if name != "properties" or not isinstance(value, dict):
                    stack.append((name, value, owner))
                    continue
                for called, inner in cast("JsonObject", value).items():
                    found = _field_of(called, inner)
                    yield _Text(called, "label" if found.takes_text else "prose", _place_of("", found), found)
                    stack.append(("", inner, found))


def _field_of(name: str, schema: JsonValue) -> _Field:
    node = members_of(schema)
    kinds = _kinds(node)
    return _Field(name, node, _takes_text(node), bool(kinds) and kinds <= {"integer", "number", "null"}, len(_choices(node)))


def _kinds(node: JsonMapping) -> set[str]:
    kinds: JsonValue = node.get("type")
    return {kind for kind in cast("list[JsonValue]", kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}


def _takes_text(node: JsonMapping) -> bool:
    """Return whether a user enters text or a number into a form's field, instead of only choosing a value.

    A field with a choice between ten or more single characters counts too, because a PIN could be entered with several such fields.
    """
    kinds = _kinds(node)
    if kinds and kinds <= {"boolean", "null", "object"}:
        return False
    if kinds == {"array"}:
        items: JsonValue = node.get("items")
        return not isinstance(items, dict) or _takes_text(cast("JsonObject", items))
    choices = _choices(node)
    return not choices or (len(choices) > 9 and all(len(str(value)) == 1 for value in choices))


def _choices(node: JsonMapping) -> list[JsonValue]:
    """Return the values that a form's field offers to choose from; empty for a field without a choice. `node` is the field's schema."""
    if isinstance(node.get("items"), dict) and _kinds(node) == {"array"}:
        return _choices(cast("JsonObject", node["items"]))
    choices: JsonValue = node.get("enum") or ([node["const"]] if "const" in node else None)
    for key in ("oneOf", "anyOf"):
        options = items_of(node.get(key))
        if options and all("const" in members_of(option) for option in options):
            choices = [option["const"] for option in options]
    return items_of(choices)


def _use_of(key: str, owner: _Field | None) -> Use:
    if owner is None or not owner.takes_text:
        return "prose"
    if key in ("title", "required", "label"):
        return "label"
    return "sample" if key in _SAMPLES else "description"


def _place_of(key: str, owner: _Field | None) -> str:
    if owner is not None:
        return f"Form field {owner.name[:60]!r}"
    return f"The text {key[:40]!r} of the form"


# -- judging -------------------------------------------------------------------------------------------------------


class _Form:
    """The texts and fields of one elicitation form, with methods that find requests for secrets in them."""

    def __init__(self, texts: Sequence[_Text], fields: Sequence[_Field]) -> None:
        self._texts = texts
        self._fields = fields
        self._is_free = any(field.takes_text for field in fields)
        self._known: dict[str, tuple[Reading, ...]] = {}

    def secrets(self) -> Iterator[tuple[str, str]]:
        """Yield each place of the form that asks for a secret, as a description of the place and the kind of secret."""
        for one in self._fields:
            if (kind := self._evident(one)) is not None:
                yield _place_of("", one), kind
        for text in self._texts:
            if (kind := self._requested_secret(text)) is not None:
                yield text.where, kind

    def _read(self, text: str) -> tuple[Reading, ...]:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = read_text(text)
        return found

    def _requested_secret(self, text: _Text) -> str | None:
        """Return the kind of secret that a text of the form asks the user for, or `None`."""
        owner = text.field
        match text.use:
            case "label":
                judge = partial(asks_in_label, is_number=owner is not None and owner.is_number)
            case "description":
                judge = asks_in_description
            case "sample":
                judge = asks_in_sample
            case "prose":
                judge = partial(asks_in_prose, takes_text=self._takes_answer_to(owner))
        for reading in self._read(text.text):
            hit = judge(reading)
            if hit is None or (hit.kind == "pin" and self._is_postal(reading.words[hit.start].plain)):
                continue
            if hit.kind == "tax number" and self._has_role("company") and not reading.has("own", hit.start - 1):
                continue
            if owner is None or not self._is_explained(owner, hit, reading.words[hit.start].plain):
                return hit.kind
        return None

    def _takes_answer_to(self, one: _Field | None) -> bool:
        """Return whether a user could enter the answer to a text of the form into a field that accepts free text.

        `one` is the field to which the text belongs; it accepts no free text. For the form's message, `one` is `None`, and any field with
        free text is enough. The answer to a text of `one` may go to another field if `one` offers only a single value to choose, or if a
        field with free text does not say what to enter.
        """
        if one is None or not self._is_free:
            return self._is_free
        return one.choices == 1 or self._has_open_field

    @cached_property
    def _has_open_field(self) -> bool:
        return any(field.takes_text and self._is_unspecific(field) for field in self._fields)

    def _is_unspecific(self, one: _Field) -> bool:
        """Return whether a field's title (without a title: its name) does not say what to enter ("Value", "Type here", `v`)."""
        reading = self._read(str(one.schema.get("title") or one.name))[0]
        silent = {"small", "own", "any value", "ask", "ask last", "after", "needed"}
        return all(len(word.plain) == 1 or silent & roles.keys() for word, roles in zip(reading.words, reading.roles, strict=True))

    def _is_explained(self, one: _Field, hit: Hit, name: str) -> bool:
        """Return whether other texts show that a field asks for something harmless, although a text of the field names a secret (`hit`).

        `name` is the first word of the secret's name in that text.

        The field's title can show this: `card_number` with the title "Loyalty card number". For an ambiguous name such as `clave` (Spanish
        for a password or any other code), any text of the form can: "Clave del producto". For a numeric field `pin` without a title, the
        message can: "GPIO pin number".
        """
        readings = self._read(str(one.schema.get("title") or ""))
        if hit.is_loose:
            says_nothing = any(_is_bare(reading, role) for reading in readings for role in ("loose", "any value"))
            is_titled = any(reading.words for reading in readings) and not says_nothing
            return is_titled or any(names_ordinary_thing(reading, name) for text in self._texts for reading in self._read(text.text))
        if hit.kind == "pin" and one.is_number and "title" not in one.schema:
            return any(names_part(reading) for text in self._texts if text.field is None for reading in self._read(text.text))
        return any(names_other_thing(reading, hit.kind) for reading in readings)

    def _is_postal(self, name: str) -> bool:
        """Return whether the word `name` ("PIN", "pincode") means an Indian postal code, as in a form with other parts of an address."""
        if name not in ("pin", "pincode", "पिन", "पिनकोड") or self._has_role("card"):
            return False
        return self._address_parts >= MIN_ADDRESS_PARTS

    @cached_property
    def _address_parts(self) -> int:
        """The number of fields that ask for a part of a postal address."""
        return sum(self._is_address_part(one) for one in self._fields)

    def _is_address_part(self, one: _Field) -> bool:
        readings = (reading for text in (one.name, str(one.schema.get("title") or "")) for reading in self._read(text))
        return any("address" in roles for reading in readings for roles in reading.roles)

    def _has_role(self, role: str) -> bool:
        """Return whether any text of the form contains a word with this role (a role of `request_words.WordRole`, such as `company`)."""
        return role in self._roles

    @cached_property
    def _roles(self) -> set[str]:
        """The roles (`request_words.WordRole`, such as `ask` for "enter") of all words in the texts of the form."""
        readings = (reading for text in self._texts for reading in self._read(text.text))
        return {role for reading in readings for roles in reading.roles for role in roles}

    # -- evidence without words ------------------------------------------------------------------------------

    def _evident(self, one: _Field) -> str | None:
        """Return the kind of secret that keywords of a field's schema (`format`, `writeOnly`, …) or an example reveal, or `None`."""
        node = one.schema
        if node.get("format") == "password" or node.get("writeOnly") is True or _is_hidden_input(node):
            return "password"
        if not one.takes_text:
            return None
        pattern = _normalized(node.get("pattern"))
        if _GROUPS_OF_FOUR.search(pattern) or (_SIXTEEN_DIGITS.fullmatch(pattern) and self._has_role("card")):
            return "card"
        if pattern in _IDENTITY_PATTERNS:
            return "identity number"
        if self._is_code(one, pattern):
            return "code"
        return next((kind for text in one.texts if (kind := _kind_of_value(text)) is not None), None)

    def _is_code(self, one: _Field, pattern: str) -> bool:
        """Return whether a field that is called only `code` asks for a PIN or a one-time code, by its schema or other texts of the form."""
        texts = [one.name, *([str(one.schema["title"])] if one.schema.get("title") else [])]
        names = [reading for text in texts for reading in self._read(text)[:1]]
        if not all(_is_bare(name, "code name") or _is_bare(name, "any value") for name in names):
            return False
        if not any(_is_bare(name, "code name") for name in names):
            return False
        longest: JsonValue = one.schema.get("maxLength")
        if _CODE_PATTERN.fullmatch(pattern) or (isinstance(longest, int) and 4 <= longest <= 8):
            return True
        return self._has_role("code channel")


def _is_bare(reading: Reading, role: str) -> bool:
    """Return whether a text is only an expression with this role (`request_words.WordRole`), apart from words such as "your" before it."""
    index = next((i for i, roles in enumerate(reading.roles) if not {"small", "own", "courtesy", "ask"} & roles.keys()), None)
    return index is not None and reading.roles[index].get(role) == len(reading.words)


def _is_hidden_input(node: JsonMapping) -> bool:
    """Return whether an extension keyword in a field's schema makes clients hide the input like a password, such as `widget: password`."""
    hints = (value for key, value in node.items() if isinstance(value, str) and key not in _SAMPLES and _HINT.search(key))
    return any(value.strip().lower() in ("password", "secret", "passwordinput", "password-input") for value in hints)


def _normalized(pattern: JsonValue) -> str:
    """Return the `pattern` of a field's schema in one canonical spelling without anchors, for comparison with known patterns of secrets.

    Empty if the pattern is not a string or too long.
    """
    text = pattern if isinstance(pattern, str) and len(pattern) < 200 else ""
    return text.lower().replace("[0-9]", r"\d").replace("(?:", "(").strip("^$")


def _kind_of_value(text: str) -> str | None:
    """Return the kind of secret if a text contains an example of a secret, such as a card number; otherwise `None`."""
    if _CREDENTIAL_VALUE.search(text):
        return "key"
    if _IDENTITY_VALUE.search(text):
        return "identity number"
    digits = ["".join(filter(str.isdigit, found.group())) for found in _CARD_VALUE.finditer(text)]
    return "card" if any(13 <= len(number) <= 19 and _is_luhn(number) for number in digits) else None


def _is_luhn(number: str) -> bool:
    """Return whether the last digit of a card number is the Luhn check digit of the other digits (ISO/IEC 7812)."""
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(number)))
    return sum(value // 10 + value % 10 for value in doubled) % 10 == 0
