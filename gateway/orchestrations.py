"""Ready-made workflows of several agents; the stable import path of that part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.workflows.orchestrations.concurrent import ConcurrentBuilder
    from gateway.workflows.orchestrations.group_chat import AgentOrchestrationOutput, GroupChatBuilder, GroupChatState, TerminationCondition
    from gateway.workflows.orchestrations.handoff import HandoffAgentUserRequest, HandoffBuilder, HandoffSentEvent
    from gateway.workflows.orchestrations.magentic import (
        MagenticBuilder,
        MagenticContext,
        MagenticManagerBase,
        MagenticOrchestratorEvent,
        MagenticPlanReviewRequest,
        MagenticPlanReviewResponse,
        MagenticProgressLedger,
        MagenticProgressLedgerItem,
        StandardMagenticManager,
    )
    from gateway.workflows.orchestrations.participants import AgentRequestInfoResponse
    from gateway.workflows.orchestrations.sequential import SequentialBuilder

__all__ = [
    "AgentOrchestrationOutput",
    "AgentRequestInfoResponse",
    "ConcurrentBuilder",
    "GroupChatBuilder",
    "GroupChatState",
    "HandoffAgentUserRequest",
    "HandoffBuilder",
    "HandoffSentEvent",
    "MagenticBuilder",
    "MagenticContext",
    "MagenticManagerBase",
    "MagenticOrchestratorEvent",
    "MagenticPlanReviewRequest",
    "MagenticPlanReviewResponse",
    "MagenticProgressLedger",
    "MagenticProgressLedgerItem",
    "SequentialBuilder",
    "StandardMagenticManager",
    "TerminationCondition",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AgentOrchestrationOutput": "workflows.orchestrations.group_chat",
        "AgentRequestInfoResponse": "workflows.orchestrations.participants",
        "ConcurrentBuilder": "workflows.orchestrations.concurrent",
        "GroupChatBuilder": "workflows.orchestrations.group_chat",
        "GroupChatState": "workflows.orchestrations.group_chat",
        "HandoffAgentUserRequest": "workflows.orchestrations.handoff",
        "HandoffBuilder": "workflows.orchestrations.handoff",
        "HandoffSentEvent": "workflows.orchestrations.handoff",
        "MagenticBuilder": "workflows.orchestrations.magentic",
        "MagenticContext": "workflows.orchestrations.magentic",
        "MagenticManagerBase": "workflows.orchestrations.magentic",
        "MagenticOrchestratorEvent": "workflows.orchestrations.magentic",
        "MagenticPlanReviewRequest": "workflows.orchestrations.magentic",
        "MagenticPlanReviewResponse": "workflows.orchestrations.magentic",
        "MagenticProgressLedger": "workflows.orchestrations.magentic",
        "MagenticProgressLedgerItem": "workflows.orchestrations.magentic",
        "SequentialBuilder": "workflows.orchestrations.sequential",
        "StandardMagenticManager": "workflows.orchestrations.magentic",
        "TerminationCondition": "workflows.orchestrations.group_chat",
    },
)
