"""Moongate: one MCP endpoint for agents, skills, workflows and remote MCP servers.

The public names of the library, loaded on first use (PEP 562), so `import gateway` costs nothing and brings no
model or protocol package along. The command line and the server are not part of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.agents.agent import Agent
    from gateway.agents.files.disk import FileSystemAgentFileStore
    from gateway.agents.files.search import FileSearchMatch, FileSearchResult
    from gateway.agents.files.store import AgentFileStore, InMemoryAgentFileStore
    from gateway.agents.providers.mode import DEFAULT_MODE_SOURCE_ID, AgentModeProvider, get_agent_mode, set_agent_mode
    from gateway.agents.providers.todo import DEFAULT_TODO_SOURCE_ID, TodoProvider
    from gateway.agents.providers.todo_store import TodoFileStore, TodoInput, TodoItem, TodoSessionStore, TodoStore
    from gateway.chat.base import BaseChatClient
    from gateway.chat.completions import OpenAIChatCompletionClient
    from gateway.chat.responses import OpenAIChatClient
    from gateway.chat.scripted import ScriptedChatClient
    from gateway.config.settings import SecretString, load_settings
    from gateway.middleware import MiddlewareTermination
    from gateway.sessions.context import ContextProvider, SessionContext
    from gateway.sessions.files import FileHistoryProvider
    from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
    from gateway.sessions.session import AgentSession, SupportsAgentRun, register_state_type
    from gateway.staging import ExperimentalFeature, ReleaseCandidateFeature
    from gateway.tools.context import CallContext
    from gateway.tools.function import FunctionTool, tool
    from gateway.types.content import Content
    from gateway.types.messages import Message
    from gateway.types.options import ChatOptions
    from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, ResponseStream
    from gateway.upstream.library.mcp_tool import MCPTool
    from gateway.upstream.library.options import MCPSpecificApproval, SamplingApprovalCallback
    from gateway.upstream.library.transports import MCPStdioTool, MCPStreamableHTTPTool
    from gateway.upstream.tasks import MCPTaskOptions
    from gateway.workflows.builder import WorkflowBuilder
    from gateway.workflows.executor import Executor, WorkflowContext, handler
    from gateway.workflows.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_MODE_SOURCE_ID",
    "DEFAULT_TODO_SOURCE_ID",
    "Agent",
    "AgentFileStore",
    "AgentModeProvider",
    "AgentResponse",
    "AgentResponseUpdate",
    "AgentSession",
    "BaseChatClient",
    "CallContext",
    "ChatOptions",
    "ChatResponse",
    "ChatResponseUpdate",
    "Content",
    "ContextProvider",
    "Executor",
    "ExperimentalFeature",
    "FileHistoryProvider",
    "FileSearchMatch",
    "FileSearchResult",
    "FileSystemAgentFileStore",
    "FunctionTool",
    "HistoryProvider",
    "InMemoryAgentFileStore",
    "InMemoryHistoryProvider",
    "MCPSpecificApproval",
    "MCPStdioTool",
    "MCPStreamableHTTPTool",
    "MCPTaskOptions",
    "MCPTool",
    "Message",
    "MiddlewareTermination",
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "ReleaseCandidateFeature",
    "ResponseStream",
    "SamplingApprovalCallback",
    "ScriptedChatClient",
    "SecretString",
    "SessionContext",
    "SupportsAgentRun",
    "TodoFileStore",
    "TodoInput",
    "TodoItem",
    "TodoProvider",
    "TodoSessionStore",
    "TodoStore",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowContext",
    "__version__",
    "get_agent_mode",
    "handler",
    "load_settings",
    "register_state_type",
    "set_agent_mode",
    "tool",
]

_HOMES = {
    "Agent": "agents.agent",
    "AgentFileStore": "agents.files.store",
    "AgentModeProvider": "agents.providers.mode",
    "AgentResponse": "types.responses",
    "AgentResponseUpdate": "types.responses",
    "AgentSession": "sessions.session",
    "BaseChatClient": "chat.base",
    "CallContext": "tools.context",
    "ChatOptions": "types.options",
    "ChatResponse": "types.responses",
    "ChatResponseUpdate": "types.responses",
    "Content": "types.content",
    "ContextProvider": "sessions.context",
    "DEFAULT_MODE_SOURCE_ID": "agents.providers.mode",
    "DEFAULT_TODO_SOURCE_ID": "agents.providers.todo",
    "Executor": "workflows.executor",
    "ExperimentalFeature": "staging",
    "FileHistoryProvider": "sessions.files",
    "FileSearchMatch": "agents.files.search",
    "FileSearchResult": "agents.files.search",
    "FileSystemAgentFileStore": "agents.files.disk",
    "FunctionTool": "tools.function",
    "HistoryProvider": "sessions.history",
    "InMemoryAgentFileStore": "agents.files.store",
    "InMemoryHistoryProvider": "sessions.history",
    "MCPSpecificApproval": "upstream.library.options",
    "MCPStdioTool": "upstream.library.transports",
    "MCPStreamableHTTPTool": "upstream.library.transports",
    "MCPTaskOptions": "upstream.tasks",
    "MCPTool": "upstream.library.mcp_tool",
    "Message": "types.messages",
    "MiddlewareTermination": "middleware",
    "OpenAIChatClient": "chat.responses",
    "OpenAIChatCompletionClient": "chat.completions",
    "ReleaseCandidateFeature": "staging",
    "ResponseStream": "types.responses",
    "SamplingApprovalCallback": "upstream.library.options",
    "ScriptedChatClient": "chat.scripted",
    "SecretString": "config.settings",
    "SessionContext": "sessions.context",
    "SupportsAgentRun": "sessions.session",
    "TodoFileStore": "agents.providers.todo_store",
    "TodoInput": "agents.providers.todo_store",
    "TodoItem": "agents.providers.todo_store",
    "TodoProvider": "agents.providers.todo",
    "TodoSessionStore": "agents.providers.todo_store",
    "TodoStore": "agents.providers.todo_store",
    "Workflow": "workflows.workflow",
    "WorkflowBuilder": "workflows.builder",
    "WorkflowContext": "workflows.executor",
    "get_agent_mode": "agents.providers.mode",
    "handler": "workflows.executor",
    "load_settings": "config.settings",
    "register_state_type": "sessions.session",
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
