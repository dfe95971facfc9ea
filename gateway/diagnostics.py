"""`Diagnostic`: a finding about a file, with a stable code. Commands that check files print diagnostics for people, editors and CI.

Examples of such commands are `moongate skills check` and `moongate workflows check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.json_types import JsonObject

Level = Literal["info", "warning", "error"]
Verdict = Literal["accepted", "accepted_with_warning", "rejected"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding of a check about a file. `code` is stable and documented; `message` is for people."""

    code: str
    level: Level
    message: str
    line: int | None = None
    """Line number in the file, from 1; `None` if the finding concerns the whole file."""

    def to_json(self) -> JsonObject:
        """Return the JSON object that commands print with the option `--json`."""
        return {"code": self.code, "level": self.level, "message": self.message, "line": self.line}
