"""Searches the texts of files for a regular expression, with a time limit that holds for any expression. Also defines the result types."""

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
"""Maximum length of the regular expression of a search, in characters."""

SEARCH_SECONDS = 10.0
"""Default time limit of a search, in seconds."""

MAX_SEARCHED_CHARS = 67_108_864
"""Maximum total size, in characters, of the texts that one search reads. A file pattern narrows a search over more text."""

MAX_FOUND_CHARS = 4_194_304
"""Maximum total length of the matching lines of one search, in characters; each line counts 40 characters more than its text."""

_SCANNER = Path(__file__).with_name("scan.py")


@dataclass(slots=True)
class FileSearchMatch:
    """One line of a file that matches a search."""

    line_number: int
    """Line number, from 1."""
    line: str

    def __post_init__(self) -> None:
        if self.line_number < 1:
            raise ValueError("line_number must be at least 1.")

    def to_dict(self) -> JsonObject:
        """Return the match as a JSON object."""
        return {"line_number": self.line_number, "line": self.line}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> FileSearchMatch:
        """Create a match from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        number, line = data.get("line_number"), data.get("line", "")
        if not isinstance(number, int) or isinstance(number, bool) or not isinstance(line, str):
            raise ValueError("A search match needs an integer line_number and a string line.")
        return cls(number, line)


@dataclass(slots=True)
class FileSearchResult:
    """The lines of one file that match a search."""

    file_name: str
    """Path relative to the searched folder, with forward slashes."""
    snippet: str = ""
    """Text around the first match in the file."""
    matching_lines: list[FileSearchMatch] = field(default_factory=lambda: list[FileSearchMatch]())

    def to_dict(self) -> JsonObject:
        """Return the result as a JSON object."""
        lines = [match.to_dict() for match in self.matching_lines]
        return {"file_name": self.file_name, "snippet": self.snippet, "matching_lines": lines}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> FileSearchResult:
        """Create a result from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value has a wrong type.
        """
        name, snippet, lines = data.get("file_name", ""), data.get("snippet", ""), data.get("matching_lines", [])
        if not isinstance(name, str) or not isinstance(snippet, str) or not isinstance(lines, list):
            raise ValueError("A search result needs a string file_name and snippet and a list of matching_lines.")
        return cls(name, snippet, [FileSearchMatch.from_dict(line) for line in cast("list[JsonMapping]", lines)])


def check_pattern(pattern: str) -> None:
    """Reject a regular expression that is too long, before any file is read. Only the search process (`scan`) compiles the expression.

    Raises:
        ValueError: The expression is too long.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed")


def matches_glob(name: str, glob: str | None) -> bool:
    """Return whether a path matches a glob, ignoring case. `*` also matches slashes; without a glob every path matches."""
    return glob is None or not glob.strip() or fnmatch.fnmatchcase(name.lower(), glob.lower())


async def search_texts(pattern: str, files: Sequence[tuple[str, str]], *, timeout_seconds: float) -> list[FileSearchResult]:
    """Search the texts of `files` (pairs of name and text) for a regular expression, line by line and ignoring case, in a new process.

    Raises:
        ValueError: The expression is invalid, too much text matches, the search process failed, or the search took longer than
            `timeout_seconds`.
    """
    check_pattern(pattern)
    request = json.dumps({"pattern": pattern, "files": files, "maxCharacters": MAX_FOUND_CHARS}).encode()
    with anyio.move_on_after(timeout_seconds):
        seal_descriptors()
        done = await anyio.run_process([sys.executable, "-I", "-S", str(_SCANNER)], input=request, check=False)
        if done.returncode != 0:
            raise ValueError("the search process ended with an error; use a simpler pattern")
        answer: JsonObject = json.loads(done.stdout)
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        return [FileSearchResult.from_dict(result) for result in cast("list[JsonMapping]", answer["results"])]
    raise ValueError(
        f"the search took longer than {timeout_seconds:g} s and was stopped; use a more specific pattern "
        "(without nested repetitions such as '(a+)+')"
    )
