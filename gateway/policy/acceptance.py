"""Whether something that the configuration executes may run, or waits until a person accepts it.

A start by the user accepts what the file says then. A gateway that is already running takes up only what was accepted before, and what
it holds back stays held over restarts. Pure; `app.acceptance` keeps the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """The statement of one record about an entry as it is written now."""

    accepts: bool
    """A person accepted exactly this."""
    holds: bool
    """A running gateway held the entry back, in this form or another one."""
    has_run: bool
    """A gateway was started with this record, so it knows what was accepted since."""


def may_run(records: Sequence[Recorded], *, is_running: bool, is_start: bool) -> bool:
    """Decide for one entry. `is_running`: this process runs exactly this; `is_start`: the user starts the gateway.

    A configuration that names another state folder cannot bring an acceptance of its own: every record of a gateway that ran must
    accept the entry, and a record that holds it wins.
    """
    if is_running:
        return True
    if any(record.holds and not record.accepts for record in records):
        return False
    if is_start:
        return True
    known = [record.accepts for record in records if record.has_run]
    return all(known) if known else any(record.accepts for record in records)
