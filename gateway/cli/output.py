"""Output of commands: JSON lines, aligned tables, content blocks, and status lines on stderr.

Control characters in texts of servers and tools are escaped, so that a terminal does not execute them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO, cast

import click

from gateway.json_types import JsonMapping, JsonObject, JsonValue, map_texts
from gateway.telemetry.logging import escape_controls

DEFAULT_COLUMNS = 80
"""Width in characters of a terminal that does not report its size."""

MAX_CELL = 80
"""Maximum characters of one table cell; longer text is cut with an ellipsis, except in a last column that is wrapped. `--json` prints the
whole text."""


def clean(text: str) -> str:
    """Return `text` with control and text-direction characters escaped. Line breaks stay, tabs become spaces."""
    return "\n".join(escape_controls(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))


def json_line(value: JsonValue) -> str:
    """Return `value` as one line of JSON with control characters escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(f"\\u{ord(c):04x}" if escape_controls(c) != c else c for c in text)


def print_json(value: JsonValue) -> None:
    """Print `value` as one line of JSON on stdout."""
    click.echo(json_line(value))


def show(data: JsonValue, text: str, *, as_json: bool) -> None:
    """Print the result of a command on stdout: `data` as one line of JSON, or `text` for people."""
    print_json(data) if as_json else print_text(text)


def moment(seconds: float) -> str:
    """Return a Unix time as ISO 8601 text in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, whole_last: bool = False) -> None:
    """Print a table that fits the terminal on stdout; without rows, the sentence `empty` on stderr.

    If `whole_last` is true, the last column is wrapped instead of cut.
    """
    from gateway.cli.text_tables import table_lines

    if not rows:
        print_note(empty)
        return
    cells = [[escape_controls(v) if whole_last and i + 1 == len(row) else _cell(v) for i, v in enumerate(row)] for row in rows]
    for line in table_lines(headers, cells, terminal_columns(sys.stdout), wraps_last=whole_last):
        click.echo(line)


def show_table(
    data: JsonValue, headers: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, as_json: bool, whole_last: bool = False
) -> None:
    """Print the result of a command on stdout: `data` as one line of JSON, or a table for people (see `print_table`)."""
    print_json(data) if as_json else print_table(headers, rows, empty=empty, whole_last=whole_last)


def print_note(text: str = "", *, folds: bool = True) -> None:
    """Print a note for people on stderr, wrapped to the terminal's width.

    `folds=False` does not wrap: use it for text that the user copies.
    """
    from gateway.cli.text_tables import fold

    shown = clean(text)
    click.echo(fold(shown, terminal_columns(sys.stderr)) if folds else shown, err=True)


def print_text(text: str, indent: str = "  ") -> None:
    """Print a result for people on stdout, wrapped to the terminal's width.

    Continuation lines begin with the line's own indentation and `indent`.
    """
    from gateway.cli.text_tables import fold

    click.echo(fold(clean(text), terminal_columns(sys.stdout), indent))


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of the terminal that `stream` writes to, or `None` if it does not write to a terminal."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS


@contextmanager
def working(text: str) -> Generator[None, None, None]:
    """Show a spinner on stderr during the block; nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(clean(text)):
        yield


def print_content(result: JsonMapping) -> None:
    """Print a tool result for people on stdout: the texts as they are, and one line for each image or other content without text.

    If the result has no content blocks, print its structured content as indented JSON.
    """
    blocks = cast("list[JsonMapping]", result.get("content") or [])
    shown = [block_text(block) for block in blocks]
    structured = result.get("structuredContent")
    if not shown and structured is not None:
        shown = [json.dumps(structured, indent=2, ensure_ascii=False)]
    for text in shown:
        click.echo(clean(text))


def block_text(block: JsonMapping) -> str:
    """Return one MCP content block as text for a terminal."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind} {block.get('mimeType', '')}, {_decoded_size(block.get('data'))} bytes; use --json for the data]"
    if kind == "resource_link":
        return f"[{block.get('name', '')}: {block.get('uri', '')}]"
    if kind == "resource":
        inner = cast("JsonMapping", block.get("resource") or {})
        if isinstance(inner.get("text"), str):
            return f"[{inner.get('uri', '')}]\n{inner['text']}"
        return f"[{inner.get('uri', '')} {inner.get('mimeType', '')}, {_decoded_size(inner.get('blob'))} bytes; use --json for the data]"
    return json.dumps(dict(block), ensure_ascii=False)


def source_line(source: JsonMapping, name_columns: int) -> str:
    """Return one line about a source of tools: name, kind or transport, and then protocol, tools and connection time, or state and error.

    `source` contains the fields of `SourceStatus` under camelCase keys. `name_columns` is the width of the name.
    """
    transport = str(source["kind"] if source["transport"] == "local" else source["transport"])
    parts = [str(source["name"]).ljust(name_columns), f"{transport:<8}"]
    if source["state"] in ("down", "disabled", "held", "starting", "auth needed"):
        parts.append(f"{source['state']} {since_text(source)}".rstrip().ljust(10))
    else:
        count = int(source["tools"])
        took = source.get("milliseconds")
        parts += [f"{source['protocolVersion'] or '-':<10}", f"{count} tool{'' if count == 1 else 's'}".ljust(9)]
        parts.append(f"{took:.0f} ms" if isinstance(took, (int, float)) else "")
    if source.get("error"):
        parts.append(str(source["error"]))
    elif text := remark_text(source):
        parts.append(text)
    return "  ".join(parts).rstrip()


def remark_text(source: JsonMapping) -> str:
    """Return warnings about a source, or an empty string.

    The warnings are about unanswered requests for input, quarantined tools (hidden until a person accepts their definitions), and
    definitions that read like orders to a model.
    """
    accept = f"`moongate lock --diff {source['name']}`, then `moongate lock --accept {source['name']}`"
    kinds = (("quarantined", "quarantined", accept), ("suspicious", "like orders to a model", "`moongate doctor` says why"))
    found = [(list(source.get(key) or ()), what, then) for key, what, then in kinds]
    waits = [escape_controls(str(text)) for text in source.get("questions") or ()]
    return "; ".join([*waits, *(f"{len(names)} {what} ({_some(names)}): {then}" for names, what, then in found if names)])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _clock(moment: str) -> str:
    """Return an ISO 8601 time in the local time zone: the time of day, with the date if it was not today."""
    from datetime import datetime

    local = datetime.fromisoformat(moment).astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def since_text(source: JsonMapping) -> str:
    """Return the time since which a source has been in its state, for example `since 14:03:20`; an empty string if it is unknown."""
    since = source.get("since")
    return f"since {_clock(str(since))}" if since else ""


def camel_keys(fields: JsonMapping) -> JsonObject:
    """Return `fields` with its keys converted from snake_case to camelCase, as in all JSON output."""
    return {_camel(key): value for key, value in fields.items()}


def first_line(text: JsonValue) -> str:
    """Return the first line of a description, for a table."""
    return str(text or "").strip().partition("\n")[0]


def is_interactive() -> bool:
    """Return whether the command can ask a user for input: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def masked(value: JsonValue, secrets: frozenset[str]) -> JsonValue:
    """Return a copy of `value` with every text of `secrets` in its strings (but not in keys of objects) replaced by `[secret]`."""
    longest_first = sorted(secrets, key=len, reverse=True)

    def mask(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "[secret]")
        return text

    return map_texts(value, mask)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _cell(value: str) -> str:
    text = escape_controls(value)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def _decoded_size(data: JsonValue) -> int:
    return len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
