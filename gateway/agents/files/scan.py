"""Program that searches texts for a regular expression, in a process of its own, because a regular expression can take unlimited time.

Python's `re` holds the interpreter lock while it backtracks: in a thread it would block the whole gateway and could not be cancelled.
`text_search` starts this file and kills the process at the time limit. The file imports only the standard library. Stdin is the JSON value
`{"pattern", "files": [[name, text], …], "maxCharacters"}`; stdout is
`{"results": [{"file_name", "snippet", "matching_lines": [{"line_number", "line"}]}]}` or `{"error"}`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

SNIPPET_RADIUS = 50
"""Number of characters before and after a file's first match that its snippet contains."""

MAX_MEMORY_BYTES = 1_073_741_824
"""Maximum address space of the search process, in bytes, on platforms that support the limit `RLIMIT_AS`."""


def scan(pattern: str, files: list[list[str]], max_characters: int) -> list[dict[str, Any]]:
    """Return the files with a line that matches `pattern`, ignoring case: name, snippet and matching lines of each.

    Raises:
        ValueError: The pattern is invalid, or the matching lines are longer than `max_characters`.
    """
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    results: list[dict[str, Any]] = []
    left = max_characters
    for name, text in files:
        offset = 0
        snippet = ""
        lines: list[dict[str, Any]] = []
        for number, line in enumerate(text.split("\n"), 1):
            match = expression.search(line)
            if match is not None:
                if not lines:
                    snippet = text[max(0, offset + match.start() - SNIPPET_RADIUS) : offset + match.end() + SNIPPET_RADIUS]
                lines.append({"line_number": number, "line": line.rstrip("\r")})
                left -= len(line) + 40
                if left < 0:
                    raise ValueError("too much text matches; use a more specific pattern or a file pattern")
            offset += len(line) + 1
        if lines:
            results.append({"file_name": name, "snippet": snippet, "matching_lines": lines})
    return results


def main() -> None:
    """Read a search request from stdin, search the files in it, and write the results to stdout."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    except (ImportError, ValueError, OSError):
        pass  # the caller's time limit still applies
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer: dict[str, Any] = {"results": scan(request["pattern"], request["files"], request["maxCharacters"])}
    except ValueError as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
