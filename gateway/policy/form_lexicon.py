"""Prepares the word lists about secrets and requests, so that texts of elicitation forms can be searched fast.

The lists are in `form_words`, `form_word_pairs` and `request_words`; `form_reading` searches. The lists are prepared once, when the gateway
judges its first form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from gateway.policy.form_word_pairs import PAIRS
from gateway.policy.form_words import SECRETS
from gateway.policy.lookalikes import read_as_latin, read_plain, spell_letters, undouble
from gateway.policy.request_words import HARMLESS_AFTER, HARMLESS_BEFORE, ROLES

CJK = "\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Character ranges of scripts without spaces between words, such as Chinese and Thai, and of Korean, whose particles join the words."""

MIN_DISGUISED = 3
"""Minimum number of letters of a secret's name that is also recognised in disguise, such as with digits in place of letters."""

MIN_JOINED = 6
"""Minimum number of letters of a secret's name of several words ("api key") that is also recognised as a single word (`apikey`)."""

LONG_NAME = 7
"""Minimum number of letters of a secret's name of one word that is also recognised in pieces ("pas swo rd"). Pieces of shorter names often
occur in ordinary text. For a name of several words, `MIN_JOINED` is the minimum."""

_CJK_RUN = re.compile(f"[{CJK}]+")
_OTHER_SCRIPT = re.compile(r"[\u0590-\u1cff\u2e80-\uffff]")
"""Matches a character of a script whose letters do not look like Latin letters."""

_ARABIC_PREFIX = re.compile(r"^(?:[وف]?(?:ب?ال|لل|كال)|[وف](?=ال))(?=\w{3})")
"""Matches the Arabic article at the beginning of a word, with prepositions and conjunctions that are attached to it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of the word lists for forms, of one or more words: a name of a secret, or an expression with a role in requests."""

    words: tuple[str, ...]
    is_prefix: tuple[bool, ...]
    """For each of `words`, whether it also matches longer words that begin with it."""
    kind: str
    """Meaning of the item: a kind of secret, a role in requests, or a side of a word pair (`form_word_pairs`). An item that makes names of
    secrets harmless has the kind "not KIND" (before a name of this kind) or "after NAME" (after this name)."""
    is_secret: bool
    """Whether the item is a name of a secret."""
    needs_capitals: bool
    """Whether the item matches only words in capitals."""


class EntryIndex:
    """Index of word-list entries by their first word, to find the entries that may begin at a given word of a text."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._whole: dict[str, list[Entry]] = {}
        self._beginning: dict[str, list[Entry]] = {}
        for entry in entries:
            first = entry.words[0]
            if entry.is_prefix[0]:
                self._beginning.setdefault(first[:2], []).append(entry)
            else:
                self._whole.setdefault(first, []).append(entry)

    def begin_with(self, word: str) -> list[Entry]:
        """Return the entries whose first word is `word`, or is the beginning of `word` if the entry also matches longer words."""
        found = self._whole.get(word, [])
        some = [entry for entry in self._beginning.get(word[:2], ()) if word.startswith(entry.words[0])]
        return [*found, *some] if some else found


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The word lists of `form_words`, `form_word_pairs` and `request_words`, in forms that are fast to search."""

    plain: EntryIndex
    """Index of all entries of the word lists, by their words as the lists spell them."""
    spelled: EntryIndex
    """Index of the names of secrets, by their words without doubled letters, and with letters in place of digits and signs.

    `password` is indexed as `pasword`. A disguised `p4ssword` in a text is spelled in the same way (`lookalikes.spell_letters`), and so
    it matches."""
    small: frozenset[str]
    """Words that may occur between the words of a secret's name, such as "of"."""
    pieces: frozenset[str]
    """Names of secrets that are recognised in pieces ("pas swo rd"), with doubled letters made single."""
    beginnings: frozenset[str]
    """All beginnings of the names in `pieces`. The search for pieces stops when the joined pieces are not among these beginnings."""
    run: re.Pattern[str]
    """Matches the names of secrets inside a run of separated letters ("p l e a s e t y p e y o u r p a s s w o r d")."""
    by_first_letter: dict[str, list[str]]
    """First letter → words that begin with this letter, longest first. Contains the words of the lists in scripts without spaces."""
    inside: re.Pattern[str]
    """Matches a secret's name inside a longer word (`Benutzerpasswort`), and captures the name and the rest of the word."""
    inside_kinds: dict[str, str]
    """Name of a secret that `inside` captures → kind of secret."""
    pairs: dict[str, tuple[str, str]]
    """Side of a word pair (`form_word_pairs`) → the other side, and the kind of secret that both sides together name."""
    about: tuple[str, ...]
    """Word parts that make a secret's name harmless if they follow it inside a longer word (`richtlinie` in `Passwortrichtlinie`)."""

    def kind_inside(self, word: str) -> str | None:
        """Return the kind of secret whose name is a part of a longer `word` (`Benutzerpasswort`), or `None`."""
        found = self.inside.search(word) if len(word) >= MIN_JOINED else None
        if found is None:
            return None
        rest = (found.group(2) or "").removeprefix("s")
        return None if rest and rest.startswith(self.about) else self.inside_kinds[found.group(1) or found.group(3)]


