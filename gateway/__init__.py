"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers.

The public names of the library, loaded on first use (PEP 562), so `import gateway` costs nothing and brings no
model or protocol package along. The command line and the server are not part of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.agents.agent import Agent, BaseAgent
    from gateway.agents.context import AgentContext, AgentMiddleware, AgentRunContext, agent_middleware, current_run_context
    from gateway.agents.files.disk import FileSystemAgentFileStore
    from gateway.agents.files.search import FileSearchMatch, FileSearchResult
    from gateway.agents.files.store import AgentFileStore, InMemoryAgentFileStore
    from gateway.agents.options import FunctionInvocationConfiguration, normalize_function_invocation_configuration
    from gateway.agents.providers.mode import DEFAULT_MODE_SOURCE_ID, AgentModeProvider, get_agent_mode, set_agent_mode
    from gateway.agents.providers.todo import DEFAULT_TODO_SOURCE_ID, TodoProvider
    from gateway.agents.providers.todo_store import TodoFileStore, TodoInput, TodoItem, TodoSessionStore, TodoStore
    from gateway.chat.base import BaseChatClient, SupportsChatGetResponse
    from gateway.chat.completions import OpenAIChatCompletionClient
    from gateway.chat.middleware import ChatContext, ChatMiddleware, chat_middleware
    from gateway.chat.responses import OpenAIChatClient
    from gateway.chat.scripted import ScriptedChatClient
    from gateway.config.settings import SecretString, load_settings
    from gateway.errors import (
        AgentFrameworkException,
        UserInputRequiredException,
        WorkflowCheckpointException,
        WorkflowConvergenceException,
    )
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
    from gateway.staging import ExperimentalFeature, ReleaseCandidateFeature
    from gateway.tools.context import CallContext
    from gateway.tools.function import FunctionTool, normalize_tools, tool
    from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware, function_middleware
    from gateway.types.annotations import Annotation, TextSpanRegion, UsageDetails
    from gateway.types.content import Content
    from gateway.types.messages import AgentRunInputs, Message
    from gateway.types.options import ChatOptions, ToolMode
    from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, ContinuationToken
    from gateway.types.streams import ResponseStream
    from gateway.upstream.library.mcp_tool import MCPTool
    from gateway.upstream.library.options import MCPSpecificApproval, SamplingApprovalCallback
    from gateway.upstream.library.transports import MCPStdioTool, MCPStreamableHTTPTool
    from gateway.upstream.tasks import MCPTaskOptions
    from gateway.workflows.agent_executor import AgentExecutor, AgentExecutorRequest, AgentExecutorResponse
    from gateway.workflows.builder import WorkflowBuilder
    from gateway.workflows.checkpoints import CheckpointStorage, FileCheckpointStorage, InMemoryCheckpointStorage, WorkflowCheckpoint
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
    from gateway.workflows.messages import WorkflowMessage
    from gateway.workflows.sub_workflow import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
    from gateway.workflows.validation import (
        EdgeDuplicationError,
        GraphConnectivityError,
        TypeCompatibilityError,
        ValidationTypeEnum,
        WorkflowValidationError,
    )
    from gateway.workflows.workflow import Workflow
    from gateway.workflows.workflow_agent import WorkflowAgent

__version__ = "0.1.0"

