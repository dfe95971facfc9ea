"""The figures of one benchmark run, which `measures` writes and `report` reads."""

from __future__ import annotations

from dataclasses import dataclass, field

AGAIN = "slots measured again"
"""Key in `Sheet.single` for the repeated slots by load; a slot is repeated because of too much CPU steal time."""

TAKEN = "part of the cores that the host took"
"""Key in `Sheet.single` for the share of CPU steal time in the whole run."""


@dataclass
class Sheet:
    """The figures of one run, in types that JSON can represent."""

    cells: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict[str, dict[str, list[dict[str, float]]]])
    """Figures of each round, by load and contender: `per_second`, `cpu` (CPU seconds per 1,000 calls), `p50` and `p99` (ms)."""
    single: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    """Figures that do not belong to a load (start time, memory, counters), by name and contender, one per round."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons for missing figures, by contender, load or part."""

    def note(self, name: str, contender: str, value: float) -> None:
        """Append a figure to `single`."""
        self.single.setdefault(name, {}).setdefault(contender, []).append(value)

    def fail(self, what: str, why: object) -> None:
        """Record why a figure is missing; a later reason for the same key is ignored."""
        self.failed.setdefault(what, str(why))
