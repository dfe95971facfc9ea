"""`Diagnostic`: a finding about a file, with a stable code. Used by checks for people, editors and CI.

Examples are `moongate skills check` and `moongate workflows check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.json_types import JsonObject

Level = Literal["info", "warning", "error"]
Verdict = Literal["accepted", "accepted_with_warning", "rejected"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a file. `code` is stable and documented; `message` is for people."""

    code: str
    level: Level
    message: str
    line: int | None = None
    """Line number from 1, if the finding has one."""

    def to_json(self) -> JsonObject:
        """Return the object that `--json` prints."""
        return {"code": self.code, "level": self.level, "message": self.message, "line": self.line}
