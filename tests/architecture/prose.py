"""Lines of docstrings, comments, messages and pages that match a wording which readers stumble over.

`python -m tests.architecture.prose [PATH...]` prints them; `counts` prints how many there are. A match is a place to look at, not a
verdict: some matches are good sentences, and many bad sentences match nothing.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, name_of, nodes_of

PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "gateway")
"""Files and folders that are read by default; `counts` also reads `tests`."""

_VERBS = (
    "is|are|has|have|had|waits?|asks?|asked|hears?|says?|said|reads?|calls?|wants?|takes?|uses?|makes?|sends?|writes?|listens?|explains?|"
    "needs?|awaits?|begins?|began|starts?|started|opens?|opened"
)

WORDINGS: dict[str, re.Pattern[str]] = {
    advice: re.compile(pattern)
    for advice, pattern in {
        'not "is no X": say "is not a X", or what it is': r"\b(?:is|are|was|were|be) no (?!longer|more\b|later|less|fewer|such\b)[a-z`]",
        'not "none" or "nobody" for a thing: name it': r"\b(?:that|which|what|who|it|one|there|is) (?:is |are |was )?none\b|\bto nobody\b",
        'not "who" for a program: name the component': rf"\bwho(?:ever)?(?:se)? (?:{_VERBS})\b",
        'not "where" for a condition: write "if" or "when"': (
            r"(?:^|[.,;:(] ?)[Ww]here (?:it|they|there|one|no|nothing|none|a|an|the|that|this|he|somebody|nobody|both|all|some|any|"
            r"its?|their|two) "
        ),
        'no clause with "what" as a subject: name the thing': (
            r"(?:^|[.;:] )What [a-z` ]{3,60} (?:is|are|has|have|goes|comes|crosses|stands|hinders|was|were)\b"
        ),
        "programs receive, read or log; they do not hear or tell": (
            r"\b(?:hears|heard|is told|are told|was told|be told|tells of|knows of|gives the word|in the words of|words that go with|"
            r"last words?|says of itself|said of itself)\b"
        ),
        "say whose it is": r"\bone's own\b|\bof one's\b|\bof ours\b|\bof theirs\b",
        "use a modern, literal phrase": (
            r"\b(?:as ever|in vain|ere|thereof|anew|lest|hitherto|comes? to (?:its|an) end|takes? its course|has its way|on the way back|"
            r"is looked at|is looked for|stands for what|goes by the|let in|handed on|hand on|in the manner of|beside one|no matter whose|"
            r"is over|be over)\b"
        ),
        "cite only what stands in the repository or is public": (
            r"\b(?:house\.md|performance\.md|durability\.md|security\.md|protocol\.md|requirements(?:\.md)? (?:[A-Z]{2}\d|\d)"
            r"|requirements [A-Z]\d+)"
        ),
    }.items()
}  # fmt: skip
"""Advice by the pattern of a wording."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every docstring, message and comment of a Python file, or of every line of another file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line.strip()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def matches(*paths: Path) -> list[tuple[str, int, str, str]]:
    """File, line number, advice and text of each line that matches, once per line."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for path in paths:
        files = sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path]
        for file in files:
            for number, text in texts(file):
                advice = next((advice for advice, pattern in WORDINGS.items() if pattern.search(text)), None)
                if advice is not None:
                    found.setdefault((name_of(file), number), (advice, text))
    return [(name, number, advice, text) for (name, number), (advice, text) in found.items()]


def main() -> None:
    """Print the matches in the files and folders that the command line names."""
    for name, number, advice, text in matches(*(ROOT / path for path in sys.argv[1:] or PAGES)):
        print(f"{name}:{number}: {advice}\n    {text[:150]}")


if __name__ == "__main__":
    main()
