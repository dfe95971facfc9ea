"""Split a text of a form into words and find the names of secrets and the words of requests in it.

`secret_requests` decides from the resulting `Reading`. Words are compared as a person sees them (`lookalikes`). A name that is found only
after replacing look-alike letters, digits or signs, or after joining pieces, is marked as disguised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from gateway.policy.form_lexicon import CJK, Entry, Lexicon, lexicon, without_article
from gateway.policy.lookalikes import read_as_latin, read_letters, read_plain, spell_letters, undouble

MAX_GAP = 4
"""Maximum number of small words between two words of a secret's name ("number of your card")."""

MAX_CLAUSE_WORDS = 60
"""Longest clause; longer ones are split, so that the time to judge a text is linear in its length."""

MAX_PIECES = 24
"""Maximum number of pieces that are joined to find a secret's name written in pieces."""

_SIGNS = "@$!|+€£¢"
"""Signs that are used in place of letters inside words (`p@ssword`)."""

_MARKED = r"\u0900-\u0963\u0966-\u0dff\u0e00-\u0eff"
"""Character ranges of the letters and vowel signs of Indic scripts, Thai and Lao; `\\w` does not match the signs."""

_LETTER = r"[^\W\d_\u0900-\u0eff]"
"""A letter of a script without vowel signs."""

_APART = re.compile(
    rf"(?<![^\W_\u0900-\u0eff])(?:{_LETTER}|\d)(?:(?:[^\w\n\u0900-\u0eff]{{1,2}}|_)(?:{_LETTER}|[$@](?!\w)|\d(?!\w))){{2,}}(?![^\W_]|[\u0900-\u0eff])"
)
"""At least three single letters with separators between them: `P I N`, `p.a.s.s`."""

_BETWEEN_LETTERS = re.compile(r"[^\w$@]|_")

_JOINED = "\u0950"
"""Internal prefix that marks a word whose letters the text separates. It is the Om sign, with which no ordinary word begins."""

_SEPARATED_CJK = re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff])[\s._\u00b7\u2010\u30fb*/-]+(?=[\u3040-\u30ff\u3400-\u9fff])")
_HAS_CJK = re.compile(f"[{CJK}]")
_SCRIPT_EDGE = re.compile(rf"(?<=[{CJK}])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[{CJK}])")
_WORD = re.compile(rf"[@$|!€£¢]?(?:[^\W_]|[{_MARKED}])+(?:[{_SIGNS}]+(?:[^\W_]|[{_MARKED}])+)*")
_RUN = re.compile(rf"[\w{_SIGNS}]+")
_ASCII_LETTER = re.compile("[A-Za-z]")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TRAILING_DIGITS = re.compile(r"(?<=[^\W\d_])(?=\d+$)")
_CLAUSE_END = re.compile(
    r"(?:[!?:;]|(?<![\s/])\.)(?:\s|$)|[\n\r\u3002\uff01\uff1f\uff1b\uff1a\u0964\u06d4\u061f\u2026\u2502\u2022\u2013\u2014]|\s-\s"
)
"""Sentence ends of all scripts, dashes, bullets, and the mark of quoted lines; not the dot that begins a file name (`~/.netrc`)."""

_DOT_ENV = re.compile(r"(?i)(?<![\w.])\.env\b(?!\.(?:example|sample|template|dist)\b)")
"""Matches the file name `.env`, but not public templates such as `.env.example`. Without the dot, `env` is an ordinary word."""

_SEGMENT_END = re.compile(r"[,()\[\]{}\"/\u060c\u3001\u201c-\u201e\u00ab\u00bb\u300c-\u300f]")


_QUOTATION = re.compile('["\u201c-\u201e\u00ab\u00bb\u300c-\u300f]')
_OPENING = "\u201e\u00ab\u300c\u300e\u201c"