def without_article(word: str) -> str:
    """Remove the article, and prepositions joined to it, from the beginning of an Arabic word. Other words are returned unchanged."""
    return _ARABIC_PREFIX.sub("", word)


@cache
def lexicon() -> Lexicon:
    """Return the searchable form of all word lists for forms. The first call builds it; later calls return the same read-only object."""
    secrets = [(item, kind) for kind, text in SECRETS.items() for item in _items(text)]
    roles = [(item, role) for role, text in ROLES.items() for item in _items(text)]
    others = [(item, f"not {kind}") for kind, text in HARMLESS_BEFORE.items() for item in _items(text)]
    others += [(item, f"after {name}") for name, text in HARMLESS_AFTER.items() for item in _items(text)]
    sides = [
        (item, f"{side} {number}")
        for number, (_, *lists) in enumerate(PAIRS)
        for side, text in zip("ab", lists, strict=True)
        for item in _items(text)
    ]
    plain = [*_entries(secrets, is_secret=True), *_entries([*roles, *others, *sides], is_secret=False)]
    spelled = list(_spelled(secrets))
    single = {entry.words[0] for entry in spelled if len(entry.words) == 1}
    joined = {spell_letters("".join(entry.words))[0] for entry in spelled if len(entry.words) > 1}
    long_names = {name for name in single if len(name) >= LONG_NAME} | {name for name in joined if len(name) >= MIN_JOINED}
    pieces = frozenset(undouble(name) for name in long_names if name.isascii())
    in_run = {name for name in single | joined if len(name) > MIN_DISGUISED and name.isascii()}
    inside = [(item, kind) for item, kind in secrets if item.startswith("*")]
    opening = [item.strip("*") for item, _ in inside if item.endswith("*")]
    ending = [item.strip("*") for item, _ in inside if not item.endswith("*")]
    return Lexicon(
        EntryIndex(plain),
        EntryIndex(spelled),
        frozenset(item.lower() for role in ("small", "own", "courtesy") for item in _items(ROLES[role])),
        pieces,
        frozenset(beginning for name in pieces for beginning in accumulate(name)),
        re.compile(_any_of(in_run)),
        _by_first_letter(item for item, _ in [*secrets, *roles, *others, *sides]),
        re.compile(f"({_any_of(opening)})(.*)|({_any_of(ending)})s?$"),
        {item.strip("*"): kind for item, kind in inside},
        {f"{side} {number}": (f"{other} {number}", pair[0]) for number, pair in enumerate(PAIRS) for side, other in ("ab", "ba")},
        tuple(item.rstrip("*") for item in _items(ROLES["about after"]) if item.endswith("*") and " " not in item),
    )


def _items(text: str) -> list[str]:
    """Split a word list, which is one text with commas and line ends, into its items, normalised by `lookalikes.read_plain`."""
    return [item for item in (part.strip() for part in read_plain(text).replace("\n", ",").split(",")) if item]


def _entries(pairs: Iterable[tuple[str, str]], *, is_secret: bool) -> Iterator[Entry]:
    for item, kind in pairs:
        if item.startswith("*"):
            continue
        parts = [part for word in item.split() for part in _parts_of(word)]
        words, prefix = tuple(part.rstrip("*") for part in parts), tuple(part.endswith("*") for part in parts)
        capitals = item.isupper() and item.isascii()
        yield Entry(words, prefix, kind, is_secret, capitals)
        joined = "".join(words)
        if is_secret and len(words) > 1 and len(joined) >= MIN_JOINED and not capitals:
            yield Entry((joined,), (prefix[-1],), kind, is_secret, needs_capitals=False)


def _parts_of(word: str) -> list[str]:
    """Split a word of a word-list item as `form_reading` splits text: at script changes, apostrophes, hyphens and trailing digits."""
    apart = _CJK_RUN.sub(lambda found: f" {found.group()} ", word.lower()).split()
    parts = [without_article(piece) for run in apart for piece in re.split(r"['\u2019-]", run) if piece]
    return [piece for part in parts for piece in re.split(r"(?<=[^\W\d_])(?=\d+\*?$)", part)]


def _spelled(secrets: Iterable[tuple[str, str]]) -> Iterator[Entry]:
    """Yield the names of secrets without doubled letters, and with letters in place of digits and signs, for `Lexicon.spelled`.

    A name with letters beyond ASCII is also yielded in the spelling of its capitals, because a capital may look like another letter.
    """
    for item, kind in secrets:
        bare = item.removeprefix("*")
        if _OTHER_SCRIPT.search(item) is not None or (bare != item and len(bare) < LONG_NAME):
            continue
        for cased in {bare} if bare.isascii() else {bare, bare.upper(), bare.title()}:
            parts = [part for word in read_as_latin(cased).split() for part in _parts_of(word)]
            words = tuple(spell_letters(part.rstrip("*"))[0] for part in parts)
            if sum(map(len, words)) >= MIN_DISGUISED:
                prefix = (*(False for _ in words[1:]), item.endswith("*"))
                yield Entry(words, prefix, kind, is_secret=True, needs_capitals=item.isupper() and item.isascii())


def _by_first_letter(items: Iterable[str]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for word in sorted({run for item in items for run in _CJK_RUN.findall(item)}, key=lambda word: (-len(word), word)):
        table.setdefault(word[0], []).append(word)
    return table


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name))))
