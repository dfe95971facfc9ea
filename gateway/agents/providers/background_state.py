"""`BackgroundTaskInfo`: a background task (a run of another agent), in the form in which a session's state stores it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.json_types import JsonMapping, JsonObject


class BackgroundTaskStatus(StrEnum):
    """Status of a background task, which is a run of another agent."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    """The task's run is gone, because its process ended or its provider was closed before the result was stored in the session."""


@dataclass(slots=True)
class BackgroundTaskInfo:
    """A background task: a run of the agent `agent_name` that another agent started; `id` is its number in the session."""

    id: int
    agent_name: str
    description: str
    status: BackgroundTaskStatus = BackgroundTaskStatus.RUNNING
    result_text: str | None = None
    error_text: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether the task has not ended."""
        return self.status is BackgroundTaskStatus.RUNNING

    @property
    def line(self) -> str:
        """The task as one line of the list that the model receives: number, status, agent and description."""
        return f"- Task {self.id} [{self.status.value}] ({self.agent_name}): {self.description}"

    def to_dict(self, *, exclude_none: bool = True) -> JsonObject:
        """Return the task as a JSON object; texts that are `None` are omitted unless `exclude_none` is false."""
        data: JsonObject = {"id": self.id, "agent_name": self.agent_name, "description": self.description, "status": self.status.value}
        texts = {"result_text": self.result_text, "error_text": self.error_text}
        return data | {key: value for key, value in texts.items() if value is not None or not exclude_none}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> BackgroundTaskInfo:
        """Create a task from the JSON object that `to_dict` returned.

        Raises:
            ValueError: The status is unknown.
        """
        status = BackgroundTaskStatus(data["status"])
        return cls(data["id"], data["agent_name"], data["description"], status, data.get("result_text"), data.get("error_text"))
