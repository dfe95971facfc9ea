"""`WordIndex`: ranks short descriptions for a query, by BM25. Offline and deterministic; skills and tools are found by it.

Own scoring, because what it takes is short and the libraries are not: `rank-bm25` and `bm25s` bring NumPy, and
SQLite's FTS5 is missing from some Python builds and cannot split text without spaces. Knows words only: no embeddings.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

K1 = 1.2
B = 0.75
"""The usual BM25 constants: how fast repetition saturates, and how much length counts."""

NAME_WEIGHT = 4
"""A word in the name says more than one in the description."""

PREFIX_CREDIT = 0.4
"""What a word counts that only starts with the query's word."""

STOP_WORDS = frozenset(
    "a an and are as at be by can do for from how i in is it me my of on or please skill skills that the this to use used "
    "using want we what when which with you your".split()
)

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Scripts written without spaces: matched by pairs of characters."""

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


class WordIndex:
    """BM25 over a fixed list of documents. Building is linear in their text; a search in the matches."""

    def __init__(self, counts: Sequence[Counter[str]]) -> None:
        """The terms of each document (`words_of`) with their weights."""
        self._size = len(counts)
        lengths = [sum(c.values()) for c in counts]
        self._mean = sum(lengths) / len(lengths) if lengths else 1.0
        self._lengths = lengths
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for position, count in enumerate(counts):
            for term, times in count.items():
                self._postings.setdefault(term, []).append((position, times))
        self._terms = sorted(self._postings)

    def scores(self, query: str) -> dict[int, float]:
        """Position → score of the documents that share a word with `query`; higher is better."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(words_of(query)):
            best: dict[int, float] = {}
            for known, credit in self._matching(term):
                for position, score in self._score(known):
                    best[position] = max(best.get(position, 0.0), score * credit)
            for position, score in best.items():
                scores[position] = scores.get(position, 0.0) + score
        return {position: round(score, 4) for position, score in scores.items()}

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
        rarity = math.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
        return [
            (position, rarity * times * (K1 + 1) / (times + K1 * (1 - B + B * self._lengths[position] / self._mean)))
            for position, times in postings
        ]
