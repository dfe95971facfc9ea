"""`WorkflowMessage`: a message to an executor (node) of a workflow, from another executor or from the caller of the workflow.

Stored checkpoints contain the names of the classes in this module, so they must not be renamed or moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

START_SOURCE = "Workflow"
"""Source id of the message with which a workflow run begins. It marks that the message comes from the caller and not from an executor."""


class MessageType(StrEnum):
    """Kinds of workflow messages.

    `STANDARD`: an executor sent the message, or the caller sent it as the first message of a run. `RESPONSE`: the caller's response to an
    executor's request.
    """

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass(slots=True)
class WorkflowMessage:
    """A message to an executor of a workflow. Another executor or the caller of the workflow sent it.

    A run is a sequence of supersteps (rounds). An executor's message is delivered in the superstep after the one in which it was sent. The
    first message of a run, from the caller, is delivered before the first superstep.
    """

    data: Any
    source_id: str
    target_id: str | None = None
    """Id of the only executor that may receive the message; `None` sends it along every edge of the sender."""
    type: MessageType = MessageType.STANDARD
    original_request_info_event: WorkflowEvent[Any] | None = None
    """For a response: the `request_info` event of the request that it answers."""
    sent_in: tuple[SpanContext, ...] = ()
    """Contexts of the OpenTelemetry spans in which the message was sent, if telemetry is enabled. Valid in this process only."""
