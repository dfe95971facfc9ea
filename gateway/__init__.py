"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers.

The public names of the library, loaded on first use (PEP 562), so `import gateway` costs nothing and brings no
model or protocol package along. The command line and the server are not part of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.former import FORMER, MISSING
from gateway.names import HOMES

if TYPE_CHECKING:
    from gateway.agents.agent import Agent, RawAgent
    from gateway.agents.base import BaseAgent
    from gateway.agents.client_run import FunctionInvocationLayer
    from gateway.agents.context import (
        AgentContext,
        AgentMiddleware,
        AgentMiddlewareTypes,
        AgentRunContext,
        MiddlewareTypes,
        agent_middleware,
        current_run_context,
    )
    from gateway.agents.evaluation.checks import (
        CheckResult,
        evaluator,
        keyword_check,
        tool_call_args_match,
        tool_called_check,
        tool_calls_present,
    )
    from gateway.agents.evaluation.evaluate import Evaluator, LocalEvaluator, evaluate_agent
    from gateway.agents.evaluation.items import ConversationSplit, ConversationSplitter, EvalItem, ExpectedToolCall
    from gateway.agents.evaluation.results import EvalItemResult, EvalNotPassedError, EvalResults, EvalScoreResult, RubricScore
    from gateway.agents.files.disk import FileSystemAgentFileStore
    from gateway.agents.files.provider import DEFAULT_FILE_ACCESS_INSTRUCTIONS, DEFAULT_FILE_ACCESS_SOURCE_ID, FileAccessProvider
    from gateway.agents.files.search import FileSearchMatch, FileSearchResult
    from gateway.agents.files.store import AgentFileStore, InMemoryAgentFileStore
    from gateway.agents.layers import AgentMiddlewareLayer
    from gateway.agents.lifecycle.hooks import LifecycleHooks
    from gateway.agents.lifecycle.layers import lifecycle_middleware
    from gateway.agents.middleware.approval import DEFAULT_TOOL_APPROVAL_SOURCE_ID, ToolApprovalMiddleware, ToolApprovalRuleCallback
    from gateway.agents.middleware.approval_state import (
        ToolApprovalRule,
        ToolApprovalState,
        create_always_approve_tool_response,
        create_always_approve_tool_with_arguments_response,
    )
    from gateway.agents.middleware.cache import ModelCacheMiddleware, ToolCacheMiddleware
    from gateway.agents.middleware.judge import JudgeVerdict
    from gateway.agents.middleware.loop import AgentLoopMiddleware, background_tasks_running, todos_remaining
    from gateway.agents.middleware.rate_limit import ModelRateLimitMiddleware, ToolRateLimitMiddleware
    from gateway.agents.middleware.redaction import RedactionMiddleware
    from gateway.agents.middleware.repeated_calls import RepeatedCallMiddleware
    from gateway.agents.middleware.retry import ModelRetryMiddleware, ToolRetryMiddleware
    from gateway.agents.middleware.timeout import ModelTimeoutMiddleware, ToolTimeoutMiddleware
    from gateway.agents.providers.background import DEFAULT_BACKGROUND_AGENTS_SOURCE_ID, BackgroundAgentsProvider
    from gateway.agents.providers.background_state import BackgroundTaskInfo, BackgroundTaskStatus
    from gateway.agents.providers.memory import DEFAULT_MEMORY_SOURCE_ID, MemoryContextProvider
    from gateway.agents.providers.memory_records import MemoryIndexEntry, MemoryTopicRecord
    from gateway.agents.providers.memory_store import MemoryFileStore, MemoryStore
    from gateway.agents.providers.mode import DEFAULT_MODE_SOURCE_ID, AgentModeProvider, get_agent_mode, set_agent_mode
    from gateway.agents.providers.todo import DEFAULT_TODO_SOURCE_ID, TodoProvider
    from gateway.agents.providers.todo_store import TodoFileStore, TodoInput, TodoItem, TodoSessionStore, TodoStore
    from gateway.agents.remote.a2a import A2AAgent
    from gateway.chat.agui import AGUIChatClient
    from gateway.chat.base import BaseChatClient, SupportsChatGetResponse
    from gateway.chat.completions import OpenAIChatCompletionClient
    from gateway.chat.embeddings import (
        BaseEmbeddingClient,
        Embedding,
        EmbeddingGenerationOptions,
        EmbeddingInputT,
        EmbeddingT,
        GeneratedEmbeddings,
        OpenAIEmbeddingClient,
        SupportsGetEmbeddings,
    )
    from gateway.chat.foundry import FoundryChatClient
    from gateway.chat.hosted import (
        SupportsCodeInterpreterTool,
        SupportsFileSearchTool,
        SupportsImageGenerationTool,
        SupportsMCPTool,
        SupportsShellTool,
        SupportsWebSearchTool,
    )
    from gateway.chat.layers import ChatMiddlewareLayer, ChatTelemetryLayer
    from gateway.chat.limits import FunctionInvocationConfiguration, normalize_function_invocation_configuration
    from gateway.chat.middleware import ChatAndFunctionMiddlewareTypes, ChatContext, ChatMiddleware, ChatMiddlewareTypes, chat_middleware
    from gateway.chat.responses import OpenAIChatClient
    from gateway.chat.retry import RetryPolicy
    from gateway.chat.scripted import ScriptedChatClient
    from gateway.config.settings import SecretString, load_settings
    from gateway.errors import (
        AdditionItemMismatch,
        AgentException,
        AgentFrameworkException,
        ChatClientContentFilterException,
        ChatClientException,
        ChatClientInvalidAuthException,
        ChatClientInvalidRequestException,
        ChatClientInvalidResponseException,
        ContentError,
        IntegrationException,
        ModelError,
        ToolException,
        ToolExecutionException,
        UserInputRequiredException,
        WorkflowCheckpointException,
        WorkflowConvergenceException,
        WorkflowException,
        WorkflowRunnerException,
    )
    from gateway.harness import DEFAULT_HARNESS_INSTRUCTIONS, create_harness_agent
    from gateway.middleware import MiddlewareException, MiddlewareFailure, MiddlewareTermination, MiddlewareType
    from gateway.sessions.compacting import COMPACTION_STATE_KEY, CompactionProvider, apply_compaction
    from gateway.sessions.compaction import (
        CompactionStrategy,
        ContextWindowCompactionStrategy,
        SelectiveToolCallCompactionStrategy,
        SlidingWindowStrategy,
        SummarizationStrategy,
        TokenBudgetComposedStrategy,
        ToolResultCompactionStrategy,
        TruncationStrategy,
    )
    from gateway.sessions.context import ContextProvider, SessionContext
    from gateway.sessions.files import FileHistoryProvider
    from gateway.sessions.grouping import (
        EXCLUDE_REASON_KEY,
        GROUP_ANNOTATION_KEY,
        GROUP_HAS_REASONING_KEY,
        GROUP_ID_KEY,
        GROUP_INDEX_KEY,
        GROUP_KIND_KEY,
        GROUP_TOKEN_COUNT_KEY,
        SUMMARIZED_BY_SUMMARY_ID_KEY,
        SUMMARY_OF_GROUP_IDS_KEY,
        SUMMARY_OF_MESSAGE_IDS_KEY,
        CharacterEstimatorTokenizer,
        TokenizerProtocol,
        annotate_message_groups,
        included_messages,
        included_token_count,
    )
    from gateway.sessions.history import EXCLUDED_KEY, HistoryProvider, InMemoryHistoryProvider
    from gateway.sessions.memory import SemanticMemoryProvider
    from gateway.sessions.session import AgentSession, SupportsAgentRun, register_state_type
    from gateway.sessions.sql import SqlHistoryProvider
    from gateway.skills.objects.class_skill import ClassSkill
    from gateway.skills.objects.files import FileSkillsSource
    from gateway.skills.objects.frontmatter import SkillFrontmatter
    from gateway.skills.objects.inline import InlineSkill
    from gateway.skills.objects.members import FileSkillScript, InlineSkillResource, InlineSkillScript, SkillScriptRunner
    from gateway.skills.objects.provider import SkillsProvider
    from gateway.skills.objects.remote import MCPSkill, MCPSkillResource, MCPSkillsSource
    from gateway.skills.objects.skill import FileSkill, Skill, SkillResource, SkillScript
    from gateway.skills.objects.sources import (
        AggregatingSkillsSource,
        CachingSkillsSource,
        DeduplicatingSkillsSource,
        DelegatingSkillsSource,
        FilteringSkillsSource,
        InMemorySkillsSource,
        SkillsSource,
        SkillsSourceContext,
    )
    from gateway.staging import ExperimentalFeature, ExperimentalWarning, FeatureStageWarning, ReleaseCandidateFeature
    from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, disable_instrumentation, enable_instrumentation
    from gateway.telemetry.providers import configure_otel_providers
    from gateway.tools.context import CallContext
    from gateway.tools.function import SKIP_PARSING, FunctionTool, tool
    from gateway.tools.given import ToolTypes, normalize_tools, validate_chat_options, validate_tools
    from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware, FunctionMiddlewareTypes, function_middleware
    from gateway.types.annotations import Annotation, TextSpanRegion, UsageDetails
    from gateway.types.content import Content
    from gateway.types.helpers import (
        detect_media_type_from_base64,
        map_chat_to_agent_update,
        merge_chat_options,
        prepend_instructions_to_messages,
    )
    from gateway.types.messages import AgentRunInputs, Message, Role, RoleLiteral, normalize_messages
    from gateway.types.options import ChatOptions, ToolMode, validate_tool_mode
    from gateway.types.responses import (
        AgentResponse,
        AgentResponseUpdate,
        ChatResponse,
        ChatResponseUpdate,
        ContinuationToken,
        FinishReason,
        FinishReasonLiteral,
        add_usage_details,
    )
    from gateway.types.streams import FinalT, OuterFinalT, OuterUpdateT, ResponseStream, UpdateT
    from gateway.upstream.library.mcp_tool import MCPTool
    from gateway.upstream.library.options import MCPSpecificApproval, SamplingApprovalCallback
    from gateway.upstream.library.transports import MCPStdioTool, MCPStreamableHTTPTool
    from gateway.upstream.tasks import MCPTaskOptions
    from gateway.workflows.agent_executor import AgentExecutor, AgentExecutorRequest, AgentExecutorResponse, resolve_agent_id
    from gateway.workflows.builder import WorkflowBuilder
    from gateway.workflows.checkpoints import (
        CheckpointID,
        CheckpointStorage,
        FileCheckpointStorage,
        InMemoryCheckpointStorage,
        WorkflowCheckpoint,
    )
    from gateway.workflows.context import WorkflowContext
    from gateway.workflows.edges import (
        Case,
        Default,
        Edge,
        EdgeCondition,
        FanInEdgeGroup,
        FanOutEdgeGroup,
        SingleEdgeGroup,
        SwitchCaseEdgeGroup,
        SwitchCaseEdgeGroupCase,
        SwitchCaseEdgeGroupDefault,
    )
    from gateway.workflows.evaluation import evaluate_workflow
    from gateway.workflows.events import (
        WorkflowErrorDetails,
        WorkflowEvent,
        WorkflowEventSource,
        WorkflowEventType,
        WorkflowRunResult,
        WorkflowRunState,
    )
    from gateway.workflows.executor import Executor, handler, response_handler
    from gateway.workflows.function_executor import FunctionExecutor, executor
    from gateway.workflows.functional import FunctionalWorkflow, workflow
    from gateway.workflows.functional_agent import FunctionalWorkflowAgent
    from gateway.workflows.functional_steps import RunContext, StepWrapper, get_run_context, step
    from gateway.workflows.messages import WorkflowMessage
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
    from gateway.workflows.runner import DEFAULT_MAX_ITERATIONS
    from gateway.workflows.sql_checkpoints import SqlCheckpointStorage
    from gateway.workflows.sub_workflow import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
    from gateway.workflows.validation import (
        EdgeDuplicationError,
        GraphConnectivityError,
        TypeCompatibilityError,
        ValidationTypeEnum,
        WorkflowValidationError,
        validate_workflow_graph,
    )
    from gateway.workflows.viz import WorkflowViz
    from gateway.workflows.workflow import Workflow
    from gateway.workflows.workflow_agent import WorkflowAgent

