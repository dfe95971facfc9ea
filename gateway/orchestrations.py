"""Ready-made workflows of several agents; the stable import path of that part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names
from gateway.names import HOMES

if TYPE_CHECKING:
    from gateway.workflows.orchestrations.concurrent import ConcurrentBuilder
    from gateway.workflows.orchestrations.group_chat import (
        AgentBasedGroupChatOrchestrator,
        AgentOrchestrationOutput,
        BaseGroupChatOrchestrator,
        GroupChatBuilder,
        GroupChatOrchestrator,
        GroupChatParticipantMessage,
        GroupChatRequestMessage,
        GroupChatRequestSentEvent,
        GroupChatResponseMessage,
        GroupChatResponseReceivedEvent,
        GroupChatSelectionFunction,
        GroupChatState,
        TerminationCondition,
    )
    from gateway.workflows.orchestrations.handoff import HandoffAgentUserRequest, HandoffBuilder, HandoffConfiguration, HandoffSentEvent
    from gateway.workflows.orchestrations.magentic import (
        MagenticBuilder,
        MagenticOrchestratorEvent,
        MagenticOrchestratorEventType,
        MagenticPlanReviewRequest,
        MagenticPlanReviewResponse,
        MagenticResetSignal,
    )
    from gateway.workflows.orchestrations.magentic_manager import (
        MAGENTIC_MANAGER_NAME,
        MagenticContext,
        MagenticManagerBase,
        MagenticProgressLedger,
        MagenticProgressLedgerItem,
        StandardMagenticManager,
    )
    from gateway.workflows.orchestrations.participants import AgentRequestInfoResponse
    from gateway.workflows.orchestrations.sequential import SequentialBuilder

__all__ = [
    "MAGENTIC_MANAGER_NAME",
    "AgentBasedGroupChatOrchestrator",
    "AgentOrchestrationOutput",
    "AgentRequestInfoResponse",
    "BaseGroupChatOrchestrator",
    "ConcurrentBuilder",
    "GroupChatBuilder",
    "GroupChatOrchestrator",
    "GroupChatParticipantMessage",
    "GroupChatRequestMessage",
    "GroupChatRequestSentEvent",
    "GroupChatResponseMessage",
    "GroupChatResponseReceivedEvent",
    "GroupChatSelectionFunction",
    "GroupChatState",
    "HandoffAgentUserRequest",
    "HandoffBuilder",
    "HandoffConfiguration",
    "HandoffSentEvent",
    "MagenticBuilder",
    "MagenticContext",
    "MagenticManagerBase",
    "MagenticOrchestratorEvent",
    "MagenticOrchestratorEventType",
    "MagenticPlanReviewRequest",
    "MagenticPlanReviewResponse",
    "MagenticProgressLedger",
    "MagenticProgressLedgerItem",
    "MagenticResetSignal",
    "SequentialBuilder",
    "StandardMagenticManager",
    "TerminationCondition",
]

__getattr__ = lazy_names(
    __name__, {name: home for home, names in HOMES.items() if home.startswith("workflows.orchestrations.") for name in names}
)
