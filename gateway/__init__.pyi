# The public names of the library and the modules that define them; `lazy.py` reads the list on first use.
# The stub of a namespace (`gateway.openai`, …) declares the names of the namespace. Those that `gateway` has too are imported from there.

from gateway.a2a import *
from gateway.ag_ui import AGUIChatClient as AGUIChatClient
from gateway.agents.agent import Agent as Agent, RawAgent as RawAgent
from gateway.agents.base_agent import BaseAgent as BaseAgent
from gateway.agents.client_run import FunctionInvocationLayer as FunctionInvocationLayer
from gateway.agents.evaluation.eval_checks import (
    CheckResult as CheckResult,
    evaluator as evaluator,
    keyword_check as keyword_check,
    tool_call_args_match as tool_call_args_match,
    tool_called_check as tool_called_check,
    tool_calls_present as tool_calls_present,
)
from gateway.agents.evaluation.eval_results import (
    EvalItemResult as EvalItemResult,
    EvalNotPassedError as EvalNotPassedError,
    EvalResults as EvalResults,
    EvalScoreResult as EvalScoreResult,
    RubricScore as RubricScore,
)
from gateway.agents.evaluation.evaluators import Evaluator as Evaluator, LocalEvaluator as LocalEvaluator, evaluate_agent as evaluate_agent
from gateway.agents.evaluation.items import (
    ConversationSplit as ConversationSplit,
    ConversationSplitter as ConversationSplitter,
    EvalItem as EvalItem,
    ExpectedToolCall as ExpectedToolCall,
)
from gateway.agents.files.disk import FileSystemAgentFileStore as FileSystemAgentFileStore
from gateway.agents.files.file_access import (
    DEFAULT_FILE_ACCESS_INSTRUCTIONS as DEFAULT_FILE_ACCESS_INSTRUCTIONS,
    DEFAULT_FILE_ACCESS_SOURCE_ID as DEFAULT_FILE_ACCESS_SOURCE_ID,
    FileAccessProvider as FileAccessProvider,
)
from gateway.agents.files.store import AgentFileStore as AgentFileStore, InMemoryAgentFileStore as InMemoryAgentFileStore
from gateway.agents.files.text_search import FileSearchMatch as FileSearchMatch, FileSearchResult as FileSearchResult
from gateway.agents.layers import AgentMiddlewareLayer as AgentMiddlewareLayer
from gateway.agents.middleware.approval import (
    DEFAULT_TOOL_APPROVAL_SOURCE_ID as DEFAULT_TOOL_APPROVAL_SOURCE_ID,
    ToolApprovalMiddleware as ToolApprovalMiddleware,
    ToolApprovalRuleCallback as ToolApprovalRuleCallback,
)
from gateway.agents.middleware.approval_state import (
    ToolApprovalRule as ToolApprovalRule,
    ToolApprovalState as ToolApprovalState,
    create_always_approve_tool_response as create_always_approve_tool_response,
    create_always_approve_tool_with_arguments_response as create_always_approve_tool_with_arguments_response,
)
from gateway.agents.middleware.cache import ModelCacheMiddleware as ModelCacheMiddleware, ToolCacheMiddleware as ToolCacheMiddleware
from gateway.agents.middleware.call_retry import ModelRetryMiddleware as ModelRetryMiddleware, ToolRetryMiddleware as ToolRetryMiddleware
from gateway.agents.middleware.judge import JudgeVerdict as JudgeVerdict
from gateway.agents.middleware.loop import (
    AgentLoopMiddleware as AgentLoopMiddleware,
    background_tasks_running as background_tasks_running,
    todos_remaining as todos_remaining,
)
from gateway.agents.middleware.rate_limit import (
    ModelRateLimitMiddleware as ModelRateLimitMiddleware,
    ToolRateLimitMiddleware as ToolRateLimitMiddleware,
)
from gateway.agents.middleware.redaction import RedactionMiddleware as RedactionMiddleware
from gateway.agents.middleware.repeated_calls import RepeatedCallMiddleware as RepeatedCallMiddleware
from gateway.agents.middleware.timeout import (
    ModelTimeoutMiddleware as ModelTimeoutMiddleware,
    ToolTimeoutMiddleware as ToolTimeoutMiddleware,
)
from gateway.agents.providers.background import (
    BackgroundAgentsProvider as BackgroundAgentsProvider,
    DEFAULT_BACKGROUND_AGENTS_SOURCE_ID as DEFAULT_BACKGROUND_AGENTS_SOURCE_ID,
)
from gateway.agents.providers.background_state import BackgroundTaskInfo as BackgroundTaskInfo, BackgroundTaskStatus as BackgroundTaskStatus
from gateway.agents.providers.memory_provider import (
    DEFAULT_MEMORY_SOURCE_ID as DEFAULT_MEMORY_SOURCE_ID,
    MemoryContextProvider as MemoryContextProvider,
)
from gateway.agents.providers.memory_records import MemoryIndexEntry as MemoryIndexEntry, MemoryTopicRecord as MemoryTopicRecord
from gateway.agents.providers.memory_store import MemoryFileStore as MemoryFileStore, MemoryStore as MemoryStore
from gateway.agents.providers.mode import (
    AgentModeProvider as AgentModeProvider,
    DEFAULT_MODE_SOURCE_ID as DEFAULT_MODE_SOURCE_ID,
    get_agent_mode as get_agent_mode,
    set_agent_mode as set_agent_mode,
)
from gateway.agents.providers.todo import DEFAULT_TODO_SOURCE_ID as DEFAULT_TODO_SOURCE_ID, TodoProvider as TodoProvider
from gateway.agents.providers.todo_store import (
    TodoFileStore as TodoFileStore,
    TodoInput as TodoInput,
    TodoItem as TodoItem,
    TodoSessionStore as TodoSessionStore,
    TodoStore as TodoStore,
)
from gateway.agents.run_context import (
    AgentContext as AgentContext,
    AgentMiddleware as AgentMiddleware,
    AgentMiddlewareTypes as AgentMiddlewareTypes,
    AgentRunContext as AgentRunContext,
    MiddlewareTypes as MiddlewareTypes,
    agent_middleware as agent_middleware,
    current_run_context as current_run_context,
)
from gateway.chat.chat_client import BaseChatClient as BaseChatClient
from gateway.chat.chat_context import ChatContext as ChatContext, SupportsChatGetResponse as SupportsChatGetResponse
from gateway.chat.chat_middleware import (
    ChatAndFunctionMiddlewareTypes as ChatAndFunctionMiddlewareTypes,
    ChatMiddleware as ChatMiddleware,
    ChatMiddlewareTypes as ChatMiddlewareTypes,
    chat_middleware as chat_middleware,
)
from gateway.chat.embeddings import (
    BaseEmbeddingClient as BaseEmbeddingClient,
    Embedding as Embedding,
    EmbeddingGenerationOptions as EmbeddingGenerationOptions,
    EmbeddingInputT as EmbeddingInputT,
    EmbeddingT as EmbeddingT,
    GeneratedEmbeddings as GeneratedEmbeddings,
    SupportsGetEmbeddings as SupportsGetEmbeddings,
)
from gateway.chat.framework_layers import ChatMiddlewareLayer as ChatMiddlewareLayer
from gateway.chat.hosted import (
    SupportsCodeInterpreterTool as SupportsCodeInterpreterTool,
    SupportsFileSearchTool as SupportsFileSearchTool,
    SupportsImageGenerationTool as SupportsImageGenerationTool,
    SupportsMCPTool as SupportsMCPTool,
    SupportsShellTool as SupportsShellTool,
    SupportsWebSearchTool as SupportsWebSearchTool,
)
from gateway.chat.loop_options import (
    FunctionInvocationConfiguration as FunctionInvocationConfiguration,
    normalize_function_invocation_configuration as normalize_function_invocation_configuration,
)
from gateway.chat.model_retry import RetryPolicy as RetryPolicy
from gateway.chat.scripted import ScriptedChatClient as ScriptedChatClient
from gateway.config.settings import SecretString as SecretString, load_settings as load_settings
from gateway.errors import MiddlewareFailure as MiddlewareFailure, MiddlewareTermination as MiddlewareTermination, ModelError as ModelError
from gateway.exceptions import *
from gateway.foundry import FoundryChatClient as FoundryChatClient
from gateway.harness import DEFAULT_HARNESS_INSTRUCTIONS as DEFAULT_HARNESS_INSTRUCTIONS, create_harness_agent as create_harness_agent
from gateway.lifecycle import LifecycleHooks as LifecycleHooks, lifecycle_middleware as lifecycle_middleware
from gateway.middleware import MiddlewareType as MiddlewareType
from gateway.observability import (
    ChatTelemetryLayer as ChatTelemetryLayer,
    OBSERVABILITY_SETTINGS as OBSERVABILITY_SETTINGS,
    configure_otel_providers as configure_otel_providers,
    disable_instrumentation as disable_instrumentation,
    enable_instrumentation as enable_instrumentation,
)
from gateway.openai import (
    OpenAIChatClient as OpenAIChatClient,
    OpenAIChatCompletionClient as OpenAIChatCompletionClient,
    OpenAIEmbeddingClient as OpenAIEmbeddingClient,
)
from gateway.orchestrations import *
from gateway.sessions.compaction_provider import (
    COMPACTION_STATE_KEY as COMPACTION_STATE_KEY,
    CompactionProvider as CompactionProvider,
    apply_compaction as apply_compaction,
)
from gateway.sessions.compaction_strategies import (
    ContextWindowCompactionStrategy as ContextWindowCompactionStrategy,
    SelectiveToolCallCompactionStrategy as SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy as SlidingWindowStrategy,
    SummarizationStrategy as SummarizationStrategy,
    TokenBudgetComposedStrategy as TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy as ToolResultCompactionStrategy,
    TruncationStrategy as TruncationStrategy,
)
from gateway.sessions.file_history import FileHistoryProvider as FileHistoryProvider
from gateway.sessions.history import (
    EXCLUDED_KEY as EXCLUDED_KEY,
    HistoryProvider as HistoryProvider,
    InMemoryHistoryProvider as InMemoryHistoryProvider,
)
from gateway.sessions.message_groups import (
    CharacterEstimatorTokenizer as CharacterEstimatorTokenizer,
    EXCLUDE_REASON_KEY as EXCLUDE_REASON_KEY,
    GROUP_ANNOTATION_KEY as GROUP_ANNOTATION_KEY,
    GROUP_HAS_REASONING_KEY as GROUP_HAS_REASONING_KEY,
    GROUP_ID_KEY as GROUP_ID_KEY,
    GROUP_INDEX_KEY as GROUP_INDEX_KEY,
    GROUP_KIND_KEY as GROUP_KIND_KEY,
    GROUP_TOKEN_COUNT_KEY as GROUP_TOKEN_COUNT_KEY,
    SUMMARIZED_BY_SUMMARY_ID_KEY as SUMMARIZED_BY_SUMMARY_ID_KEY,
    SUMMARY_OF_GROUP_IDS_KEY as SUMMARY_OF_GROUP_IDS_KEY,
    SUMMARY_OF_MESSAGE_IDS_KEY as SUMMARY_OF_MESSAGE_IDS_KEY,
    annotate_message_groups as annotate_message_groups,
    included_messages as included_messages,
    included_token_count as included_token_count,
)
from gateway.sessions.semantic_memory import SemanticMemoryProvider as SemanticMemoryProvider
from gateway.sessions.session import (
    AgentSession as AgentSession,
    SupportsAgentRun as SupportsAgentRun,
    register_state_type as register_state_type,
)
from gateway.sessions.session_context import ContextProvider as ContextProvider, SessionContext as SessionContext
from gateway.sessions.sql_history import SqlHistoryProvider as SqlHistoryProvider
from gateway.skills.objects.code_skills import (
    ClassSkill as ClassSkill,
    InlineSkill as InlineSkill,
    InlineSkillResource as InlineSkillResource,
    InlineSkillScript as InlineSkillScript,
)
from gateway.skills.objects.file_source import FileSkillsSource as FileSkillsSource
from gateway.skills.objects.mcp_source import MCPSkill as MCPSkill, MCPSkillResource as MCPSkillResource, MCPSkillsSource as MCPSkillsSource
from gateway.skills.objects.skill import (
    FileSkill as FileSkill,
    FileSkillScript as FileSkillScript,
    Skill as Skill,
    SkillFrontmatter as SkillFrontmatter,
    SkillResource as SkillResource,
    SkillScript as SkillScript,
    SkillScriptRunner as SkillScriptRunner,
)
from gateway.skills.objects.skills_provider import SkillsProvider as SkillsProvider
from gateway.skills.objects.sources import (
    AggregatingSkillsSource as AggregatingSkillsSource,
    CachingSkillsSource as CachingSkillsSource,
    DeduplicatingSkillsSource as DeduplicatingSkillsSource,
    DelegatingSkillsSource as DelegatingSkillsSource,
    FilteringSkillsSource as FilteringSkillsSource,
    InMemorySkillsSource as InMemorySkillsSource,
    SkillsSource as SkillsSource,
    SkillsSourceContext as SkillsSourceContext,
)
from gateway.staging import (
    ExperimentalFeature as ExperimentalFeature,
    ExperimentalWarning as ExperimentalWarning,
    FeatureStageWarning as FeatureStageWarning,
    ReleaseCandidateFeature as ReleaseCandidateFeature,
)
from gateway.tools.call_facts import CallFacts as CallFacts
from gateway.tools.context import CallContext as CallContext, CallPorts as CallPorts
from gateway.tools.function import FunctionTool as FunctionTool, SKIP_PARSING as SKIP_PARSING, tool as tool
from gateway.tools.tool_lists import (
    ToolTypes as ToolTypes,
    normalize_tools as normalize_tools,
    validate_chat_options as validate_chat_options,
    validate_tools as validate_tools,
)
from gateway.tools.invocation import (
    FunctionInvocationContext as FunctionInvocationContext,
    FunctionMiddleware as FunctionMiddleware,
    FunctionMiddlewareTypes as FunctionMiddlewareTypes,
    function_middleware as function_middleware,
)
from gateway.types.annotations import (
    Annotation as Annotation,
    TextSpanRegion as TextSpanRegion,
    UsageDetails as UsageDetails,
    add_usage_details as add_usage_details,
)
from gateway.types.compaction import CompactionStrategy as CompactionStrategy, TokenizerProtocol as TokenizerProtocol
from gateway.types.content import Content as Content
from gateway.types.framework_functions import (
    detect_media_type_from_base64 as detect_media_type_from_base64,
    map_chat_to_agent_update as map_chat_to_agent_update,
    merge_chat_options as merge_chat_options,
    prepend_instructions_to_messages as prepend_instructions_to_messages,
)
from gateway.types.messages import (
    AgentRunInputs as AgentRunInputs,
    Message as Message,
    Role as Role,
    RoleLiteral as RoleLiteral,
    normalize_messages as normalize_messages,
)
from gateway.types.options import ChatOptions as ChatOptions, ToolMode as ToolMode, validate_tool_mode as validate_tool_mode
from gateway.types.responses import (
    AgentResponse as AgentResponse,
    AgentResponseUpdate as AgentResponseUpdate,
    ChatResponse as ChatResponse,
    ChatResponseUpdate as ChatResponseUpdate,
    ContinuationToken as ContinuationToken,
    FinishReason as FinishReason,
    FinishReasonLiteral as FinishReasonLiteral,
)
from gateway.types.streams import (
    FinalT as FinalT,
    OuterFinalT as OuterFinalT,
    OuterUpdateT as OuterUpdateT,
    ResponseStream as ResponseStream,
    UpdateT as UpdateT,
)
from gateway.upstream.library.mcp_tool import MCPTool as MCPTool
from gateway.upstream.library.mcp_tool_options import (
    MCPSpecificApproval as MCPSpecificApproval,
    SamplingApprovalCallback as SamplingApprovalCallback,
)
from gateway.upstream.library.transports import MCPStdioTool as MCPStdioTool, MCPStreamableHTTPTool as MCPStreamableHTTPTool
from gateway.upstream.task_follower import MCPTaskOptions as MCPTaskOptions
from gateway.workflows.agent_executor import (
    AgentExecutor as AgentExecutor,
    AgentExecutorRequest as AgentExecutorRequest,
    AgentExecutorResponse as AgentExecutorResponse,
    resolve_agent_id as resolve_agent_id,
)
from gateway.workflows.builder import WorkflowBuilder as WorkflowBuilder
from gateway.workflows.checkpoints import (
    CheckpointID as CheckpointID,
    CheckpointStorage as CheckpointStorage,
    FileCheckpointStorage as FileCheckpointStorage,
    InMemoryCheckpointStorage as InMemoryCheckpointStorage,
    WorkflowCheckpoint as WorkflowCheckpoint,
)
from gateway.workflows.edges import (
    Case as Case,
    Default as Default,
    Edge as Edge,
    EdgeCondition as EdgeCondition,
    FanInEdgeGroup as FanInEdgeGroup,
    FanOutEdgeGroup as FanOutEdgeGroup,
    SingleEdgeGroup as SingleEdgeGroup,
    SwitchCaseEdgeGroup as SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase as SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault as SwitchCaseEdgeGroupDefault,
)
from gateway.workflows.evaluation import evaluate_workflow as evaluate_workflow
from gateway.workflows.events import (
    WorkflowErrorDetails as WorkflowErrorDetails,
    WorkflowEvent as WorkflowEvent,
    WorkflowEventSource as WorkflowEventSource,
    WorkflowEventType as WorkflowEventType,
    WorkflowRunResult as WorkflowRunResult,
    WorkflowRunState as WorkflowRunState,
)
from gateway.workflows.executor import Executor as Executor, handler as handler, response_handler as response_handler
from gateway.workflows.function_executor import FunctionExecutor as FunctionExecutor, executor as executor
from gateway.workflows.functional import FunctionalWorkflow as FunctionalWorkflow, workflow as workflow
from gateway.workflows.functional_agent import FunctionalWorkflowAgent as FunctionalWorkflowAgent
from gateway.workflows.functional_steps import (
    RunContext as RunContext,
    StepWrapper as StepWrapper,
    get_run_context as get_run_context,
    step as step,
)
from gateway.workflows.graph import DEFAULT_MAX_ITERATIONS as DEFAULT_MAX_ITERATIONS
from gateway.workflows.messages import WorkflowMessage as WorkflowMessage
from gateway.workflows.sql_checkpoints import SqlCheckpointStorage as SqlCheckpointStorage
from gateway.workflows.sub_workflow import (
    SubWorkflowRequestMessage as SubWorkflowRequestMessage,
    SubWorkflowResponseMessage as SubWorkflowResponseMessage,
    WorkflowExecutor as WorkflowExecutor,
)
from gateway.workflows.validation import (
    EdgeDuplicationError as EdgeDuplicationError,
    GraphConnectivityError as GraphConnectivityError,
    TypeCompatibilityError as TypeCompatibilityError,
    ValidationTypeEnum as ValidationTypeEnum,
    WorkflowValidationError as WorkflowValidationError,
    validate_workflow_graph as validate_workflow_graph,
)
from gateway.workflows.viz import WorkflowViz as WorkflowViz
from gateway.workflows.workflow import Workflow as Workflow
from gateway.workflows.workflow_agent import WorkflowAgent as WorkflowAgent
from gateway.workflows.workflow_context import WorkflowContext as WorkflowContext

__all__: list[str]
__version__: str