__all__ = [
    "COMPACTION_STATE_KEY",
    "DEFAULT_MODE_SOURCE_ID",
    "DEFAULT_TODO_SOURCE_ID",
    "EXCLUDED_KEY",
    "EXCLUDE_REASON_KEY",
    "GROUP_ANNOTATION_KEY",
    "GROUP_HAS_REASONING_KEY",
    "GROUP_ID_KEY",
    "GROUP_INDEX_KEY",
    "GROUP_KIND_KEY",
    "GROUP_TOKEN_COUNT_KEY",
    "SUMMARIZED_BY_SUMMARY_ID_KEY",
    "SUMMARY_OF_GROUP_IDS_KEY",
    "SUMMARY_OF_MESSAGE_IDS_KEY",
    "Agent",
    "AgentContext",
    "AgentExecutor",
    "AgentExecutorRequest",
    "AgentExecutorResponse",
    "AgentFileStore",
    "AgentFrameworkException",
    "AgentMiddleware",
    "AgentModeProvider",
    "AgentResponse",
    "AgentResponseUpdate",
    "AgentRunContext",
    "AgentRunInputs",
    "AgentSession",
    "AggregatingSkillsSource",
    "Annotation",
    "BaseAgent",
    "BaseChatClient",
    "CachingSkillsSource",
    "CallContext",
    "Case",
    "CharacterEstimatorTokenizer",
    "ChatContext",
    "ChatMiddleware",
    "ChatOptions",
    "ChatResponse",
    "ChatResponseUpdate",
    "CheckpointStorage",
    "ClassSkill",
    "CompactionProvider",
    "CompactionStrategy",
    "Content",
    "ContextProvider",
    "ContextWindowCompactionStrategy",
    "ContinuationToken",
    "DeduplicatingSkillsSource",
    "Default",
    "DelegatingSkillsSource",
    "Edge",
    "EdgeCondition",
    "EdgeDuplicationError",
    "Executor",
    "ExperimentalFeature",
    "FanInEdgeGroup",
    "FanOutEdgeGroup",
    "FileCheckpointStorage",
    "FileHistoryProvider",
    "FileSearchMatch",
    "FileSearchResult",
    "FileSkill",
    "FileSkillScript",
    "FileSkillsSource",
    "FileSystemAgentFileStore",
    "FilteringSkillsSource",
    "FunctionExecutor",
    "FunctionInvocationConfiguration",
    "FunctionInvocationContext",
    "FunctionMiddleware",
    "FunctionTool",
    "GraphConnectivityError",
    "HistoryProvider",
    "InMemoryAgentFileStore",
    "InMemoryCheckpointStorage",
    "InMemoryHistoryProvider",
    "InMemorySkillsSource",
    "InlineSkill",
    "InlineSkillResource",
    "InlineSkillScript",
    "MCPSkill",
    "MCPSkillResource",
    "MCPSkillsSource",
    "MCPSpecificApproval",
    "MCPStdioTool",
    "MCPStreamableHTTPTool",
    "MCPTaskOptions",
    "MCPTool",
    "Message",
    "MiddlewareException",
    "MiddlewareFailure",
    "MiddlewareTermination",
    "MiddlewareType",
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "ReleaseCandidateFeature",
    "ResponseStream",
    "SamplingApprovalCallback",
    "ScriptedChatClient",
    "SecretString",
    "SelectiveToolCallCompactionStrategy",
    "SessionContext",
    "SingleEdgeGroup",
    "Skill",
    "SkillFrontmatter",
    "SkillResource",
    "SkillScript",
    "SkillScriptRunner",
    "SkillsProvider",
    "SkillsSource",
    "SkillsSourceContext",
    "SlidingWindowStrategy",
    "SqlHistoryProvider",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "SummarizationStrategy",
    "SupportsAgentRun",
    "SupportsChatGetResponse",
    "SwitchCaseEdgeGroup",
    "SwitchCaseEdgeGroupCase",
    "SwitchCaseEdgeGroupDefault",
    "TextSpanRegion",
    "TodoFileStore",
    "TodoInput",
    "TodoItem",
    "TodoProvider",
    "TodoSessionStore",
    "TodoStore",
    "TokenBudgetComposedStrategy",
    "TokenizerProtocol",
    "ToolMode",
    "ToolResultCompactionStrategy",
    "TruncationStrategy",
    "TypeCompatibilityError",
    "UsageDetails",
    "UserInputRequiredException",
    "ValidationTypeEnum",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowCheckpoint",
    "WorkflowCheckpointException",
    "WorkflowContext",
    "WorkflowConvergenceException",
    "WorkflowErrorDetails",
    "WorkflowEvent",
    "WorkflowEventSource",
    "WorkflowEventType",
    "WorkflowExecutor",
    "WorkflowMessage",
    "WorkflowRunResult",
    "WorkflowRunState",
    "WorkflowValidationError",
    "__version__",
    "agent_middleware",
    "annotate_message_groups",
    "apply_compaction",
    "chat_middleware",
    "current_run_context",
    "executor",
    "function_middleware",
    "get_agent_mode",
    "handler",
    "included_messages",
    "included_token_count",
    "load_settings",
    "normalize_function_invocation_configuration",
    "normalize_tools",
    "register_state_type",
    "response_handler",
    "set_agent_mode",
    "tool",
]