__version__ = "0.1.0"

__all__ = [
    "COMPACTION_STATE_KEY", "DEFAULT_BACKGROUND_AGENTS_SOURCE_ID", "DEFAULT_FILE_ACCESS_INSTRUCTIONS", "DEFAULT_FILE_ACCESS_SOURCE_ID",
    "DEFAULT_HARNESS_INSTRUCTIONS", "DEFAULT_MAX_ITERATIONS", "DEFAULT_MEMORY_SOURCE_ID", "DEFAULT_MODE_SOURCE_ID",
    "DEFAULT_TODO_SOURCE_ID", "DEFAULT_TOOL_APPROVAL_SOURCE_ID", "EXCLUDED_KEY", "EXCLUDE_REASON_KEY", "GROUP_ANNOTATION_KEY",
    "GROUP_HAS_REASONING_KEY", "GROUP_ID_KEY", "GROUP_INDEX_KEY", "GROUP_KIND_KEY", "GROUP_TOKEN_COUNT_KEY", "MAGENTIC_MANAGER_NAME",
    "OBSERVABILITY_SETTINGS", "SKIP_PARSING", "SUMMARIZED_BY_SUMMARY_ID_KEY", "SUMMARY_OF_GROUP_IDS_KEY", "SUMMARY_OF_MESSAGE_IDS_KEY",
    "A2AAgent", "AGUIChatClient", "AdditionItemMismatch", "Agent", "AgentBasedGroupChatOrchestrator", "AgentContext", "AgentException",
    "AgentExecutor", "AgentExecutorRequest", "AgentExecutorResponse", "AgentFileStore", "AgentFrameworkException", "AgentLoopMiddleware",
    "AgentMiddleware",
    "AgentMiddlewareLayer", "AgentMiddlewareTypes", "AgentModeProvider", "AgentOrchestrationOutput", "AgentRequestInfoResponse",
    "AgentResponse", "AgentResponseUpdate", "AgentRunContext", "AgentRunInputs", "AgentSession", "AggregatingSkillsSource", "Annotation",
    "BackgroundAgentsProvider", "BackgroundTaskInfo", "BackgroundTaskStatus", "BaseAgent", "BaseChatClient", "BaseEmbeddingClient",
    "BaseGroupChatOrchestrator", "CachingSkillsSource", "CallContext", "Case", "CharacterEstimatorTokenizer",
    "ChatAndFunctionMiddlewareTypes", "ChatClientContentFilterException", "ChatClientException", "ChatClientInvalidAuthException",
    "ChatClientInvalidRequestException", "ChatClientInvalidResponseException", "ChatContext", "ChatMiddleware", "ChatMiddlewareLayer",
    "ChatMiddlewareTypes", "ChatOptions", "ChatResponse", "ChatResponseUpdate", "ChatTelemetryLayer", "CheckResult",
    "CheckpointID", "CheckpointStorage",
    "ClassSkill", "CompactionProvider", "CompactionStrategy", "ConcurrentBuilder", "Content", "ContentError", "ContextProvider",
    "ContextWindowCompactionStrategy", "ContinuationToken", "ConversationSplit", "ConversationSplitter", "DeduplicatingSkillsSource",
    "Default", "DelegatingSkillsSource", "Edge", "EdgeCondition", "EdgeDuplicationError", "Embedding", "EmbeddingGenerationOptions",
    "EmbeddingInputT", "EmbeddingT",
    "EvalItem", "EvalItemResult", "EvalNotPassedError", "EvalResults", "EvalScoreResult", "Evaluator", "Executor", "ExpectedToolCall",
    "ExperimentalFeature", "ExperimentalWarning", "FanInEdgeGroup", "FanOutEdgeGroup", "FeatureStageWarning", "FileAccessProvider",
    "FileCheckpointStorage", "FileHistoryProvider",
    "FileSearchMatch", "FileSearchResult", "FileSkill", "FileSkillScript", "FileSkillsSource", "FileSystemAgentFileStore",
    "FilteringSkillsSource", "FinalT", "FinishReason", "FinishReasonLiteral", "FoundryChatClient", "FunctionExecutor",
    "FunctionInvocationConfiguration", "FunctionInvocationContext", "FunctionInvocationLayer", "FunctionMiddleware",
    "FunctionMiddlewareTypes", "FunctionTool", "FunctionalWorkflow", "FunctionalWorkflowAgent", "GeneratedEmbeddings",
    "GraphConnectivityError", "GroupChatBuilder", "GroupChatOrchestrator", "GroupChatParticipantMessage", "GroupChatRequestMessage",
    "GroupChatRequestSentEvent", "GroupChatResponseMessage", "GroupChatResponseReceivedEvent", "GroupChatSelectionFunction",
    "GroupChatState", "HandoffAgentUserRequest", "HandoffBuilder", "HandoffConfiguration", "HandoffSentEvent", "HistoryProvider",
    "InMemoryAgentFileStore", "InMemoryCheckpointStorage", "InMemoryHistoryProvider", "InMemorySkillsSource", "InlineSkill",
    "InlineSkillResource", "InlineSkillScript", "IntegrationException", "JudgeVerdict", "LifecycleHooks", "LocalEvaluator", "MCPSkill",
    "MCPSkillResource", "MCPSkillsSource", "MCPSpecificApproval", "MCPStdioTool", "MCPStreamableHTTPTool", "MCPTaskOptions", "MCPTool",
    "MagenticBuilder", "MagenticContext", "MagenticManagerBase", "MagenticOrchestratorEvent", "MagenticOrchestratorEventType",
    "MagenticPlanReviewRequest", "MagenticPlanReviewResponse", "MagenticProgressLedger", "MagenticProgressLedgerItem",
    "MagenticResetSignal", "MemoryContextProvider", "MemoryFileStore", "MemoryIndexEntry", "MemoryStore", "MemoryTopicRecord", "Message",
    "MiddlewareException", "MiddlewareFailure", "MiddlewareTermination", "MiddlewareType", "MiddlewareTypes", "ModelCacheMiddleware",
    "ModelError", "ModelRateLimitMiddleware", "ModelRetryMiddleware", "ModelTimeoutMiddleware", "OpenAIChatClient",
    "OpenAIChatCompletionClient", "OpenAIEmbeddingClient", "OuterFinalT", "OuterUpdateT", "RawAgent", "RedactionMiddleware",
    "ReleaseCandidateFeature", "RepeatedCallMiddleware", "ResponseStream", "RetryPolicy", "Role", "RoleLiteral", "RubricScore",
    "RunContext", "SamplingApprovalCallback", "ScriptedChatClient", "SecretString", "SelectiveToolCallCompactionStrategy",
    "SemanticMemoryProvider", "SequentialBuilder", "SessionContext", "SingleEdgeGroup", "Skill", "SkillFrontmatter", "SkillResource",
    "SkillScript", "SkillScriptRunner", "SkillsProvider", "SkillsSource", "SkillsSourceContext", "SlidingWindowStrategy",
    "SqlCheckpointStorage", "SqlHistoryProvider", "StandardMagenticManager", "StepWrapper", "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage", "SummarizationStrategy", "SupportsAgentRun", "SupportsChatGetResponse", "SupportsCodeInterpreterTool",
    "SupportsFileSearchTool", "SupportsGetEmbeddings", "SupportsImageGenerationTool", "SupportsMCPTool", "SupportsShellTool",
    "SupportsWebSearchTool", "SwitchCaseEdgeGroup", "SwitchCaseEdgeGroupCase", "SwitchCaseEdgeGroupDefault", "TerminationCondition",
    "TextSpanRegion", "TodoFileStore", "TodoInput", "TodoItem", "TodoProvider", "TodoSessionStore", "TodoStore",
    "TokenBudgetComposedStrategy", "TokenizerProtocol", "ToolApprovalMiddleware", "ToolApprovalRule", "ToolApprovalRuleCallback",
    "ToolApprovalState", "ToolCacheMiddleware", "ToolException", "ToolExecutionException", "ToolMode", "ToolRateLimitMiddleware",
    "ToolResultCompactionStrategy", "ToolRetryMiddleware", "ToolTimeoutMiddleware", "ToolTypes", "TruncationStrategy",
    "TypeCompatibilityError", "UpdateT", "UsageDetails", "UserInputRequiredException", "ValidationTypeEnum", "Workflow", "WorkflowAgent",
    "WorkflowBuilder", "WorkflowCheckpoint", "WorkflowCheckpointException", "WorkflowContext", "WorkflowConvergenceException",
    "WorkflowErrorDetails", "WorkflowEvent", "WorkflowEventSource", "WorkflowEventType", "WorkflowException", "WorkflowExecutor",
    "WorkflowMessage", "WorkflowRunResult", "WorkflowRunState", "WorkflowRunnerException", "WorkflowValidationError", "WorkflowViz",
    "__version__", "add_usage_details", "agent_middleware", "annotate_message_groups", "apply_compaction", "background_tasks_running",
    "chat_middleware", "configure_otel_providers", "create_always_approve_tool_response",
    "create_always_approve_tool_with_arguments_response", "create_harness_agent", "current_run_context", "detect_media_type_from_base64",
    "disable_instrumentation", "enable_instrumentation", "evaluate_agent", "evaluate_workflow", "evaluator", "executor",
    "function_middleware", "get_agent_mode", "get_run_context", "handler", "included_messages", "included_token_count", "keyword_check",
    "lifecycle_middleware", "load_settings", "map_chat_to_agent_update", "merge_chat_options",
    "normalize_function_invocation_configuration", "normalize_messages", "normalize_tools", "prepend_instructions_to_messages",
    "register_state_type", "resolve_agent_id", "response_handler", "set_agent_mode", "step", "todos_remaining", "tool",
    "tool_call_args_match", "tool_called_check", "tool_calls_present", "validate_chat_options", "validate_tool_mode", "validate_tools",
    "validate_workflow_graph", "workflow",
]  # fmt: skip

_HOMES = {name: home for home, names in HOMES.items() for name in names}
_MISSING = {name: reason for reason, names in MISSING.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        hint = f"; use {FORMER[name]}, its name now" if name in FORMER else f": {_MISSING[name]}" if name in _MISSING else ""
        text = f"module {__name__!r} has no attribute {name!r}{hint}"
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `from gateway import …` drops an AttributeError's text
        if hint and caller.f_globals.get("__name__") == "importlib._bootstrap":
            raise ImportError(text, name=__name__)
        raise AttributeError(text)
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
