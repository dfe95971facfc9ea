"""`WordIndex`: searches short descriptions and ranks them, with SQLite's full-text search (FTS5) in memory. Used to find skills and tools.

Decided: FTS5 with its `bm25()`, Porter's stemmer and Unicode's word rules. Because: every supported Python has it in `sqlite3`, it indexes
5,000 descriptions in a tenth of the time and a third of the memory of a scorer in Python, and it answers in less than a millisecond.
Instead of: `rank-bm25` and `bm25s` (they need NumPy and have no stemmer), and `tantivy` (a compiled wheel of 5 MB). FTS5 cannot split text
without spaces, so text in such scripts is indexed as pairs of characters. Revisit when: the search must match meanings rather than words.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence

from gateway.errors import StorageError

WEIGHTS = (4.0, 2.0, 1.0)
"""Weights, in this order, of matches in the name, in the keywords and in the text of a document."""

MAX_QUERY_WORDS = 32
"""Maximum number of words of a query that are searched; further words are ignored."""

MIN_PREFIX = 3
"""Minimum length, in characters, of a query's word that also matches longer words which start with it."""

STOP_WORDS = frozenset(
    "a an and are as at be by can do for from how i in is it me my of on or please skill skills that the this to use used "
    "using want we what when which with you your".split()
)

_TABLE = "CREATE VIRTUAL TABLE words USING fts5(name, keywords, text, content='', tokenize='porter unicode61 remove_diacritics 2')"
_FIND = "SELECT rowid, bm25(words, ?, ?, ?) FROM words WHERE words MATCH ?"
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Matches text in scripts without spaces between words, which is searched by pairs of characters."""

Row = tuple[str, str, str]
"""A document of the search index: name, keywords and text."""


class WordIndex:
    """A full-text index of a fixed list of documents. The first search builds the index. Several threads may search at the same time."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Store the documents. The index is built at the first search, because most indexes are never searched."""
        self._rows: Sequence[Row] = rows
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def scores(self, query: str) -> dict[int, float]:
        """Return the scores of all documents that match a word of `query`: position in the list → score. A higher score is better.

        Words without meaning (`STOP_WORDS`) are ignored; the dict is empty if no other word is left.

        Raises:
            StorageError: The SQLite library of this Python does not include FTS5.
        """
        wanted = _to_match(query)
        if not wanted or not self._rows:
            return {}
        with self._lock:
            if self._database is None:
                self._database = _build(self._rows)
            found: list[tuple[int, float]] = self._database.execute(_FIND, (*WEIGHTS, wanted)).fetchall()
        return {position: -score for position, score in found}


def _build(rows: Sequence[Row]) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        database.execute(_TABLE)
    except sqlite3.OperationalError as error:
        raise StorageError(f"Searching needs SQLite with FTS5, which this Python does not have ({error}); use another build.") from None
    documents = ((at, *(_spaced(text) for text in row)) for at, row in enumerate(rows))
    database.executemany("INSERT INTO words(rowid, name, keywords, text) VALUES (?, ?, ?, ?)", documents)
    return database


def _to_match(query: str) -> str:
    """Convert a query to FTS5 syntax. It matches documents with any word of the query that is not a stop word.

    A word of at least `MIN_PREFIX` characters also matches longer words that start with it. Empty if no word is left.
    """
    words = [word for word in _WORD.findall(_spaced(query)) if word.casefold() not in STOP_WORDS]
    terms: list[str] = []
    for word in dict.fromkeys(words[:MAX_QUERY_WORDS]):
        terms.append(f'"{word}"')
        if len(word) >= MIN_PREFIX:
            terms.append(f'"{word}"*')
    return " OR ".join(terms)


def _spaced(text: str) -> str:
    """Return `text` with words in scripts without spaces (such as Chinese) replaced by all pairs of adjacent characters."""
    plain = text.encode("utf-8", errors="replace").decode()  # SQLite rejects lone surrogates
    return _UNSPACED.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", plain.replace("\x00", " "))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(max(1, len(run) - 1))]