_HOMES = {
    "COMPACTION_STATE_KEY": "sessions.compacting",
    "DEFAULT_MODE_SOURCE_ID": "agents.providers.mode",
    "DEFAULT_TODO_SOURCE_ID": "agents.providers.todo",
    "EXCLUDED_KEY": "sessions.history",
    "EXCLUDE_REASON_KEY": "sessions.grouping",
    "GROUP_ANNOTATION_KEY": "sessions.grouping",
    "GROUP_HAS_REASONING_KEY": "sessions.grouping",
    "GROUP_ID_KEY": "sessions.grouping",
    "GROUP_INDEX_KEY": "sessions.grouping",
    "GROUP_KIND_KEY": "sessions.grouping",
    "GROUP_TOKEN_COUNT_KEY": "sessions.grouping",
    "SUMMARIZED_BY_SUMMARY_ID_KEY": "sessions.grouping",
    "SUMMARY_OF_GROUP_IDS_KEY": "sessions.grouping",
    "SUMMARY_OF_MESSAGE_IDS_KEY": "sessions.grouping",
    "Agent": "agents.agent",
    "AgentContext": "agents.context",
    "AgentExecutor": "workflows.agent_executor",
    "AgentExecutorRequest": "workflows.agent_executor",
    "AgentExecutorResponse": "workflows.agent_executor",
    "AgentFileStore": "agents.files.store",
    "AgentFrameworkException": "errors",
    "AgentMiddleware": "agents.context",
    "AgentModeProvider": "agents.providers.mode",
    "AgentResponse": "types.responses",
    "AgentResponseUpdate": "types.responses",
    "AgentRunContext": "agents.context",
    "AgentRunInputs": "types.messages",
    "AgentSession": "sessions.session",
    "AggregatingSkillsSource": "skills.objects.sources",
    "Annotation": "types.annotations",
    "BaseAgent": "agents.agent",
    "BaseChatClient": "chat.base",
    "CachingSkillsSource": "skills.objects.sources",
    "CallContext": "tools.context",
    "Case": "workflows.edges",
    "CharacterEstimatorTokenizer": "sessions.grouping",
    "ChatContext": "chat.middleware",
    "ChatMiddleware": "chat.middleware",
    "ChatOptions": "types.options",
    "ChatResponse": "types.responses",
    "ChatResponseUpdate": "types.responses",
    "CheckpointStorage": "workflows.checkpoints",
    "ClassSkill": "skills.objects.class_skill",
    "CompactionProvider": "sessions.compacting",
    "CompactionStrategy": "sessions.compaction",
    "Content": "types.content",
    "ContextProvider": "sessions.context",
    "ContextWindowCompactionStrategy": "sessions.compaction",
    "ContinuationToken": "types.responses",
    "DeduplicatingSkillsSource": "skills.objects.sources",
    "Default": "workflows.edges",
    "DelegatingSkillsSource": "skills.objects.sources",
    "Edge": "workflows.edges",
    "EdgeCondition": "workflows.edges",
    "EdgeDuplicationError": "workflows.validation",
    "Executor": "workflows.executor",
    "ExperimentalFeature": "staging",
    "FanInEdgeGroup": "workflows.edges",
    "FanOutEdgeGroup": "workflows.edges",
    "FileCheckpointStorage": "workflows.checkpoints",
    "FileHistoryProvider": "sessions.files",
    "FileSearchMatch": "agents.files.search",
    "FileSearchResult": "agents.files.search",
    "FileSkill": "skills.objects.skill",
    "FileSkillScript": "skills.objects.members",
    "FileSkillsSource": "skills.objects.files",
    "FileSystemAgentFileStore": "agents.files.disk",
    "FilteringSkillsSource": "skills.objects.sources",
    "FunctionExecutor": "workflows.function_executor",
    "FunctionInvocationConfiguration": "agents.options",
    "FunctionInvocationContext": "tools.invocation",
    "FunctionMiddleware": "tools.invocation",
    "FunctionTool": "tools.function",
    "GraphConnectivityError": "workflows.validation",
    "HistoryProvider": "sessions.history",
    "InMemoryAgentFileStore": "agents.files.store",
    "InMemoryCheckpointStorage": "workflows.checkpoints",
    "InMemoryHistoryProvider": "sessions.history",
    "InMemorySkillsSource": "skills.objects.sources",
    "InlineSkill": "skills.objects.inline",
    "InlineSkillResource": "skills.objects.members",
    "InlineSkillScript": "skills.objects.members",
    "MCPSkill": "skills.objects.remote",
    "MCPSkillResource": "skills.objects.remote",
    "MCPSkillsSource": "skills.objects.remote",
    "MCPSpecificApproval": "upstream.library.options",
    "MCPStdioTool": "upstream.library.transports",
    "MCPStreamableHTTPTool": "upstream.library.transports",
    "MCPTaskOptions": "upstream.tasks",
    "MCPTool": "upstream.library.mcp_tool",
    "Message": "types.messages",
    "MiddlewareException": "middleware",
    "MiddlewareFailure": "middleware",
    "MiddlewareTermination": "middleware",
    "MiddlewareType": "middleware",
    "OpenAIChatClient": "chat.responses",
    "OpenAIChatCompletionClient": "chat.completions",
    "ReleaseCandidateFeature": "staging",
    "ResponseStream": "types.streams",
    "SamplingApprovalCallback": "upstream.library.options",
    "ScriptedChatClient": "chat.scripted",
    "SecretString": "config.settings",
    "SelectiveToolCallCompactionStrategy": "sessions.compaction",
    "SessionContext": "sessions.context",
    "SingleEdgeGroup": "workflows.edges",
    "Skill": "skills.objects.skill",
    "SkillFrontmatter": "skills.objects.frontmatter",
    "SkillResource": "skills.objects.skill",
    "SkillScript": "skills.objects.skill",
    "SkillScriptRunner": "skills.objects.members",
    "SkillsProvider": "skills.objects.provider",
    "SkillsSource": "skills.objects.sources",
    "SkillsSourceContext": "skills.objects.sources",
    "SlidingWindowStrategy": "sessions.compaction",
    "SqlHistoryProvider": "sessions.sql",
    "SubWorkflowRequestMessage": "workflows.sub_workflow",
    "SubWorkflowResponseMessage": "workflows.sub_workflow",
    "SummarizationStrategy": "sessions.compaction",
    "SupportsAgentRun": "sessions.session",
    "SupportsChatGetResponse": "chat.base",
    "SwitchCaseEdgeGroup": "workflows.edges",
    "SwitchCaseEdgeGroupCase": "workflows.edges",
    "SwitchCaseEdgeGroupDefault": "workflows.edges",
    "TextSpanRegion": "types.annotations",
    "TodoFileStore": "agents.providers.todo_store",
    "TodoInput": "agents.providers.todo_store",
    "TodoItem": "agents.providers.todo_store",
    "TodoProvider": "agents.providers.todo",
    "TodoSessionStore": "agents.providers.todo_store",
    "TodoStore": "agents.providers.todo_store",
    "TokenBudgetComposedStrategy": "sessions.compaction",
    "TokenizerProtocol": "sessions.grouping",
    "ToolMode": "types.options",
    "ToolResultCompactionStrategy": "sessions.compaction",
    "TruncationStrategy": "sessions.compaction",
    "TypeCompatibilityError": "workflows.validation",
    "UsageDetails": "types.annotations",
    "UserInputRequiredException": "errors",
    "ValidationTypeEnum": "workflows.validation",
    "Workflow": "workflows.workflow",
    "WorkflowAgent": "workflows.workflow_agent",
    "WorkflowBuilder": "workflows.builder",
    "WorkflowCheckpoint": "workflows.checkpoints",
    "WorkflowCheckpointException": "errors",
    "WorkflowContext": "workflows.context",
    "WorkflowConvergenceException": "errors",
    "WorkflowErrorDetails": "workflows.events",
    "WorkflowEvent": "workflows.events",
    "WorkflowEventSource": "workflows.events",
    "WorkflowEventType": "workflows.events",
    "WorkflowExecutor": "workflows.sub_workflow",
    "WorkflowMessage": "workflows.messages",
    "WorkflowRunResult": "workflows.events",
    "WorkflowRunState": "workflows.events",
    "WorkflowValidationError": "workflows.validation",
    "agent_middleware": "agents.context",
    "annotate_message_groups": "sessions.grouping",
    "apply_compaction": "sessions.compacting",
    "chat_middleware": "chat.middleware",
    "current_run_context": "agents.context",
    "executor": "workflows.function_executor",
    "function_middleware": "tools.invocation",
    "get_agent_mode": "agents.providers.mode",
    "handler": "workflows.executor",
    "included_messages": "sessions.grouping",
    "included_token_count": "sessions.grouping",
    "load_settings": "config.settings",
    "normalize_function_invocation_configuration": "agents.options",
    "normalize_tools": "tools.function",
    "register_state_type": "sessions.session",
    "response_handler": "workflows.executor",
    "set_agent_mode": "agents.providers.mode",
    "tool": "tools.function",
}
"""Where each public name lives, below `gateway`."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
