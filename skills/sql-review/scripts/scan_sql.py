#!/usr/bin/env python3
"""Flag known traps in SQL files with their line numbers. Reads text only, never a database. Standard library only.

Exit status: 0 when nothing of level `high` was found, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

CASE = re.IGNORECASE | re.DOTALL

STATEMENT_RULES = (
    ("high", "no-where", re.compile(r"^\s*(?:UPDATE|DELETE\s+FROM)\b(?!.*\bWHERE\b)", CASE), "changes every row: there is no WHERE"),
    ("high", "destroys", re.compile(r"^\s*(?:DROP\s+(?:TABLE|SCHEMA|DATABASE)|TRUNCATE)\b", CASE), "destroys data at once"),
    (
        "high",
        "null-compare",
        re.compile(r"(?:WHERE|AND|OR|ON|WHEN)\b[^;]*?(?:[^<>!:]=|<>|!=)\s*NULL\b", CASE),
        "is never true: use IS NULL",
    ),
    ("high", "not-in-select", re.compile(r"\bNOT\s+IN\s*\(\s*SELECT\b", CASE), "finds nothing once a NULL is in the list: use NOT EXISTS"),
    (
        "medium",
        "index-locks",
        re.compile(r"^\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)", CASE),
        "blocks writes while it builds (PostgreSQL: CONCURRENTLY)",
    ),
    (
        "medium",
        "column-type",
        re.compile(r"\bALTER\s+(?:COLUMN\s+)?\S+\s+(?:SET\s+DATA\s+)?TYPE\b", CASE),
        "may rewrite the whole table under a lock",
    ),
    (
        "medium",
        "not-null",
        re.compile(r"\bADD\s+COLUMN\b(?=[^,;]*\bNOT\s+NULL\b)(?![^,;]*\bDEFAULT\b)", CASE),
        "fails on a table with rows: NOT NULL without DEFAULT",
    ),
    (
        "medium",
        "constraint-scan",
        re.compile(r"\bADD\s+(?:CONSTRAINT\s+\S+\s+)?(?:FOREIGN\s+KEY|CHECK)\b(?!.*\bNOT\s+VALID\b)", CASE),
        "scans the table under a lock (PostgreSQL: NOT VALID, then VALIDATE)",
    ),
    (
        "medium",
        "rename",
        re.compile(r"\bRENAME\s+(?:COLUMN\s+\S+\s+)?TO\b|\bDROP\s+COLUMN\b", CASE),
        "breaks application versions that still use the name",
    ),
    ("medium", "leading-wildcard", re.compile(r"\bI?LIKE\s+'%", CASE), "cannot use an ordinary index"),
    ("low", "select-star", re.compile(r"\bSELECT\s+(?:DISTINCT\s+)?(?:\w+\.)?\*", CASE), "name the columns that are needed"),
    ("low", "offset", re.compile(r"\bOFFSET\s+(?:\d{3,}|[:$?@%])", CASE), "reads and throws away all rows before it"),
    ("low", "limit-without-order", re.compile(r"\bLIMIT\s+(?!1\b)\d+", CASE), "order is not defined"),
)

TOKEN = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|;", re.DOTALL)


def statements(text: str) -> list[tuple[int, str]]:
    """Statements with their first line; comments are blanked and the inside of long texts is hidden."""
    found: list[tuple[int, str]] = []
    parts: list[str] = []
    position = start = 0

    def close() -> None:
        statement = "".join(parts)
        if statement.strip():
            lead = len(statement) - len(statement.lstrip())
            found.append((text.count("\n", 0, start) + statement.count("\n", 0, lead) + 1, statement.strip()))
        parts.clear()

    for match in TOKEN.finditer(text):
        parts.append(text[position : match.start()])
        token = match[0]
        position = match.end()
        if token == ";":
            close()
            start = position
        elif token.startswith(("--", "/*")):
            parts.append("\n" * token.count("\n") or " ")
        elif token.startswith("'%"):
            parts.append("'%'" + "\n" * token.count("\n"))
        else:
            parts.append("''" + "\n" * token.count("\n"))
    parts.append(text[position:])
    close()
    return found


def scan(text: str) -> list[dict[str, object]]:
    """Findings in the order of the file."""
    findings: list[dict[str, object]] = []
    for line, statement in statements(text):
        for level, rule, pattern, message in STATEMENT_RULES:
            match = pattern.search(statement)
            if not match:
                continue
            if rule == "limit-without-order" and re.search(r"\bORDER\s+BY\b", statement, re.IGNORECASE):
                continue
            at = line + statement.count("\n", 0, match.start())
            findings.append({"line": at, "level": level, "rule": rule, "message": message, "sql": " ".join(statement.split())[:80]})
    return findings


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="SQL files; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = [
        {"file": name, **finding}
        for name in options.files
        for finding in scan(sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8"))
    ]
    if options.json:
        json.dump(found, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        for f in found:
            sys.stdout.write(f"{f['file']}:{f['line']}: {f['level']}: {f['rule']}: {f['message']}\n    {f['sql']}\n")
        if not found:
            sys.stdout.write("nothing found\n")
    sys.exit(1 if any(f["level"] == "high" for f in found) else 0)


if __name__ == "__main__":
    main()
