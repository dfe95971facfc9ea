"""Background tasks as they are stored in a session's state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.json_types import JsonMapping, JsonObject


class BackgroundTaskStatus(StrEnum):
    """Status of a background task."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    """The process that ran the task ended before the task did."""


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
        """Whether the task is running."""
        return self.status is BackgroundTaskStatus.RUNNING

    @property
    def line(self) -> str:
        """The task as one line for the list that the model receives."""
        return f"- Task {self.id} [{self.status.value}] ({self.agent_name}): {self.description}"

    def to_dict(self, *, exclude_none: bool = True) -> JsonObject:
        """Return the JSON form."""
        data: JsonObject = {"id": self.id, "agent_name": self.agent_name, "description": self.description, "status": self.status.value}
        texts = {"result_text": self.result_text, "error_text": self.error_text}
        return data | {key: value for key, value in texts.items() if value is not None or not exclude_none}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> BackgroundTaskInfo:
        """Create the task from its JSON form.

        Raises:
            ValueError: The status is unknown.
        """
        status = BackgroundTaskStatus(data["status"])
        return cls(data["id"], data["agent_name"], data["description"], status, data.get("result_text"), data.get("error_text"))
