"""Splits a text of an elicitation form into words, and finds the names of secrets and the words of requests among them.

`secret_requests` uses the resulting `Reading` to decide whether the text asks for a secret. Words are compared as a person sees them
(`lookalikes`). A name of a secret counts as disguised if it is found only after replacing look-alike letters, digits or signs, or after
joining pieces.
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
"""Maximum number of words in a clause. Longer clauses are split, so that the time to judge a text is linear in its length."""

MAX_PIECES = 24
"""Maximum number of words that are joined to find a secret's name that is written in pieces ("pas swo rd")."""

_SIGNS = "@$!|+€£¢"
"""Signs that may replace letters inside words (`p@ssword`)."""

_MARKED = r"\u0900-\u0963\u0966-\u0dff\u0e00-\u0eff"
"""Character ranges of the letters and vowel signs of Indic scripts, Thai and Lao, because `\\w` does not match the vowel signs."""

_LETTER = r"[^\W\d_\u0900-\u0eff]"
"""Regular expression for one letter of a script without vowel signs."""

_APART = re.compile(
    rf"(?<![^\W_\u0900-\u0eff])(?:{_LETTER}|\d)(?:(?:[^\w\n\u0900-\u0eff]{{1,2}}|_)(?:{_LETTER}|[$@](?!\w)|\d(?!\w))){{2,}}(?![^\W_]|[\u0900-\u0eff])"
)
"""Matches at least three single letters with separators between them, such as `P I N` or `p.a.s.s`."""

_BETWEEN_LETTERS = re.compile(r"[^\w$@]|_")

_JOINED = "\u0950"
"""Prefix that this module adds to a word whose letters are separated in the text (`P I N`): the Om sign, which begins no ordinary word."""

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
"""Matches the end of a clause: sentence ends of all scripts, dashes, bullets, and `│`, the prefix of quoted lines.

Does not match the dot that begins a file name (`~/.netrc`).
"""

_DOT_ENV = re.compile(r"(?i)(?<![\w.])\.env\b(?!\.(?:example|sample|template|dist)\b)")
"""Matches the file name `.env`, but not public templates such as `.env.example`. Without the dot, `env` is an ordinary word."""

_SEGMENT_END = re.compile(r"[,()\[\]{}\"/\u060c\u3001\u201c-\u201e\u00ab\u00bb\u300c-\u300f]")


_QUOTATION = re.compile('["\u201c-\u201e\u00ab\u00bb\u300c-\u300f]')
_OPENING = "\u201e\u00ab\u300c\u300e\u201c"


