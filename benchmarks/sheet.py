"""What one whole measurement found."""

from __future__ import annotations

from dataclasses import dataclass, field

AGAIN = "slots measured again"
"""In `single`, by load, because the host took too much of them for others."""

TAKEN = "part of the cores that the host took"
"""In `single`, of the whole run."""


@dataclass
class Sheet:
    """The figures of one run, as JSON keeps them."""

    cells: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict[str, dict[str, list[dict[str, float]]]])
    """By load and contender the figures of each round: `per_second`, `cpu` (seconds per 1,000 calls), `p50` and `p99` (ms)."""
    single: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    """Figures of another kind, by name and contender, of each round."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Why something is not there."""

    def note(self, name: str, contender: str, value: float) -> None:
        """One figure of `single`."""
        self.single.setdefault(name, {}).setdefault(contender, []).append(value)

    def fail(self, what: str, why: object) -> None:
        """Something was left out; the first reason counts."""
        self.failed.setdefault(what, str(why))
