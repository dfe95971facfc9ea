"""What a session keeps of its background tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.json_types import JsonMapping, JsonObject


class BackgroundTaskStatus(StrEnum):
    """How a background task stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    """It ran in a process that is gone."""


@dataclass(slots=True)
class BackgroundTaskInfo:
    """One background task."""

    id: int
    agent_name: str
    description: str
    status: BackgroundTaskStatus = BackgroundTaskStatus.RUNNING
    result_text: str | None = None
    error_text: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status is BackgroundTaskStatus.RUNNING

    @property
    def line(self) -> str:
        """The task in one line of a list."""
        return f"- Task {self.id} [{self.status.value}] ({self.agent_name}): {self.description}"

    def to_dict(self, *, exclude_none: bool = True) -> JsonObject:
        """JSON form."""
        data: JsonObject = {"id": self.id, "agent_name": self.agent_name, "description": self.description, "status": self.status.value}
        texts = {"result_text": self.result_text, "error_text": self.error_text}
        return data | {key: value for key, value in texts.items() if value is not None or not exclude_none}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> BackgroundTaskInfo:
        """The inverse of `to_dict`.

        Raises:
            ValueError: The status is none.
        """
        status = BackgroundTaskStatus(data["status"])
        return cls(data["id"], data["agent_name"], data["description"], status, data.get("result_text"), data.get("error_text"))
