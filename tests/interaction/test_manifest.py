"""The manifest and the suite name the same tests."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_manifest_rows_and_relay_tests_match() -> None:
    listed = set(re.findall(r"`(test_\w+)`\s*\|", (HERE / "MANIFEST.md").read_text()))
    parts = ("relay", "changes", "asks", "fields", "parked")
    suite = "".join((HERE / f"test_{part}.py").read_text() for part in parts)
    assert listed == set(re.findall(r"^async def (test_\w+)", suite, re.MULTILINE))
