"""`SearchIndex`: ranks skills for a query, by BM25 over what describes them. Offline and deterministic.

Own scoring, because what it takes is short and the libraries are not: `rank-bm25` and `bm25s` bring NumPy, and
SQLite's FTS5 is missing from some Python builds and cannot split text without spaces. Knows words only: no
embeddings, no bodies. `index` builds it with the table; `tools` asks it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonMapping
from gateway.skills.models import Skill

K1 = 1.2
B = 0.75
"""The usual BM25 constants: how fast repetition saturates, and how much length counts."""

NAME_WEIGHT = 4
KEYWORD_WEIGHT = 2
"""A word in the name or the tags says more than one in the description or a heading."""

PREFIX_CREDIT = 0.4
"""What a word counts that only starts with the query's word."""

STOP_WORDS = frozenset(
    "a an and are as at be by can do for from how i in is it me my of on or please skill skills that the this to use used "
    "using want we what when which with you your".split()
)

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Scripts written without spaces: matched by pairs of characters."""

_HEADING = re.compile(r"^#{1,3}[ \t]+(.+)$", re.MULTILINE)
_SUFFIXES = ("ing", "ies", "ed", "es", "s", "e", "y")


def words_of(text: str) -> list[str]:
    """The terms of a text: case, accents and common English endings do not count."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    terms: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFC", plain)):
        if _UNSPACED.search(word):
            terms += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        elif word not in STOP_WORDS:
            terms.append(_stem(word))
    return terms


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and not word.endswith("ss") and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


class SearchIndex:
    """BM25 over a fixed set of skills. Building is linear in their text; a search in the matches."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        """Reads names, descriptions, headings and the `tags` or `keywords` of `metadata`."""
        self._skills = list(skills)
        counts = [_count_terms(skill) for skill in self._skills]
        lengths = [sum(c.values()) for c in counts]
        self._mean = sum(lengths) / len(lengths) if lengths else 1.0
        self._lengths = lengths
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for position, count in enumerate(counts):
            for term, times in count.items():
                self._postings.setdefault(term, []).append((position, times))
        self._terms = sorted(self._postings)

    def rank(self, query: str) -> list[Skill]:
        """Skills that share a word with `query`, best first; equal scores by id."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(words_of(query)):
            best: dict[int, float] = {}
            for known, credit in self._matching(term):
                for position, score in self._score(known):
                    best[position] = max(best.get(position, 0.0), score * credit)
            for position, score in best.items():
                scores[position] = scores.get(position, 0.0) + score
        ranked = [(round(score, 4), self._skills[position]) for position, score in scores.items()]
        return [skill for _, skill in sorted(ranked, key=lambda item: (-item[0], item[1].id))]

    def _matching(self, term: str) -> list[tuple[str, float]]:
        found = [(term, 1.0)] if term in self._postings else []
        if len(term) < 3:
            return found
        position = bisect_left(self._terms, term)
        while position < len(self._terms) and self._terms[position].startswith(term):
            if self._terms[position] != term:
                found.append((self._terms[position], PREFIX_CREDIT))
            position += 1
        return found

    def _score(self, term: str) -> list[tuple[int, float]]:
        postings = self._postings[term]
        rarity = math.log(1 + (len(self._skills) - len(postings) + 0.5) / (len(postings) + 0.5))
        return [
            (position, rarity * times * (K1 + 1) / (times + K1 * (1 - B + B * self._lengths[position] / self._mean)))
            for position, times in postings
        ]


def _count_terms(skill: Skill) -> Counter[str]:
    counts: Counter[str] = Counter()
    for term in words_of(f"{skill.id} {skill.document.name}"):
        counts[term] = NAME_WEIGHT
    frontmatter = skill.document.frontmatter
    metadata = frontmatter.get("metadata")
    inner = cast("JsonMapping", metadata) if isinstance(metadata, dict) else frontmatter
    for key in ("tags", "keywords", "triggers"):
        for term in words_of(f"{frontmatter.get(key, '')} {inner.get(key, '') if inner is not frontmatter else ''}"):
            counts[term] += KEYWORD_WEIGHT
    counts.update(words_of(skill.document.description))
    counts.update(set(words_of(" ".join(_HEADING.findall(skill.document.body)))))
    return counts
