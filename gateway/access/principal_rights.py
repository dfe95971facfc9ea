"""`Access`: gives principals their rights by the section `access` of the configuration in use.

The rights of a principal (`BoundRights`) refer to this object, so that a reload of the configuration changes the rights of callers whose
sessions, calls and tasks continue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path

from gateway.access.cedar_files import read_policies
from gateway.access.cedar_policies import CedarPolicies
from gateway.access.cedar_schema import validate
from gateway.access.decisions import AccessRules, Generations, Profile
from gateway.access.roles import read_roles
from gateway.auth.known_callers import Callers
from gateway.auth.principal import LOCAL, Principal
from gateway.config.access_settings import AccessSettings
from gateway.errors import ConfigError
from gateway.policy.caller_rights import Decision, RightsKind
from gateway.policy.scopes import ScopeRights

MAX_CALLERS = 20_000
"""Maximum number of callers whose principal with rights is kept, in each of the two generations of the cache."""


def compile_access(settings: AccessSettings | None, base_dir: Path) -> AccessRules | None:
    """Compile the section `access`; `None` without the section. Reads the Cedar files relative to `base_dir`, so it blocks.

    Raises:
        ConfigError: A pattern is malformed, or a Cedar file cannot be read or has an error; the error names the place.
    """
    if settings is None:
        return None
    policies = read_policies(settings.cedar, base_dir) if settings.cedar else ()
    for fault in validate(policies, {}) if policies else ():
        raise ConfigError(f"{fault.policy}: {fault.text}.", path="access.cedar")
    return AccessRules(read_roles(settings), settings.default, CedarPolicies(policies) if settings.cedar else None)


class Access:
    """Gives principals their rights. `renew` replaces the rules when the configuration changes."""

    def __init__(self) -> None:
        self.rules: AccessRules | None = None
        """The compiled section `access` of the configuration in use; `None` without the section."""
        self._bound: Generations[tuple[Principal, Principal]] = Generations(MAX_CALLERS)
        self._callers: Callers | None = None

    def judge(self, callers: Callers) -> None:
        """Give all callers their rights, as long as there are rules."""
        self._callers = callers
        self.renew(self.rules)

    def renew(self, rules: AccessRules | None) -> None:
        """Use these rules from now on, also for principals that already have rights."""
        self.rules = rules
        if self._callers is not None:
            self._callers.bind = None if rules is None else self.bind

    def bind(self, principal: Principal) -> Principal:
        """Return a principal with its rights by roles, Cedar policies and scopes. The local user stays unrestricted.

        Without the section `access`, the principal is returned unchanged: its scopes are its only restriction.
        """
        if self.rules is None or principal.id == LOCAL.id:
            return principal
        kept = self._bound.get(principal.id)
        if kept is not None and kept[0] is principal:
            return kept[1]
        bound = dataclasses.replace(principal, rights=BoundRights(self, principal))
        self._bound.keep(principal.id, (principal, bound))
        return bound


class BoundRights:
    """The rights of one principal by the current configuration. Implements `Rights`."""

    __slots__ = ("_access", "_principal", "_profile", "_rules", "_scopes")

    def __init__(self, access: Access, principal: Principal) -> None:
        self._access = access
        self._principal = principal
        self._rules: AccessRules | None = None
        self._profile: Profile | None = None
        self._scopes = None if principal.scopes is None else ScopeRights(principal.scopes)

    @property
    def profile(self) -> Profile | None:
        """The profile of the principal by the current rules; `None` if the configuration no longer has the section `access`."""
        rules = self._access.rules
        if rules is not self._rules:
            self._profile = None if rules is None else rules.profile_of(self._principal)
            self._rules = rules
        return self._profile

    @property
    def key(self) -> Hashable:
        """The profile: callers with the same profile see the same listings."""
        return self.profile or (None if self._scopes is None else self._scopes.key)

    @property
    def is_operator(self) -> bool:
        """Whether the scopes contain `admin` or, without scopes, a role makes the caller an operator."""
        profile = self.profile
        if profile is not None:
            return profile.is_operator
        return self._scopes is not None and self._scopes.is_operator

    @property
    def hides_items(self) -> bool:
        """Whether roles or Cedar policies apply, so that items that the caller may not use do not exist for it."""
        return self.profile is not None

    def decide(self, kind: RightsKind, source: str, name: str) -> Decision:
        """Decide about one item, by the rules and scopes together."""
        profile = self.profile
        if profile is not None:
            return profile.decide(kind, source, name)
        return Decision() if self._scopes is None else self._scopes.decide(kind, source, name)

    def covers(self, source: str) -> bool:
        """Return whether something of a source may be allowed."""
        profile = self.profile
        if profile is not None:
            return profile.covers(source)
        return self._scopes is None or self._scopes.covers(source)

    def hides(self, source: str) -> bool:
        """Return whether roles and Cedar policies allow nothing of a source."""
        profile = self.profile
        return profile is not None and profile.hides(source)
