"""Decides whether an entry of the configuration that executes a program may run, or must wait until a person accepts the entry.

If the user starts the gateway, all entries of the configuration are accepted, except entries that already wait. If a running gateway reads
a changed configuration, it runs only entries that a person has accepted before. Other entries wait, also after restarts. The functions are
pure; `gate.acceptance` stores which entries were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """Facts about one entry of the configuration that executes a program, from one acceptance record.

    An acceptance record is a file in a state folder that lists the entries that a person accepted.
    """

    accepts: bool
    """Whether a person accepted the entry exactly as it is written in the configuration now."""
    holds: bool
    """Whether a running gateway refused to run the entry, as written now or before, so that the entry waits until a person accepts it."""
    has_run: bool
    """Whether a gateway was ever started with the state folder of this record. Since that start, the record lists every accepted entry."""


def may_run(records: Sequence[Recorded], *, is_running: bool, is_start: bool) -> bool:
    """Return whether an entry of the configuration may run now.

    `records` are the facts about the entry from the acceptance record in each state folder. An entry that this process already runs
    unchanged (`is_running`) may run. Any other entry may not run if it waits for a person's acceptance in one of the records. An entry that
    does not wait may run if the user is starting the gateway (`is_start`). In a running gateway, every record with which a gateway was ever
    started must accept the entry, so that a configuration cannot accept itself by naming another state folder. If there are no such
    records, one record that accepts the entry is enough.
    """
    if is_running:
        return True
    if any(record.holds and not record.accepts for record in records):
        return False
    if is_start:
        return True
    known = [record.accepts for record in records if record.has_run]
    return all(known) if known else any(record.accepts for record in records)
