"""`WorkflowMessage` and `State`: what travels between executors, and what they share.

Both live from round to round and go into checkpoints; `runner` owns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

RUN_KWARGS_KEY = "_workflow_run_kwargs"
"""Shared-state key of the keyword arguments that a run was given for its agents."""


class MessageType(StrEnum):
    """What a message is."""

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass(slots=True)
class WorkflowMessage:
    """A message that waits for the next round."""

    data: Any
    source_id: str
    target_id: str | None = None
    """The only executor that may get it, where the sender said so."""
    type: MessageType = MessageType.STANDARD
    original_request_info_event: WorkflowEvent[Any] | None = None
    """The request that a response answers."""
    sent_in: tuple[SpanContext, ...] = ()
    """The spans in which it was sent, where telemetry is on; of this process only."""


class State:
    """The values that the executors of a workflow share. Writes count for everybody at once, and stay when the round ends."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._committed: dict[str, Any] = dict(values or {})
        self._pending: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value as last written."""
        return self._pending[key] if key in self._pending else self._committed.get(key, default)

    def get_committed(self, key: str) -> Any:
        """The value as it was when the round began; `None` where there was none."""
        return self._committed.get(key)

    def set(self, key: str, value: Any) -> None:
        """Write a value; it is undone when the round fails."""
        self._pending[key] = value

    def has(self, key: str) -> bool:
        """Whether there is such a value."""
        return key in self._pending or key in self._committed

    def delete(self, key: str) -> None:
        """Remove a value for good; one that is not there is fine."""
        self._pending.pop(key, None)
        self._committed.pop(key, None)

    def commit(self) -> None:
        """Keep what was written since the last commit."""
        self._committed.update(self._pending)
        self._pending.clear()

    def discard(self) -> None:
        """Forget what was written since the last commit."""
        self._pending.clear()

    def export_state(self) -> dict[str, Any]:
        """The committed values."""
        return dict(self._committed)
