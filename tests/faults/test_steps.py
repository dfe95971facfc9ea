"""Each fault at each step of the protocol, all at once behind one gateway: nobody else notices, nothing runs twice, all recover."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.walk import Era, Row, Transport, product, walk

AT_ONCE = 60
"""Servers behind one gateway: no more than a small machine can run beside each other."""

FEW: list[tuple[str, str]] = [
    ("discover", "type"),
    ("initialize", "hang"),
    ("initialized", "once"),
    ("list", "half"),
    ("list", "lost"),
    ("before", "die"),
    ("before", "lost"),
    ("after", "die"),
    ("after", "twice"),
    ("after", "oversized"),
    ("progress", "hang"),
    ("idle", "die"),
    ("read", "garbage"),
    ("prompt", "drip"),
    ("complete", "hang"),
    ("ask", "die"),
    ("answered", "once"),
    ("answered", "stranger"),
    ("cancel", "die"),
    ("cancel", "lost"),
    ("listen", "die"),
    ("listen", "error"),
    ("subscribe", "hang"),
    ("task-get", "once"),
    ("task-result", "shape"),
    ("delete", "error"),
]
"""Each step with the faults that are hardest to distinguish from a healthy server at that step."""


def few() -> list[Row]:
    """Return the rows for all faults over HTTP and about half of them over stdio, because most code is the same for both transports."""
    over_http = [Row("http", era, *fault) for fault in FEW for era in ("legacy", "modern")]
    over_stdio = [
        Row("stdio", era, step, kind)
        for number, (step, kind) in enumerate(FEW)
        for era in ("legacy", "modern")
        if kind in ("die", "hang", "once", "half", "twice", "garbage", "stranger", "shape") and number % 2 == (era == "modern")
    ]
    return [row for row in (*over_http, *over_stdio) if row.exists()]


@pytest.mark.timeout(120)
@pytest.mark.fault(17)
@pytest.mark.faults
async def test_fault_at_a_step_affects_one_server_and_runs_nothing_twice(tmp_path: Path) -> None:
    await walk(tmp_path, few())


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.fault(17)
@pytest.mark.fault(19)
async def test_every_fault_at_every_step_affects_one_server_only(
    tmp_path: Path, transport: Transport, era: Era
) -> None:
    rows = product(transport, era)
    for start in range(0, len(rows), AT_ONCE):
        folder = tmp_path / f"from-{start}"
        folder.mkdir()
        await walk(folder, rows[start : start + AT_ONCE])
