"""`WorkflowMessage`: what executors send to each other.

Checkpoints on disk name the classes of this module, so they must not be renamed or moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

START_SOURCE = "Workflow"
"""Source id of a run's first message."""


class MessageType(StrEnum):
    """Kinds of messages."""

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass(slots=True)
class WorkflowMessage:
    """A message to deliver in the next round."""

    data: Any
    source_id: str
    target_id: str | None = None
    """The only executor that may receive the message, if the sender chose one."""
    type: MessageType = MessageType.STANDARD
    original_request_info_event: WorkflowEvent[Any] | None = None
    """The request that a response answers."""
    sent_in: tuple[SpanContext, ...] = ()
    """The trace spans in which the message was sent, if telemetry is on. Valid in this process only."""
