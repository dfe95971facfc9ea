"""The decision whether one configuration entry may run."""

from __future__ import annotations

import pytest

from gateway.policy.acceptance_rule import Recorded, may_run

OWN = Recorded(accepts=False, holds=False, has_run=True)
ACCEPTS = Recorded(accepts=True, holds=False, has_run=True)
HOLDS = Recorded(accepts=False, holds=True, has_run=True)
FORGED = Recorded(accepts=True, holds=False, has_run=True)
EMPTY = Recorded(accepts=False, holds=False, has_run=False)


@pytest.mark.parametrize(
    ("records", "is_running", "is_start", "expected"),
    [
        ([], False, True, True),
        ([], False, False, False),
        ([OWN], False, True, True),
        ([OWN], False, False, False),
        ([OWN], True, False, True),
        ([ACCEPTS], False, False, True),
        ([HOLDS], False, True, False),
        ([FORGED, HOLDS], False, True, False),
        ([FORGED, OWN], False, False, False),
        ([EMPTY, ACCEPTS], False, False, True),
        ([EMPTY, Recorded(accepts=True, holds=False, has_run=False)], False, False, True),
    ],
)
def test_entry_runs_only_if_every_known_record_accepts(
    records: list[Recorded], is_running: bool, is_start: bool, expected: bool
) -> None:
    assert may_run(records, is_running=is_running, is_start=is_start) is expected
