"""The exception tree under agent-framework's names."""

from __future__ import annotations

import pytest

import gateway


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
        ("WorkflowConvergenceException", "WorkflowException"),
        ("WorkflowCheckpointException", "WorkflowException"),
    ],
)
def test_errors_of_agent_framework_have_their_names_and_their_order(name: str, base: str) -> None:
    assert issubclass(getattr(gateway, name), getattr(gateway, base))
