"""Names of agent-framework that are different or missing in Moongate. Using one of these names raises an error with a hint.

The package `gateway` uses these tables if a program imports a missing name. Classes with renamed methods use them if a program calls an old
method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

FORMER: dict[str, str] = {
    "AIFunction": "FunctionTool",
    "AgentProtocol": "SupportsAgentRun",
    "AgentRunResponse": "AgentResponse",
    "AgentRunResponseUpdate": "AgentResponseUpdate",
    "AgentThread": "AgentSession",
    "BaseContextProvider": "ContextProvider",
    "BaseHistoryProvider": "HistoryProvider",
    "ChatAgent": "Agent",
    "ChatClientProtocol": "SupportsChatGetResponse",
    "ChatMessage": "Message",
    "ChatMessageStore": "InMemoryHistoryProvider",
    "ChatMessageStoreProtocol": "HistoryProvider",
    "Context": "SessionContext",
    "DataContent": "Content.from_data",
    "ErrorContent": "Content.from_error",
    "FunctionApprovalRequestContent": "Content.from_function_approval_request",
    "FunctionApprovalResponseContent": "Content.from_function_approval_response",
    "FunctionCallContent": "Content.from_function_call",
    "FunctionResultContent": "Content.from_function_result",
    "HostedCodeInterpreterTool": "SupportsCodeInterpreterTool.get_code_interpreter_tool",
    "HostedFileContent": "Content.from_hosted_file",
    "HostedFileSearchTool": "SupportsFileSearchTool.get_file_search_tool",
    "HostedImageGenerationTool": "SupportsImageGenerationTool.get_image_generation_tool",
    "HostedMCPTool": "SupportsMCPTool.get_mcp_tool",
    "HostedVectorStoreContent": "Content.from_hosted_vector_store",
    "HostedWebSearchTool": "SupportsWebSearchTool.get_web_search_tool",
    "RawChatAgent": "Agent",
    "TextContent": "Content.from_text",
    "TextReasoningContent": "Content.from_text_reasoning",
    "ToolProtocol": "FunctionTool",
    "UriContent": "Content.from_uri",
    "UsageContent": "Content.from_usage",
    "ai_function": "tool",
    "setup_observability": "configure_otel_providers",
    "use_agent_middleware": "AgentMiddlewareLayer",
    "use_chat_middleware": "ChatMiddlewareLayer",
    "use_function_invocation": "FunctionInvocationLayer",
    **dict.fromkeys(
        (
            "AgentRunEvent", "AgentRunUpdateEvent", "ExecutorCompletedEvent", "ExecutorFailedEvent", "ExecutorInvokedEvent",
            "RequestInfoEvent", "WorkflowFailedEvent", "WorkflowOutputEvent", "WorkflowStartedEvent", "WorkflowStatusEvent",
        ),
        "WorkflowEvent",
    ),
}  # fmt: skip
"""Maps names of agent-framework's earlier versions and documents to the names in Moongate."""

FORMER_METHODS: dict[str, str] = {
    "create_agent": "as_agent(…)",
    "deserialize_thread": "AgentSession.from_dict",
    "get_new_thread": "create_session()",
    "get_streaming_response": "get_response(…, stream=True)",
    "run_stream": "run(…, stream=True)",
    "send_responses": "run(responses=…)",
    "send_responses_streaming": "run(responses=…, stream=True)",
}
"""Maps methods of agents, chat clients and workflows in agent-framework's earlier versions and documents to their replacements."""


class FormerMethods:
    """Base of classes whose methods were renamed. The use of a name in `FORMER_METHODS` raises an error that names the replacement."""

    if not TYPE_CHECKING:  # otherwise a type checker accepts every attribute

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with the replacement in its text if `name` is in `FORMER_METHODS`."""
            hint = f"; use {FORMER_METHODS[name]}" if name in FORMER_METHODS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


MISSING: dict[str, tuple[str, ...]] = {
    "the SDK of the protocol has no WebSocket any more; use MCPStreamableHTTPTool.": ("MCPWebsocketTool",),
    "it is internal to agent-framework's workflow engine; Moongate has an engine of its own.": (
        "AgentExecutorCheckpointState", "InProcRunnerContext", "Runner", "RunnerContext", "WorkflowInvocationKwargs", "create_edge_runner",
        "register_checkpoint_type",
    ),
    "sessions are kept by the gateway, or by to_dict and from_dict of AgentSession.": (
        "FileSessionStore", "ServiceSessionId", "SessionStore",
    ),
    "MemoryContextProvider keeps memories in files.": (
        "DEFAULT_FILE_MEMORY_INSTRUCTIONS", "DEFAULT_FILE_MEMORY_SOURCE_ID", "FileMemoryProvider", "FileStoreEntry",
    ),
    "add messages for a run in progress to its history; see require_per_service_call_history_persistence.": (
        "MESSAGE_INJECTION_PENDING_MESSAGES_STATE_KEY", "MessageInjectionMiddleware", "enqueue_messages",
    ),
    "use the library of a vector database; SemanticMemoryProvider searches memories by meaning, and SqlHistoryProvider "
    "keeps conversations.": (
        "BaseVectorCollection", "BaseVectorSearch", "BaseVectorStore", "DISTANCE_FUNCTION_DIRECTION_HELPER", "DistanceFunction",
        "FieldTypes", "Filter", "FilterGroup", "FilterGroupOperator", "FilterOperator", "GenerateVectors", "InMemoryCollection",
        "InMemoryStore", "IndexKind", "Param", "SearchResponse", "SearchResults", "SearchType", "SupportsVectorSearch",
        "SupportsVectorUpsert", "VectorCollectionContextProvider", "VectorStoreCollectionDefinition", "VectorStoreField",
        "VectorStoreHistoryProvider", "create_delete_tool", "create_get_tool", "create_upsert_tool", "create_vector_search_tool",
        "register_vectorstoremodel", "vectorstoremodel",
    ),
    "LifecycleHooks and lifecycle_middleware do this here.": (
        "MiddlewareBundle", "create_agent_hooks_middleware", "create_agent_hooks_middleware_from_emitter",
    ),
    "scripts get their arguments by the schema of their skill.": ("SkillScriptArgumentParser",),
    "it concerns agent-framework's own package and services.": (
        "AGENT_FRAMEWORK_USER_AGENT", "APP_INFO", "AgentEvalConverter", "INTERNAL_SOURCE_ID", "USER_AGENT_KEY",
        "USER_AGENT_TELEMETRY_DISABLED_ENV_VAR", "prepend_agent_framework_to_user_agent",
    ),
    "AgentLoopMiddleware takes a wording of your own.": ("background_tasks_running_message", "todos_remaining_message"),
    "@workflow returns a FunctionalWorkflow, which can run; its build() returns a new one.": ("FunctionalWorkflowDefinition",),
    "it exists only in later versions of agent-framework than this library follows.": (
        "ComputerSafetyCheck", "ResponseInvalidatedException", "get_namespaced_value", "merge_additional_properties",
        "with_namespaced_value",
    ),
}  # fmt: skip
"""Names of agent-framework that Moongate does not have: maps the reason to the names. `docs/library.md` lists them."""

HINTS: dict[str, str] = {
    **{former: f"use {name}" for former, name in FORMER.items()},
    **{name: reason for reason, names in MISSING.items() for name in names},
}
"""Maps a name of agent-framework that does not exist in Moongate to a hint: the name to use instead, or why it does not exist."""
