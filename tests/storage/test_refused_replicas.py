"""The gateways that could not use the database that they share with others, for `moongate doctor`."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from gateway.storage import refused_replicas
from gateway.storage.records import Records
from gateway.storage.refused_replicas import MAX_REASON, recent_refusals, record_refusal
from gateway.storage.state_folder import StateFolder


async def test_latest_refusals_are_kept_with_short_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_replicas, "MAX_ROWS", 3)
    url = f"sqlite:///{tmp_path}/shared.db"
    records = Records(StateFolder(tmp_path / "state"), audit_days=1, url=url)
    try:
        database = await records.database()
        for number in range(5):
            await anyio.to_thread.run_sync(record_refusal, url, f"m{number}", "1", "x" * MAX_REASON * 2)
        found = await recent_refusals(database)
    finally:
        await records.aclose()
    assert [refused.name for refused in found] == ["m4", "m3", "m2"]
    assert {len(refused.reason) for refused in found} == {MAX_REASON}
