#!/usr/bin/env python3
"""Print the commits since a tag, sorted into likely changelog sections. Reads only; standard library only."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys

SECTIONS = ("breaking", "added", "changed", "deprecated", "removed", "fixed", "security", "unsorted", "internal")

CONVENTIONAL = re.compile(r"^(?P<type>[a-z]+)(?:\((?P<scope>[^)]*)\))?(?P<bang>!)?:\s+(?P<text>.+)$", re.IGNORECASE)
BY_TYPE = {
    "feat": "added",
    "fix": "fixed",
    "perf": "changed",
    "security": "security",
    "deprecate": "deprecated",
    "revert": "unsorted",
    **dict.fromkeys(("build", "chore", "ci", "docs", "refactor", "style", "test"), "internal"),
}
BY_WORD = (
    ("security", re.compile(r"\b(?:CVE-\d|vulnerab|security|XSS|CSRF)", re.IGNORECASE)),
    ("deprecated", re.compile(r"\bdeprecat", re.IGNORECASE)),
    ("removed", re.compile(r"^(?:remove|drop|delete)\b", re.IGNORECASE)),
    ("fixed", re.compile(r"^(?:fix|repair|correct|handle|prevent|avoid)\w*\b|\bbug\b", re.IGNORECASE)),
    ("added", re.compile(r"^(?:add|allow|introduce|support|implement)\w*\b", re.IGNORECASE)),
    ("changed", re.compile(r"^(?:change|rename|use|make|improve|speed|update|switch)\w*\b", re.IGNORECASE)),
)


def git(repo: str, *arguments: str) -> str:
    """Output of a git command; ends the program with git's own words when it fails."""
    done = subprocess.run(["git", "-C", repo, *arguments], capture_output=True, text=True, encoding="utf-8", errors="replace")
    if done.returncode:
        sys.exit(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def latest_tag(repo: str, to: str) -> str | None:
    """The nearest tag before `to`, or None."""
    done = subprocess.run(
        ["git", "-C", repo, "describe", "--tags", "--abbrev=0", to], capture_output=True, text=True, encoding="utf-8"
    )
    return done.stdout.strip() or None if done.returncode == 0 else None


def classify(subject: str, body: str) -> tuple[str, str, str | None]:
    """Section, text without prefix, and scope of one commit."""
    match = CONVENTIONAL.match(subject)
    text, scope, section = subject, None, None
    if match:
        text, scope = match["text"], match["scope"]
        section = BY_TYPE.get(match["type"].lower())
    if (match and match["bang"]) or re.search(r"^BREAKING[ -]CHANGE:", body, re.MULTILINE):
        return "breaking", text, scope
    if section is None:
        section = next((name for name, pattern in BY_WORD if pattern.search(text)), "unsorted")
    return section, text, scope


def collect(repo: str, start: str | None, end: str) -> dict[str, list[dict[str, str | None]]]:
    """Commits of a range by section, newest first."""
    span = f"{start}..{end}" if start else end
    raw = git(repo, "log", "--no-merges", "--format=%h%x1f%as%x1f%s%x1f%b%x1e", span, "--")
    found: dict[str, list[dict[str, str | None]]] = {name: [] for name in SECTIONS}
    for record in raw.split("\x1e"):
        fields = record.strip("\n").split("\x1f")
        if len(fields) != 4:
            continue
        commit, date, subject, body = fields
        section, text, scope = classify(subject, body)
        found[section].append({"commit": commit, "date": date, "text": text, "scope": scope})
    return {name: commits for name, commits in found.items() if commits}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="start", help="tag or revision to start after (default: the latest tag)")
    parser.add_argument("--to", dest="end", default="HEAD", help="revision to end at (default: HEAD)")
    parser.add_argument("--repo", default=".", help="the repository (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    for revision in (options.start, options.end):
        if revision is not None and revision.startswith("-"):
            parser.error(f"{revision!r} is not a revision")
    start = options.start or latest_tag(options.repo, options.end)
    sections = collect(options.repo, start, options.end)
    if options.json:
        json.dump({"from": start, "to": options.end, "sections": sections}, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    sys.stdout.write(f"# {start or 'the beginning'} to {options.end}\n")
    for name, commits in sections.items():
        sys.stdout.write(f"\n## {name}\n")
        for commit in commits:
            scope = f"{commit['scope']}: " if commit["scope"] else ""
            sys.stdout.write(f"- {commit['commit']} {scope}{commit['text']}\n")


if __name__ == "__main__":
    main()
