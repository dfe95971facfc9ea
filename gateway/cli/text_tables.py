"""Wraps tables and paragraphs to the width of a terminal. No I/O; used by `output`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gateway.policy.framing import BAR, columns_of, fit, wrap_line

GAP = 2
"""Number of spaces between two columns of a table."""

MIN_LAST_COLUMNS = 24
"""Minimum width of a table's last column; if less is left, the last column is printed below the other columns."""

INDENT = "    "
"""Indentation of a last column that is printed below the other columns, and of the second and further lines of a value in a list."""


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None, *, wraps_last: bool) -> Iterator[str]:
    """Yield the lines of an aligned table at most `columns` characters wide (`None`: unlimited).

    If the table is too wide, the last column is wrapped (`wraps_last`) or cut with an ellipsis. If the space left for the last column is
    less than `MIN_LAST_COLUMNS`, the column is printed below the other columns. If the other columns are too wide as well, each row becomes
    a list of its values. Only the last column is ever cut, so a long name may exceed the width.
    """
    names = [header.upper() for header in headers]
    lines = [names, *rows]
    widths = [max(columns_of(line[index]) for line in lines) for index in range(len(names))]
    fixed = sum(widths[:-1]) + GAP * (len(widths) - 1)
    if columns is None or fixed + widths[-1] <= columns:
        for line in lines:
            yield _row(line, widths)
        return
    room = columns - fixed
    if room >= MIN_LAST_COLUMNS:
        for line in lines:
            first, *others = _parts(line[-1], room, wraps=wraps_last)
            yield _row([*line[:-1], first], widths)
            yield from (" " * fixed + other for other in others)
    elif fixed - GAP <= columns:
        for line in lines:
            yield _row(line[:-1], widths)
            if line is not names and line[-1].strip("-"):
                yield from (INDENT + part for part in _parts(line[-1], columns - len(INDENT), wraps=wraps_last))
    else:
        for row in rows:
            yield row[0]
            for name, value in zip(headers[1:], row[1:], strict=True):
                if value.strip("-"):
                    label = f"  {name}: "
                    first, *others = _parts(value, columns - len(label), wraps=wraps_last or value is not row[-1])
                    yield label + first
                    yield from (INDENT + other for other in others)


def fold(text: str, columns: int | None, indent: str = "  ") -> str:
    """Return `text` wrapped between words at `columns` characters; continuation lines begin with the line's own indentation and `indent`.

    A word that is longer than a line, such as a path, stays whole. If `columns` is `None`, nothing is wrapped.
    """
    return text if columns is None else "\n".join(part for line in text.split("\n") for part in _folded(line, columns, indent))


def _folded(line: str, columns: int, indent: str) -> Iterator[str]:
    if line.startswith(BAR):  # untrusted text: every wrapped line repeats the mark
        yield from fit(line, columns)
        return
    start = line[: len(line) - len(line.lstrip())]
    parts = textwrap.wrap(
        line, columns, subsequent_indent=start + indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    yield from parts or [""]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - columns_of(cell)) for cell, width in zip(cells, widths, strict=False))
    return (" " * GAP).join(padded).rstrip()


def _parts(text: str, columns: int, *, wraps: bool) -> list[str]:
    """Return the lines of a table cell. If `wraps` is false, return one line, cut with an ellipsis if it is too long."""
    room = max(columns, MIN_LAST_COLUMNS // 2)
    parts = wrap_line(text, room)
    return parts if wraps or len(parts) == 1 else [f"{wrap_line(text, room - 1)[0]}…"]
