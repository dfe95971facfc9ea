"""Agent-framework's import path for its exceptions; the tree itself, with our own names, is `gateway.errors`.

The classes defined here are for code that raises them, or catches what integrations of others raise: Moongate itself says
the same with the class above.
"""

from __future__ import annotations

from gateway.errors import (
    AdditionItemMismatch,
    AgentException,
    AgentFrameworkException,
    AgentInvalidRequestException,
    AuthNeeded,
    ChatClientContentFilterException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ContentError,
    IntegrationException,
    MiddlewareException,
    SettingNotFoundError,
    ToolException,
    ToolExecutionException,
    UpstreamRefused,
    UpstreamUnavailable,
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

IntegrationInitializationError = UpstreamUnavailable
IntegrationInvalidAuthException = AuthNeeded
IntegrationInvalidRequestException = UpstreamRefused


class AgentInvalidAuthException(AgentException):
    """An agent was refused for its credentials."""


class AgentInvalidResponseException(AgentException):
    """What an agent answered cannot be used."""


class AgentContentFilterException(AgentException):
    """A content filter stopped an agent."""


class IntegrationInvalidResponseException(IntegrationException):
    """What a service answered cannot be used."""


class IntegrationContentFilterException(IntegrationException):
    """A content filter stopped a service."""