class Word(NamedTuple):
    """One word of a text of a form, in the spellings that are compared with the word lists, and its position."""

    plain: str
    """The word in lower case, without accents, signs such as `$` at its ends, and an Arabic article."""
    spelled: tuple[str, ...]
    """Spellings of the word with Latin letters in place of look-alike letters and digits."""
    is_odd: bool
    """Whether one of the `spelled` forms differs from `plain`, so that the word may be a disguised name."""
    is_capitals: bool
    is_joined: bool
    """Whether the letters of the word are separated in the text, as in `P I N`."""
    clause: int
    """Number of the clause (part of a sentence) that contains the word."""
    segment: int
    """Number of the segment that contains the word. Segments end at commas, brackets, quotation marks and ends of clauses."""
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A name of a secret that was found in a text: the indexes of its words, from `start` up to but not including `end`, and its kind."""

    start: int
    end: int
    kind: str
    is_disguised: bool = False
    """Whether the name was found only after replacing look-alikes or joining pieces."""
    is_loose: bool = False
    """Whether the name alone is ambiguous (`secret`, `clave`)."""


@dataclass(slots=True)
class Reading:
    """A text of a form, split into words, with the names of secrets in it and the roles of other expressions (`request_words.WordRole`)."""

    words: list[Word]
    roles: list[dict[str, int]]
    """For each word, a dict of the expressions that begin at the word: role of the expression → index of the word after the expression."""
    clauses: list[range]
    """Range of word indexes of each clause, in order."""
    hits: list[Hit] = field(default_factory=list[Hit])
    covered: set[int] = field(default_factory=set[int])
    """Indexes of all words that belong to the name of a secret in `hits`."""

    def has(self, role: str, index: int) -> bool:
        """Return whether an expression with this role begins at word `index`."""
        return 0 <= index < len(self.words) and role in self.roles[index]

    def ends(self, role: str, index: int) -> bool:
        """Return whether an expression with this role, of at most four words, ends just before word `index`."""
        return any(self.roles[start].get(role) == index for start in range(max(0, index - 4), index))

    def clause_of(self, index: int) -> range:
        """Return the word indexes of the clause that contains word `index`."""
        return self.clauses[self.words[index].clause]


def read_text(text: str) -> tuple[Reading, ...]:
    """Split a text of a form into words in up to three ways, and return a `Reading` for each, with the names of secrets in the text.

    The first reading splits `camelCase`. If the text contains `camelCase`, a second reading does not split it. If the text contains
    look-alikes of Latin letters, another reading has them replaced.
    """
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
    """Return a word with Latin letters in place of look-alikes. Only a word that mixes Latin letters with other characters changes."""
    word = found.group()
    if (word.isascii() and word.isalpha()) or _ASCII_LETTER.search(word) is None:
        return word
    return read_letters(read_as_latin(word))


def _words(plain: str, *, camel: bool) -> list[Word]:
    """Split a text into words. With `camel`, split `camelCase` too. `plain` is the text as normalised by `lookalikes.read_plain`."""
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
    """Return whether the word after the characters `between` is in quotation marks.

    `is_quoted`: the word before `between` is in quotation marks.
    """
    for mark in _QUOTATION.findall(between):
        is_quoted = mark in _OPENING or (mark == '"' and not is_quoted)
    return is_quoted


def _together(found: re.Match[str]) -> str:
    word = _BETWEEN_LETTERS.sub("", found.group())
    return f" {_JOINED}{word if word.isupper() else word.lower()} "


def _set_apart(text: str) -> str:
    """Insert spaces around words of the word lists in a text whose script has no spaces between words, such as Chinese."""
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
    """Split one word of the text: before trailing digits and, with `camel`, between the parts of `camelCase`.

    Return the first five fields of a `Word` for each part.
    """
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
    """Find the names of secrets and the roles of expressions among the words of a text, and return them with the words."""
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
    """Yield the names of secrets that consist of one expression from each list of a pair in `form_word_pairs.PAIRS`.

    The order does not matter: "words of your wallet", "wallet words".
    """
    for start, roles in enumerate(reading.roles):
        for role, at in roles.items():
            other, kind = known.pairs.get(role, ("", ""))
            stop = min(at + MAX_GAP + 1, reading.clause_of(start).stop) if other else 0
            while at < stop and other not in reading.roles[at] and (role in reading.roles[at] or _is_between(reading, at)):
                at += 1
            if at < stop and other in reading.roles[at]:
                yield Hit(start, reading.roles[at][other], kind)


def _is_between(reading: Reading, index: int) -> bool:
    """Return whether the word at `index` may occur between the two expressions of a pair in `form_word_pairs.PAIRS`."""
    if index in reading.covered or reading.words[index].plain[:1].isdigit():
        return True
    return not reading.roles[index].keys().isdisjoint(("small", "of", "any value"))


def _end_of(entry: Entry, words: list[Word], index: int, known: Lexicon, *, spelled: bool = False) -> int | None:
    """Return the index of the word after a word-list entry whose first word is at `index`; `None` if the entry's other words do not follow.

    Small words such as "of", and numbers, may occur between the words of the entry. With `spelled`, disguised words match too.
    """
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
    """Return the name of a secret inside the longer word at `index`, or a disguised name that begins at `index`; otherwise `None`."""
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
    """Yield long names of secrets that are written in pieces ("pas swo rd"). Skips words in `covered`, which belong to other names."""
    for first in range(len(words) - 1):
        joined = undouble(words[first].spelled[0])
        last = first + 1
        while last < min(len(words), first + MAX_PIECES) and joined in known.beginnings:
            joined = undouble(joined + words[last].spelled[0])
            last += 1
            if joined in known.pieces and covered.isdisjoint(range(first, last)):
                yield Hit(first, last, "password", is_disguised=True)
