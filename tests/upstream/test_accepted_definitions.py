"""The record of first listings, as several processes use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config.models import StdioServer
from gateway.errors import StorageError
from gateway.upstream import pins
from gateway.upstream.accepted_definitions import AcceptedDefinitions, accepted_mark
from gateway.upstream.pinning import Pinning

SEARCH: dict[str, Any] = {"name": "search", "description": "Finds pages."}
OTHER: dict[str, Any] = {"name": "search", "description": "Sends keys."}
NEW: dict[str, Any] = {"name": "new"}


def record(folder: Path, *arguments: str) -> AcceptedDefinitions:
    return AcceptedDefinitions(folder, "docs", StdioServer(command="docs", args=list(arguments), cwd="/"))


def test_first_process_to_record_a_tool_decides(tmp_path: Path) -> None:
    assert record(tmp_path).read() is None
    assert record(tmp_path).add({"search": SEARCH}) == {"search": SEARCH}
    assert record(tmp_path).add({"search": OTHER, "new": NEW}) == {"search": SEARCH, "new": NEW}
    assert record(tmp_path).read() == {"search": SEARCH, "new": NEW}
    assert record(tmp_path, "other").read() is None


def test_acceptance_replaces_the_record_and_is_announced(tmp_path: Path) -> None:
    record(tmp_path).add({"search": SEARCH})
    assert not accepted_mark(tmp_path).exists()
    record(tmp_path).accept(lambda known: {**known, "search": OTHER})
    assert record(tmp_path).read() == {"search": OTHER}
    assert accepted_mark(tmp_path).exists()


def test_recorded_definition_counts_from_the_start(tmp_path: Path) -> None:
    record(tmp_path).add({"search": SEARCH})
    pinning = Pinning("docs", "quarantine")
    pinning.begin(record(tmp_path), was_listed=True)
    assert pinning.judge([OTHER, NEW]) == {"search"}
    assert not pinning.may_refuse


async def test_tool_that_another_process_recorded_differently_is_held(tmp_path: Path) -> None:
    pinning = Pinning("docs", "quarantine")
    pinning.begin(record(tmp_path), was_listed=False)
    pinning.note([OTHER])
    assert pinning.judge([OTHER]) == set()
    record(tmp_path).add({"search": SEARCH})
    assert await pinning.write()
    assert pinning.judge([OTHER]) == {"search"}
    assert pinning.judge([SEARCH]) == set()


def test_record_too_large_to_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MAX_JSON_BYTES", 400)
    record(tmp_path).add({"search": SEARCH})
    with pytest.raises(StorageError, match="read again"):
        record(tmp_path).add({"long": {"name": "long", "description": "x" * 400}})
    assert record(tmp_path).read() == {"search": SEARCH}
