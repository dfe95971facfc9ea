"""Decides whether a configuration entry that runs a program may run, or must wait until a person accepts it.

When the user starts the gateway, the current configuration is accepted. A running gateway applies only entries that were accepted before;
an entry that it holds back stays held back after restarts. Pure; `gate.acceptance` keeps the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one record says about the current form of an entry."""

    accepts: bool
    """Whether a person accepted exactly this form."""
    holds: bool
    """Whether a running gateway held the entry back, in this form or another."""
    has_run: bool
    """Whether a gateway was started with this record, so that the record is complete since then."""


def may_run(records: Sequence[Recorded], *, is_running: bool, is_start: bool) -> bool:
    """Decide about one entry. `is_running`: this process already runs exactly this form; `is_start`: the user is starting the gateway.

    A configuration cannot accept itself by naming another state folder: every record of a gateway that has run must accept the entry,
    and a record that holds it back wins.
    """
    if is_running:
        return True
    if any(record.holds and not record.accepts for record in records):
        return False
    if is_start:
        return True
    known = [record.accepts for record in records if record.has_run]
    return all(known) if known else any(record.accepts for record in records)
