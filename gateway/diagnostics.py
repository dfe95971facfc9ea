"""What a check has to say of one file: findings with stable codes, and the verdict they add up to.

Shared by everything that judges files for people, editors and CI (`moongate skills check`, `moongate workflows check`).
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
    """1-based, where one can be named."""

    def to_json(self) -> JsonObject:
        """The object that `--json` prints."""
        return {"code": self.code, "level": self.level, "message": self.message, "line": self.line}
