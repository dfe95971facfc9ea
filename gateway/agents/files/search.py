"""Searching files by regular expression, within a time that a bad expression cannot outlast; and what a search finds."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio

from gateway.json_types import JsonMapping, JsonObject
from gateway.processes import seal_descriptors

MAX_PATTERN_CHARS = 256
"""Longest expression (requirements FA4)."""

SEARCH_SECONDS = 10.0
"""Longest search (requirements FA4)."""

MAX_SEARCHED_BYTES = 67_108_864
"""Text that one search looks through; a wider one must be narrowed by a file pattern."""

MAX_FOUND_BYTES = 4_194_304
"""Matching lines that one search gives; nobody reads more."""

_SCANNER = Path(__file__).with_name("scan.py")


@dataclass(slots=True)
class FileSearchMatch:
    """One matching line."""

    line_number: int
    """From 1."""
    line: str

    def __post_init__(self) -> None:
        if self.line_number < 1:
            raise ValueError("line_number must be at least 1.")

    def to_dict(self) -> JsonObject:
        """JSON form."""
        return {"line_number": self.line_number, "line": self.line}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> FileSearchMatch:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
        """
        number, line = data.get("line_number"), data.get("line", "")
        if not isinstance(number, int) or isinstance(number, bool) or not isinstance(line, str):
            raise ValueError("A search match needs an integer line_number and a string line.")
        return cls(number, line)


@dataclass(slots=True)
class FileSearchResult:
    """What was found in one file."""

    file_name: str
    """Relative to the folder that was searched, with forward slashes."""
    snippet: str = ""
    """The text around the first match."""
    matching_lines: list[FileSearchMatch] = field(default_factory=lambda: list[FileSearchMatch]())

    def to_dict(self) -> JsonObject:
        """JSON form."""
        lines = [match.to_dict() for match in self.matching_lines]
        return {"file_name": self.file_name, "snippet": self.snippet, "matching_lines": lines}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> FileSearchResult:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is of another type.
        """
        name, snippet, lines = data.get("file_name", ""), data.get("snippet", ""), data.get("matching_lines", [])
        if not isinstance(name, str) or not isinstance(snippet, str) or not isinstance(lines, list):
            raise ValueError("A search result needs a string file_name and snippet and a list of matching_lines.")
        return cls(name, snippet, [FileSearchMatch.from_dict(line) for line in cast("list[JsonMapping]", lines)])


def check_pattern(pattern: str) -> None:
    """Refuse an expression that is too long, before any file is read; only the scanner compiles it.

    Raises:
        ValueError: It is too long.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed")


def matches_glob(name: str, glob: str | None) -> bool:
    """Whether a file's path fits a glob, whatever the case; `*` also matches slashes, no glob matches all."""
    return glob is None or not glob.strip() or fnmatch.fnmatchcase(name.lower(), glob.lower())


async def search_texts(pattern: str, files: Sequence[tuple[str, str]], *, timeout_seconds: float) -> list[FileSearchResult]:
    """Search texts by name, ignoring case, line by line.

    Raises:
        ValueError: The expression is bad, too much matches, or the search took longer than `timeout_seconds`.
    """
    check_pattern(pattern)
    request = json.dumps({"pattern": pattern, "files": files, "maxBytes": MAX_FOUND_BYTES}).encode()
    with anyio.move_on_after(timeout_seconds):
        seal_descriptors()
        done = await anyio.run_process([sys.executable, "-I", "-S", str(_SCANNER)], input=request, check=False)
        if done.returncode != 0:
            raise ValueError("the search ended unexpectedly; use a simpler pattern")
        answer: JsonObject = json.loads(done.stdout)
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        return [FileSearchResult.from_dict(result) for result in cast("list[JsonMapping]", answer["results"])]
    raise ValueError(
        f"the search took longer than {timeout_seconds:g} s and was stopped; use a more specific pattern "
        "(without nested repetitions such as '(a+)+')"
    )
