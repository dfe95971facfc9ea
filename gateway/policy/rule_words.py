"""Rule words: the keywords with which Moongate extends JSON Schema in rules for the values of arguments.

They are `within` (paths), `oneOfHosts` with `schemes` (URLs), and `oneOfRecipients` (mail addresses). Each is a custom keyword of the JSON
Schema validator, so it applies wherever a rule's schema applies. `policy.schema_check` compiles rule words, and `policy.confinement`
publishes them to clients.

Decided: few rule words, each for a kind of text with several spellings, which regular expressions cannot restrict. Choices use `enum`,
other text an anchored `pattern`, sizes `maxLength` and `maxItems`. SQL and shell commands have no rule word, because their meaning depends
on the program that reads them. Revisit when: a kind of text has one grammar that all its readers share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from gateway.json_types import JsonMapping, JsonValue, children_of, members_of
from gateway.policy.host_rule import judge_recipient, judge_url, read_host_rule, read_recipient_rule
from gateway.policy.path_rule import judge_path, read_path_rule

SCHEMES_WORD = "schemes"
"""Keyword of argument rules that lists the accepted URL schemes, beside `oneOfHosts`. Without `oneOfHosts` it has no effect."""


@dataclass(frozen=True, slots=True)
class Word:
    """A rule word (Moongate's keyword `within`, `oneOfHosts` or `oneOfRecipients` of argument rules), compiled with its value."""

    judge: Callable[[str], str | None]
    """Function that returns why a text is rejected, as the end of a sentence whose subject is the argument, or `None` if accepted."""
    wanted: str
    """Noun phrase that describes the accepted values to models, such as "one mail address at example.com"."""


def _within(node: JsonMapping) -> Word:
    rule = read_path_rule(node["within"])
    return Word(partial(judge_path, rule=rule), f"a path inside {rule}, without '..'")


def _one_of_hosts(node: JsonMapping) -> Word:
    rule = read_host_rule(node["oneOfHosts"], node.get(SCHEMES_WORD))
    return Word(partial(judge_url, rule=rule), f"an {rule}" if rule.schemes[0].startswith("http") else f"a {rule}")


def _one_of_recipients(node: JsonMapping) -> Word:
    rule = read_recipient_rule(node["oneOfRecipients"])
    return Word(partial(judge_recipient, rule=rule), f"one mail address at {rule}")


_READERS: dict[str, Callable[[JsonMapping], Word]] = {
    "within": _within,
    "oneOfHosts": _one_of_hosts,
    "oneOfRecipients": _one_of_recipients,
}

MAX_WORD_VALUES = 10_000
"""Maximum number of values in an argument whose rule contains rule words such as `within`.

Rule words are judged in Python, which takes about 50 ms for this many values.
"""

WORDS = frozenset(_READERS)
"""All rule words: the keywords with which Moongate extends JSON Schema in rules for arguments.

Each judges text. It rejects all other values, except `null` if the rule's `type` accepts `null`.
"""


def has_keywords(rule: JsonMapping, keywords: Collection[str]) -> bool:
    """Return whether any part of a rule for an argument contains one of `keywords`."""
    waiting: list[JsonValue] = [rule]
    while waiting:
        part = waiting.pop()
        if not members_of(part).keys().isdisjoint(keywords):
            return True
        waiting += children_of(part)
    return False


def read_word(word: str, node: JsonMapping) -> Word:
    """Compile the rule word `word` (such as `within`) with its value in `node`, which is an argument rule or a subschema of the rule.

    Raises:
        ValueError: The value of the keyword is invalid; the message is the end of a sentence whose subject is the rule.
    """
    return _READERS[word](node)


class _Keyword:
    """A rule word (such as `within`) as a custom keyword of the validator `jsonschema-rs`, which calls `validate` for each value."""

    __slots__ = ("_judge", "_null_passes", "_wanted")

    def __init__(self, word: str, parent: dict[str, Any], value: object, path: list[str | int]) -> None:
        found = read_word(word, cast("JsonMapping", parent))
        self._judge = found.judge
        self._wanted = found.wanted
        self._null_passes = "null" in (parent.get("type") or ())

    def validate(self, instance: JsonValue) -> None:
        if isinstance(instance, str):
            problem = self._judge(instance)
            if problem is not None:
                raise ValueError(f"must be {self._wanted}, but it {problem}")
        elif instance is not None or not self._null_passes:
            raise ValueError(f"must be {self._wanted}")


KEYWORDS: dict[str, Callable[..., _Keyword]] = {word: partial(_Keyword, word) for word in _READERS}
"""Rule word (such as `within`) → factory of its custom keyword, for the option `keywords` of `jsonschema-rs`."""
