"""Pins: differences between a listing and the accepted definitions."""

from __future__ import annotations

import pytest

from gateway.policy.pin_check import PinFinding, PinMode, judge_pins

LISTED = {"same": "1", "other": "2", "new": "3"}
PINNED = {"same": "1", "other": "0", "gone": "4"}


@pytest.mark.parametrize(("mode", "served"), [("quarantine", False), ("warn", True)])
def test_lock_file_counts_changed_added_and_removed_tools(mode: PinMode, served: bool) -> None:
    assert judge_pins(LISTED, PINNED, mode) == {
        "other": PinFinding("changed", served),
        "new": PinFinding("added", served),
        "gone": PinFinding("removed", False),
    }


@pytest.mark.parametrize(("mode", "served"), [("quarantine", False), ("warn", True)])
def test_first_use_counts_changed_tools_only(mode: PinMode, served: bool) -> None:
    assert judge_pins(LISTED, PINNED, mode, first_use=True) == {"other": PinFinding("changed", served)}


@pytest.mark.parametrize("first_use", [True, False])
def test_server_without_pins_or_with_pins_off_differs_in_nothing(first_use: bool) -> None:
    assert judge_pins(LISTED, None, "quarantine", first_use=first_use) == {}
    assert judge_pins(LISTED, PINNED, "off", first_use=first_use) == {}
