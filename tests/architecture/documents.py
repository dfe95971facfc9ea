"""The Markdown files that ship with Moongate, and what tests read out of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.architecture.sources import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (.+?) \|$", re.MULTILINE)


def read(name: str) -> str:
    """The text of a file, named from the repository's root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> Iterator[str]:
    """The fenced blocks of one language."""
    for found, body in _FENCE.findall(path.read_text(encoding="utf-8")):
        if found == language:
            yield body


def example_of(page: str, source: str) -> dict[str, Any]:
    """The first policy of `source` that an example of a page in `docs/` shows."""
    shown = [json.loads(block) for block in blocks(ROOT / "docs" / page, "json") if f'"{source}"' in block]
    return next(block["policies"][source] for block in shown if source in block.get("policies", {}))


def links(path: Path) -> list[str]:
    """Targets of the links to other files of the repository, without anchors."""
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    return [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in _ROW.findall(text):
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]


def code_of(cell: str) -> list[str]:
    """Return the texts in backticks in a table cell."""
    return re.findall(r"`([^`]+)`", cell)


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above; empty if the heading does not exist."""
    level = heading.partition(" ")[0]
    match = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    return match.group(1) if match else ""
