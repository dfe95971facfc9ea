"""`gateway.security`: guards against prompt injection through tool results; experimental and opt-in.

Each tool result is labelled with its integrity (trusted or possibly written by outsiders) and confidentiality (who may see it). After
untrusted content, a call of a tool with external effects is refused or needs a person's approval. The key `security` of an agent file
does the same (docs/agents.md).
"""

from __future__ import annotations

from gateway.agents.middleware.information_flow import (
    LabelTrackingFunctionMiddleware,
    PolicyEnforcementFunctionMiddleware,
    SecureAgentConfig,
)
from gateway.policy.labels import (
    ConfidentialityLabel,
    ContentLabel,
    FlowRules,
    IntegrityLabel,
    check_confidentiality_allowed,
    combine_labels,
)

__all__ = [
    "ConfidentialityLabel",
    "ContentLabel",
    "FlowRules",
    "IntegrityLabel",
    "LabelTrackingFunctionMiddleware",
    "PolicyEnforcementFunctionMiddleware",
    "SecureAgentConfig",
    "check_confidentiality_allowed",
    "combine_labels",
]
