from gateway.workflows.orchestrations.concurrent import ConcurrentBuilder as ConcurrentBuilder
from gateway.workflows.orchestrations.group_chat import (
    AgentBasedGroupChatOrchestrator as AgentBasedGroupChatOrchestrator,
    AgentOrchestrationOutput as AgentOrchestrationOutput,
    BaseGroupChatOrchestrator as BaseGroupChatOrchestrator,
    GroupChatBuilder as GroupChatBuilder,
    GroupChatOrchestrator as GroupChatOrchestrator,
    GroupChatParticipantMessage as GroupChatParticipantMessage,
    GroupChatRequestMessage as GroupChatRequestMessage,
    GroupChatRequestSentEvent as GroupChatRequestSentEvent,
    GroupChatResponseMessage as GroupChatResponseMessage,
    GroupChatResponseReceivedEvent as GroupChatResponseReceivedEvent,
    GroupChatSelectionFunction as GroupChatSelectionFunction,
    GroupChatState as GroupChatState,
    TerminationCondition as TerminationCondition,
)
from gateway.workflows.orchestrations.handoff import (
    HandoffAgentUserRequest as HandoffAgentUserRequest,
    HandoffBuilder as HandoffBuilder,
    HandoffConfiguration as HandoffConfiguration,
    HandoffSentEvent as HandoffSentEvent,
)
from gateway.workflows.orchestrations.magentic import (
    MagenticBuilder as MagenticBuilder,
    MagenticOrchestratorEvent as MagenticOrchestratorEvent,
    MagenticOrchestratorEventType as MagenticOrchestratorEventType,
    MagenticPlanReviewRequest as MagenticPlanReviewRequest,
    MagenticPlanReviewResponse as MagenticPlanReviewResponse,
    MagenticResetSignal as MagenticResetSignal,
)
from gateway.workflows.orchestrations.magentic_manager import (
    MAGENTIC_MANAGER_NAME as MAGENTIC_MANAGER_NAME,
    MagenticContext as MagenticContext,
    MagenticManagerBase as MagenticManagerBase,
    MagenticProgressLedger as MagenticProgressLedger,
    MagenticProgressLedgerItem as MagenticProgressLedgerItem,
    StandardMagenticManager as StandardMagenticManager,
)
from gateway.workflows.orchestrations.participants import AgentRequestInfoResponse as AgentRequestInfoResponse
from gateway.workflows.orchestrations.sequential import SequentialBuilder as SequentialBuilder
