from gateway.agents.middleware.information_flow import (
    LabelTrackingFunctionMiddleware as LabelTrackingFunctionMiddleware,
    PolicyEnforcementFunctionMiddleware as PolicyEnforcementFunctionMiddleware,
    SecureAgentConfig as SecureAgentConfig,
)
from gateway.policy.labels import (
    ConfidentialityLabel as ConfidentialityLabel,
    ContentLabel as ContentLabel,
    FlowRules as FlowRules,
    IntegrityLabel as IntegrityLabel,
    check_confidentiality_allowed as check_confidentiality_allowed,
    combine_labels as combine_labels,
)
