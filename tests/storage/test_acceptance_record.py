"""The record of accepted configuration entries."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gateway.errors import StorageError
from gateway.storage.acceptance_record import AcceptanceRecord


def test_record_survives_and_stores_no_plain_digest(tmp_path: Path) -> None:
    record = AcceptanceRecord(tmp_path / "state", tmp_path / "gateway.json")
    record.change(lambda content: content.accept("files", "d" * 64))
    again = AcceptanceRecord(tmp_path / "state", tmp_path / "gateway.json").read()
    assert again.accepts("files", "d" * 64)
    assert not again.accepts("files", "e" * 64)
    assert not again.accepts("other", "d" * 64)
    assert "d" * 64 not in record.path.read_text()
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600


def test_link_to_the_configuration_leads_to_the_same_record(tmp_path: Path) -> None:
    file, evil = tmp_path / "gateway.json", tmp_path / "evil.json"
    file.write_text("{}")
    before = AcceptanceRecord(tmp_path / "state", file).path
    file.unlink()
    evil.write_text("{}")
    file.symlink_to(evil)
    assert AcceptanceRecord(tmp_path / "state", file).path == before


def test_folder_reached_through_a_link_leads_to_the_same_record(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    paths = {AcceptanceRecord(tmp_path / "state", tmp_path / name / "gateway.json").path for name in ("real", "link")}
    assert len(paths) == 1


WRONG_VALUE: dict[str, object] = {"version": 1, "salt": "s", "edition": 0, "homes": [], "accepted": {"a": 1}, "held": {}}


WRONG: list[dict[str, object]] = [{}, {"version": 2}, WRONG_VALUE]


@pytest.mark.parametrize("document", WRONG)
def test_record_of_another_form_is_refused(tmp_path: Path, document: dict[str, object]) -> None:
    record = AcceptanceRecord(tmp_path / "state", tmp_path / "gateway.json")
    record.path.parent.mkdir(parents=True)
    record.path.write_text(json.dumps(document))
    with pytest.raises(StorageError, match="damaged"):
        record.read()
