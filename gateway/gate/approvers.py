"""`Approvers`: decides, from the current configuration, who approves calls by default, and which principals may approve calls at all.

`Approvals` uses it if the policy of a source names no approver; the catalog uses it to show the tool `review_approvals`.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.auth.known_callers import Callers
from gateway.auth.principal import Principal, is_operator
from gateway.config.models import GatewayConfig
from gateway.config.policies import ApprovalBy
from gateway.policy.approval_policy import approvers_of


class Approvers:
    """Decides who must approve a call if the policy of the tool's source does not set `approval.by`: the caller or an operator."""

    def __init__(self, config: Callable[[], GatewayConfig], callers: Callers) -> None:
        """Store the arguments. `config` returns the current configuration."""
        self._config = config
        self._callers = callers

    def chosen(self) -> ApprovalBy | None:
        """Return the setting `server.approvalBy`, or `None` if it is not set."""
        return self._config().server.approval_by

    def default(self) -> ApprovalBy:
        """Return who must approve a call (the caller or an operator) if the policy of the tool's source does not set `approval.by`."""
        return self.chosen() or ("operator" if self._callers.are_required() else "caller")

    def may_review(self, principal: Principal) -> bool:
        """Whether a principal may approve calls: an operator always, another principal if some policy does not require an operator."""
        return is_operator(principal) or bool(approvers_of(self._config(), self.default()) - {"operator"})
