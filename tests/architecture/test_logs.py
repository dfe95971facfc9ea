"""Every log line of `gateway/` has one style: an event phrase, then `key=value` fields."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import name_of, nodes_of, python_files

METHODS = {"debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
"""Methods of a logger, with the position of their format string."""

RECEIVERS = re.compile(r"(?:self\.)?_?log(?:ger)?")
"""Names of loggers. Other objects with a method `log` send MCP log messages to a client."""

FORWARDER = "gateway/telemetry/sparse_log.py"
"""Passes on the format strings of its callers, whose calls are checked like those of a logger."""

WORD = r"[A-Za-z0-9][\w'/-]*"
"""A word of an event phrase."""

VALUE = r"""(?:%[.\d]*[srdfg]|'[^']+'|[\w.-]+(?:%s[\w.-]+)?)"""
"""A placeholder, or a fixed value, which stands in quotes if it has spaces."""

LINE = re.compile(rf"(?![A-Z][a-z]){WORD}(?:,? {WORD})*(?: [a-z][a-z_0-9]*={VALUE})*")
"""A format string: an event phrase without placeholders, then fields."""


def format_strings() -> list[tuple[str, ast.expr | None]]:
    """The format string of each log call, with its place."""
    found: list[tuple[str, ast.expr | None]] = []
    for path in python_files("gateway"):
        for node in nodes_of(path):
            if name_of(path) == FORWARDER or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            position = METHODS.get(node.func.attr)
            if position is not None and RECEIVERS.fullmatch(ast.unparse(node.func.value)):
                given = node.args[position] if len(node.args) > position else None
                found.append((f"{name_of(path)}:{node.lineno}", given))
    return found


def test_every_log_line_is_an_event_and_its_fields() -> None:
    found = format_strings()
    wrong = [
        f"{place} {ast.unparse(given) if given else ''}"
        for place, given in found
        if not isinstance(given, ast.Constant) or not isinstance(given.value, str) or not LINE.fullmatch(given.value)
    ]
    assert len(found) > 150
    assert wrong == [], "write an event phrase, then fields: logger.info('server connected server=%s tools=%d', name, count)"


@pytest.mark.parametrize(
    "line",
    ["%s", "%s: %s", "Tool failed tool=%s", "tool %s failed", "tool failed: %s", "tool failed tool=%s: %s", "tool failed tool=%s again"],
)
def test_sentences_and_unnamed_values_are_not_log_lines(line: str) -> None:
    assert not LINE.fullmatch(line)
