"""The exception tree under agent-framework's names."""

from __future__ import annotations

import pytest

import gateway
from gateway import exceptions


@pytest.mark.requirement("EX1")
@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("AgentException", "AgentFrameworkException"),
        ("ChatClientException", "AgentFrameworkException"),
        ("IntegrationException", "AgentFrameworkException"),
        ("ContentError", "AgentFrameworkException"),
        ("ToolException", "AgentFrameworkException"),
        ("ToolExecutionException", "ToolException"),
        ("UserInputRequiredException", "ToolException"),
        ("MiddlewareException", "AgentFrameworkException"),
        ("MiddlewareTermination", "MiddlewareException"),
        ("MiddlewareFailure", "MiddlewareException"),
        ("WorkflowException", "AgentFrameworkException"),
        ("WorkflowRunnerException", "WorkflowException"),
        ("WorkflowConvergenceException", "WorkflowRunnerException"),
        ("WorkflowCheckpointException", "WorkflowRunnerException"),
        ("SettingNotFoundError", "AgentFrameworkException"),
        ("AgentInvalidRequestException", "AgentException"),
        ("AgentInvalidResponseException", "AgentException"),
        ("IntegrationInitializationError", "IntegrationException"),
        ("IntegrationInvalidAuthException", "IntegrationException"),
        ("IntegrationInvalidRequestException", "IntegrationException"),
    ],
)
def test_errors_have_agent_frameworks_names_and_hierarchy(name: str, base: str) -> None:
    found = [getattr(home, name) for home in (gateway, exceptions) if hasattr(home, name)]
    assert found and all(issubclass(one, getattr(gateway, base)) for one in found)


def test_error_names_its_cause_as_agent_framework_does() -> None:
    cause = ValueError("inner")
    error = gateway.ToolException("outer", inner_exception=cause)
    assert str(error) == "outer" and error.__cause__ is cause