class Word(NamedTuple):
    """One word of a text."""

    plain: str
    """The word in lower case, without accents."""
    spelled: tuple[str, ...]
    """Spellings of the word with Latin letters in place of look-alike letters and digits."""
    is_odd: bool
    """Whether one of the `spelled` forms differs from `plain`, so that the word may be a disguised name."""
    is_capitals: bool
    is_joined: bool
    """Whether the text separates the letters of the word, as in `P I N`."""
    clause: int
    segment: int
    """Number of the part of the text that has the word: parts end at commas, brackets, quotation marks and ends of clauses."""
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A name of a secret that was found in a `Reading`: its words `start` to `end` (excluded), and the kind of secret."""

    start: int
    end: int
    kind: str
    is_disguised: bool = False
    is_loose: bool = False
    """Whether the name alone is ambiguous (`secret`, `clave`)."""


@dataclass(slots=True)
class Reading:
    """A text split into words, with the names of secrets among them and the roles (`request_words`) of other expressions."""

    words: list[Word]
    roles: list[dict[str, int]]
    """For each word: role of an expression that begins at the word → index of the word after the expression."""
    clauses: list[range]
    """Range of word indexes of each clause, in order."""
    hits: list[Hit] = field(default_factory=list[Hit])
    covered: set[int] = field(default_factory=set[int])
    """Indexes of all words that belong to a hit."""

    def has(self, role: str, index: int) -> bool:
        """Return whether an expression with this role begins at word `index`."""
        return 0 <= index < len(self.words) and role in self.roles[index]

    def ends(self, role: str, index: int) -> bool:
        """Return whether an expression with this role ends just before word `index`."""
        return any(self.roles[start].get(role) == index for start in range(max(0, index - 4), index))

    def clause_of(self, index: int) -> range:
        """Return the word indexes of the clause that contains word `index`."""
        return self.clauses[self.words[index].clause]


def read_text(text: str) -> tuple[Reading, ...]:
    """Return readings of a text: with `camelCase` split; if that or look-alikes occur, also unsplit and with look-alikes replaced."""
    plain = read_plain(text)
    readings = [_found(_words(plain, camel=True))]
    if _CAMEL.search(plain) is not None:
        readings.append(_found(_words(plain, camel=False)))
    seen = _RUN.sub(_as_it_looks, plain)
    if seen != plain:
        readings.append(_found(_words(seen, camel=False)))
    return tuple(readings)


# -- words ---------------------------------------------------------------------------------------------------------


def _as_it_looks(found: re.Match[str]) -> str:
    """Return a word with Latin letters in place of look-alikes, if it mixes Latin letters with digits, signs or other letters."""
    word = found.group()
    if (word.isascii() and word.isalpha()) or _ASCII_LETTER.search(word) is None:
        return word
    return read_letters(read_as_latin(word))


def _words(plain: str, *, camel: bool) -> list[Word]:
    """Split a text that `read_plain` has normalised into words; with `camel`, also inside `camelCase`."""
    text = _APART.sub(_together, _DOT_ENV.sub("dotenv", plain))
    if _HAS_CJK.search(text) is not None:
        text = _SCRIPT_EDGE.sub(" ", _set_apart(_SEPARATED_CJK.sub("", text)))
    words: list[Word] = []
    clause = segment = last = length = 0
    is_quoted = False
    for found in _WORD.finditer(text):
        between = text[last : found.start()]
        if between != " " and between:
            is_quoted = _is_in_quotes(between, is_quoted)
            if not words:
                pass
            elif _CLAUSE_END.search(between) is not None:
                clause, segment, length = clause + 1, segment + 1, 0
            elif _SEGMENT_END.search(between) is not None:
                segment += 1
        if length >= MAX_CLAUSE_WORDS:
            clause, segment, length = clause + 1, segment + 1, 0
        last = found.end()
        parts = _parts(found.group(), camel)
        words += [Word(*part, clause, segment, is_quoted) for part in parts]
        length += len(parts)
    return words


def _is_in_quotes(between: str, is_quoted: bool) -> bool:
    """Return whether the word after the characters `between` is in quotation marks. `is_quoted`: the word before them was."""
    for mark in _QUOTATION.findall(between):
        is_quoted = mark in _OPENING or (mark == '"' and not is_quoted)
    return is_quoted


def _together(found: re.Match[str]) -> str:
    word = _BETWEEN_LETTERS.sub("", found.group())
    return f" {_JOINED}{word if word.isupper() else word.lower()} "


def _set_apart(text: str) -> str:
    """Insert spaces around known words (of the word lists) in text of scripts that are written without spaces."""
    table = lexicon().by_first_letter
    out: list[str] = []
    at = start = 0
    while at < len(text):
        known = table.get(text[at])
        word = next((word for word in known if text.startswith(word, at)), None) if known is not None else None
        if word is None:
            at += 1
            continue
        out += (text[start:at], " ", word, " ")
        at = start = at + len(word)
    out.append(text[start:])
    return "".join(out)


@lru_cache(maxsize=8192)
def _parts(surface: str, camel: bool) -> tuple[tuple[str, tuple[str, ...], bool, bool, bool], ...]:
    """Split one run of letters at camel case and trailing digits. Returns the first five fields of a `Word` for each part."""
    is_joined, surface = surface.startswith(_JOINED), surface.removeprefix(_JOINED)
    latin = read_as_latin(surface)
    cuts = [0, *([found.start() for found in _CAMEL.finditer(latin)] if camel else ()), len(surface)]
    parts: list[tuple[str, tuple[str, ...], bool, bool, bool]] = []
    for first, last in pairwise(cuts):
        piece, seen = surface[first:last], latin[first:last].lower()
        digits = _TRAILING_DIGITS.search(piece)
        head = piece[: digits.start()] if digits is not None else piece
        plain = without_article(head.lower().strip(_SIGNS))
        written = (seen, seen.lstrip(_SIGNS), *((seen[: digits.start()],) if digits is not None else ()))
        spelled = tuple(dict.fromkeys(spelling for text in written for spelling in spell_letters(text)))
        parts.append((plain, spelled, spelled != (plain,), head.isupper(), is_joined))
        if digits is not None:
            tail = piece[digits.start() :]
            parts.append((tail, (tail,), False, False, False))
    return tuple(parts)


# -- names and roles --------------------------------------------------------------------------------------------


def _found(words: list[Word]) -> Reading:
    """Return a `Reading` of these words of a text, with the names of secrets and the roles that were found."""
    known = lexicon()
    starts = [index for index, word in enumerate(words) if index == 0 or words[index - 1].clause != word.clause]
    reading = Reading(words, [{} for _ in words], [range(*edges) for edges in pairwise([*starts, len(words)])])
    has_odd = any(word.is_odd for word in words)
    behind = 0
    for index, word in enumerate(words):
        hit: Hit | None = None
        roles = reading.roles[index]
        for entry in known.plain.begin_with(word.plain):
            end = _end_of(entry, words, index, known)
            if end is None:
                continue
            if not entry.is_secret:
                roles[entry.kind] = max(end, roles.get(entry.kind, 0))
            elif hit is None or end > hit.end:
                hit = Hit(index, end, entry.kind)
        if word.plain in known.small:
            roles["small"] = index + 1
        elif hit is None:
            hit = _hidden(words, index, known, has_odd=has_odd)
        if hit is not None and hit.end > behind:
            reading.hits.append(hit)
            reading.covered.update(range(hit.start, hit.end))
            behind = hit.end
    reading.hits += _in_pieces(words, reading.covered, known)
    for hit in _paired(reading, known):
        reading.hits.append(hit)
        reading.covered.update(range(hit.start, hit.end))
    return reading


def _paired(reading: Reading, known: Lexicon) -> Iterator[Hit]:
    """Yield names of secrets with one word from each list of a `PAIRS` item, in any order ("words of your wallet", "wallet words")."""
    for start, roles in enumerate(reading.roles):
        for role, at in roles.items():
            other, kind = known.pairs.get(role, ("", ""))
            stop = min(at + MAX_GAP + 1, reading.clause_of(start).stop) if other else 0
            while at < stop and other not in reading.roles[at] and (role in reading.roles[at] or _is_between(reading, at)):
                at += 1
            if at < stop and other in reading.roles[at]:
                yield Hit(start, reading.roles[at][other], kind)


def _is_between(reading: Reading, index: int) -> bool:
    """Return whether the word at `index` may stand between the two words of a pair (`PAIRS`)."""
    if index in reading.covered or reading.words[index].plain[:1].isdigit():
        return True
    return not reading.roles[index].keys().isdisjoint(("small", "of", "any value"))


def _end_of(entry: Entry, words: list[Word], index: int, known: Lexicon, *, spelled: bool = False) -> int | None:
    """Return the index after the words of `entry`, the first at `index`; `None` if the others do not follow. Skips small words."""
    if entry.needs_capitals and not words[index].is_capitals:
        return None
    at, clause = index + 1, words[index].clause
    for wanted, is_prefix in zip(entry.words[1:], entry.is_prefix[1:], strict=True):
        for _ in range(MAX_GAP + 1):
            if at >= len(words) or words[at].clause != clause:
                return None
            word = words[at]
            texts = word.spelled if spelled else (word.plain,)
            if wanted in texts or (is_prefix and any(text.startswith(wanted) for text in texts)):
                break
            if word.plain not in known.small and not word.plain.isdigit():
                return None
            at += 1
        else:
            return None
        at += 1
    return at


def _hidden(words: list[Word], index: int, known: Lexicon, *, has_odd: bool) -> Hit | None:
    """Return the name of a secret that is part of word `index` or disguised there, or `None`."""
    word = words[index]
    kind = known.kind_inside(word.plain)
    if kind is not None:
        return Hit(index, index + 1, kind)
    if word.is_joined and any(known.run.search(text) for text in word.spelled):
        return Hit(index, index + 1, "password", is_disguised=True)
    best: Hit | None = None
    for text in word.spelled if has_odd else ():
        for entry in known.spelled.begin_with(text):
            end = _end_of(entry, words, index, known, spelled=True)
            if end is None or (best is not None and end <= best.end):
                continue
            # An undisguised word was already compared as written; here it would match by its beginning only.
            if any(_is_disguised(word) for word in words[index:end]) or not any(entry.is_prefix):
                best = Hit(index, end, entry.kind, is_disguised=True)
    return best


def _is_disguised(word: Word) -> bool:
    """Return whether look-alike letters, digits or signs disguise a word; doubled letters alone do not."""
    return word.is_odd and word.spelled != spell_letters(word.plain)


def _in_pieces(words: list[Word], covered: set[int], known: Lexicon) -> Iterator[Hit]:
    """Yield long names of secrets that are written in pieces ("pas swo rd"), outside the words in `covered`."""
    for first in range(len(words) - 1):
        joined = undouble(words[first].spelled[0])
        last = first + 1
        while last < min(len(words), first + MAX_PIECES) and joined in known.beginnings:
            joined = undouble(joined + words[last].spelled[0])
            last += 1
            if joined in known.pieces and covered.isdisjoint(range(first, last)):
                yield Hit(first, last, "password", is_disguised=True)
