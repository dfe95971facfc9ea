#!/usr/bin/env python3
"""Check minutes for actions without owner or date, and for missing sections. Standard library only.

Exit status: 0 when everything is in order, 1 when something was found.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

REQUIRED = ("Decisions", "Actions")
VAGUE_OWNERS = {"all", "everyone", "somebody", "someone", "tbd", "team", "the team", "we"}

HEADING = re.compile(r"^#{2,3}\s+(.+?)\s*$")
ITEM = re.compile(r"^\s*[-*]\s+(?:\[[ xX]\]\s+)?(?P<text>.+)$")
OWNER = re.compile(r"^\*\*(?P<owner>[^*]+)\*\*\s*:?")
DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")


def check(text: str) -> list[tuple[int, str]]:
    """Findings as (line, message)."""
    findings: list[tuple[int, str]] = []
    section = ""
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        heading = HEADING.match(line)
        if heading:
            section = heading[1]
            seen.add(section.lower())
            continue
        item = ITEM.match(line)
        if section.lower() != "actions" or not item:
            continue
        action = item["text"]
        owner = OWNER.match(action)
        if owner is None:
            findings.append((number, "action has no owner: start it with **Name**:"))
        elif owner["owner"].strip(" :").lower() in VAGUE_OWNERS:
            findings.append((number, f"{owner['owner'].strip(' :')!r} is not one person"))
        if not DATE.search(action):
            findings.append((number, "action has no date (YYYY-MM-DD)"))
    findings += [(0, f"section {name!r} is missing") for name in REQUIRED if name.lower() not in seen]
    return findings


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the minutes, Markdown; - reads standard input")
    options = parser.parse_args()
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    findings = check(text)
    for line, message in findings:
        sys.stdout.write(f"{options.file}:{line}: {message}\n" if line else f"{options.file}: {message}\n")
    if not findings:
        sys.stdout.write("ok\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
