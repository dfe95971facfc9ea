"""Decides whether a configuration entry that runs a program may run, or must wait until a person accepts it.

When the user starts the gateway, the current configuration is accepted. A running gateway applies only entries that were accepted before;
an entry that it holds back stays held back after restarts. Pure; `gate.acceptance` keeps the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one record of accepted entries says about a configuration entry as it is written now."""

    accepts: bool
    """Whether a person accepted the entry exactly as it is written now."""
    holds: bool
    """Whether a running gateway refused to run the entry, as it is written now or was written before."""
    has_run: bool
    """Whether a gateway was ever started with this record. Since then the record has every entry that was accepted."""


def may_run(records: Sequence[Recorded], *, is_running: bool, is_start: bool) -> bool:
    """Return whether an entry may run now. `is_running`: this process runs it unchanged; `is_start`: the user is starting the gateway.

    A configuration cannot accept itself by naming another state folder: every record that a gateway was started with must accept the
    entry, and one record that holds the entry back without accepting it is enough to reject it.
    """
    if is_running:
        return True
    if any(record.holds and not record.accepts for record in records):
        return False
    if is_start:
        return True
    known = [record.accepts for record in records if record.has_run]
    return all(known) if known else any(record.accepts for record in records)
