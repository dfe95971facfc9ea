"""`gateway.security`: defence against what tool results make a model do; experimental and opt-in.

Results are labelled by integrity (may somebody outside have written them) and confidentiality (who may see them); after
untrusted content a call of a tool that acts on the world is refused or needs a person's approval. In an agent file the key
`security` does the same (docs/agents.md).
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
