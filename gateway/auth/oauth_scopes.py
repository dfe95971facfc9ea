"""Judges how the settings of issuers map OAuth scopes to scopes of the gateway, and which OAuth scopes challenges name."""

from __future__ import annotations

from gateway.config.auth_settings import InboundAuthSettings
from gateway.errors import ConfigError
from gateway.policy.decision import PASS
from gateway.policy.scopes import ADMIN_SCOPE, MAX_SCOPES, ScopeKind, judge_scope, scope_problem


def check_scopes(settings: InboundAuthSettings) -> None:
    """Check the scopes of the gateway that OAuth scopes grant.

    Raises:
        ConfigError: A scope is malformed, or a list has none or too many.
    """
    for index, issuer in enumerate(settings.issuers):
        for name, scopes in (issuer.scopes or {}).items():
            path = f"server.auth.issuers[{index}].scopes.{name}"
            if not 0 < len(scopes) <= MAX_SCOPES:
                raise ConfigError(f"{path}: write 1 to {MAX_SCOPES} scopes; remove the line if it grants nothing.", path=path)
            if problem := next(filter(None, map(scope_problem, scopes)), None):
                raise ConfigError(f"{path}: {problem}", path=path)


def scopes_for(settings: InboundAuthSettings, issuer: str, kind: ScopeKind, source: str, name: str) -> str | None:
    """Return an OAuth scope of `issuer` that would let its users use an item; `None` if no scope would.

    If several would, it is the one that grants least: without `admin`, and with the fewest scopes of the gateway.
    """
    entry = next((one for one in settings.issuers if one.issuer == issuer), None)
    mapping = {} if entry is None or entry.scopes is None else entry.scopes
    fitting = [scope for scope, granted in mapping.items() if judge_scope(granted, kind, source, name) is PASS]
    return min(fitting, key=lambda scope: (ADMIN_SCOPE in mapping[scope], "*" in mapping[scope], len(mapping[scope])), default=None)


def offered_scopes(settings: InboundAuthSettings, *, with_admin: bool) -> list[str]:
    """Return the OAuth scopes that the `scopes` of issuers name, in the order of the configuration.

    Without `with_admin`, those that make a caller an operator are left out.
    """
    named = {name: scopes for issuer in settings.issuers for name, scopes in (issuer.scopes or {}).items()}
    return [name for name, scopes in named.items() if with_admin or ADMIN_SCOPE not in scopes]
