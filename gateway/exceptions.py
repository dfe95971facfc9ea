"""Agent-framework's import path for its exceptions. `gateway.errors` contains the complete exception tree under Moongate's names.

Moongate raises the classes defined here nowhere; programs that raise or catch agent-framework's exceptions use them.
"""

from __future__ import annotations

from gateway.errors import (
    AdditionItemMismatch,
    AgentException,
    AgentFrameworkException,
    AgentInvalidRequestException,
    ChatClientContentFilterException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ContentError,
    IntegrationException,
    MiddlewareException,
    NotSent,
    Rejected,
    SettingNotFoundError,
    ToolException,
    ToolExecutionException,
    Unauthorized,
    UserInputRequiredException,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    WorkflowException,
    WorkflowRunnerException,
)

__all__ = [
    "AdditionItemMismatch",
    "AgentContentFilterException",
    "AgentException",
    "AgentFrameworkException",
    "AgentInvalidAuthException",
    "AgentInvalidRequestException",
    "AgentInvalidResponseException",
    "ChatClientContentFilterException",
    "ChatClientException",
    "ChatClientInvalidAuthException",
    "ChatClientInvalidRequestException",
    "ChatClientInvalidResponseException",
    "ContentError",
    "IntegrationContentFilterException",
    "IntegrationException",
    "IntegrationInitializationError",
    "IntegrationInvalidAuthException",
    "IntegrationInvalidRequestException",
    "IntegrationInvalidResponseException",
    "MiddlewareException",
    "SettingNotFoundError",
    "ToolException",
    "ToolExecutionException",
    "UserInputRequiredException",
    "WorkflowCheckpointException",
    "WorkflowConvergenceException",
    "WorkflowException",
    "WorkflowRunnerException",
]

IntegrationInitializationError = NotSent
IntegrationInvalidAuthException = Unauthorized
IntegrationInvalidRequestException = Rejected


class AgentInvalidAuthException(AgentException):
    """An agent rejected the credentials."""


class AgentInvalidResponseException(AgentException):
    """The response of an agent is invalid."""


class AgentContentFilterException(AgentException):
    """A content filter blocked an agent."""


class IntegrationInvalidResponseException(IntegrationException):
    """The response of a service is invalid."""


class IntegrationContentFilterException(IntegrationException):
    """A content filter blocked a service."""
