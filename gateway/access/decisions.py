"""`Profile`: decides what principals with the same scopes, roles and Cedar entity may use, and keeps the decisions.

A decision about a tool that depends on no arguments is one lookup in a dict. `AccessRules` holds the compiled roles and Cedar policies of
one configuration with the caches, so that a reload of the configuration invalidates both together.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.access.cedar_policies import CedarCall, CedarPolicies, CedarPrincipal
from gateway.access.roles import Role, RoleGrant, RoleVerdict, judge_roles, roles_of
from gateway.auth.principal import Principal
from gateway.json_types import JsonObject
from gateway.policy.argument_policy import ValueRules
from gateway.policy.caller_rights import ACCESS_RULE, ALLOWED, Decision, RightsKind
from gateway.policy.decision import PASS, Reject
from gateway.policy.scopes import ADMIN_SCOPE, OWN_SOURCE, covers_source, judge_scope

MAX_DECISIONS = 50_000
"""Maximum number of kept decisions about tools and prompts, in each of the two generations of the cache. The same number of decisions about
resources is kept separately, because a client chooses the URIs that it reads."""

MAX_PROFILES = 20_000
"""Maximum number of kept profiles, in each of the two generations of the cache."""

ValueT = TypeVar("ValueT")


class Generations(Generic[ValueT]):
    """A bounded cache. When `limit` entries are new, the entries that were not used since the previous limit are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._new: dict[Hashable, ValueT] = {}
        self._old: dict[Hashable, ValueT] = {}

    def get(self, key: Hashable) -> ValueT | None:
        """Return the kept value, or `None`."""
        found = self._new.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.keep(key, found)
        return found

    def keep(self, key: Hashable, value: ValueT) -> None:
        """Keep a value."""
        if len(self._new) >= self._limit:
            self._old, self._new = self._new, {}
        self._new[key] = value

    def __len__(self) -> int:
        return len(self._new) + len(self._old)


@dataclass(slots=True, eq=False)
class Conditions:
    """The conditions on the arguments of a tool's calls, compiled for the tool's schema on first use."""

    grants: tuple[RoleGrant, ...]
    """The roles that allow the tool. A call must fulfil the rules of one of them; empty if roles set no condition."""
    cedar: CedarCall | None
    """The Cedar policies that read arguments; `None` without any."""
    _schema: JsonObject | None = None
    _rules: tuple[ValueRules, ...] = ()

    def judge(self, arguments: JsonObject, schema: JsonObject) -> Reject | None:
        """Return why the arguments are not allowed; `None` if they are. `schema` is the tool's published input schema."""
        if self.grants:
            if self._schema is not schema:
                self._rules = tuple(ValueRules.build(grant.rules, schema) for grant in self.grants)
                self._schema = schema
            verdicts = [rules.judge(arguments) for rules in self._rules]
            if None not in verdicts:
                return verdicts[0]
        return None if self.cedar is None else self.cedar.judge(arguments)


@dataclass(frozen=True, slots=True)
class ConditionalDecision(Decision):
    """A decision that also depends on the arguments of each call."""

    conditions: Conditions | None = None

    @property
    def reads_arguments(self) -> bool:
        """Whether the decision depends on arguments: always."""
        return True

    def judge(self, arguments: JsonObject, schema: JsonObject) -> Reject | None:
        """Return why the arguments of a call are not allowed; `None` if they are."""
        return None if self.conditions is None else self.conditions.judge(arguments, schema)


_APPROVED_ONLY = Decision(needs_approval=True)


class AccessRules:
    """The compiled section `access` of one configuration, with the decisions that it led to."""

    def __init__(self, roles: tuple[Role, ...], default: str | None, cedar: CedarPolicies | None) -> None:
        self.roles = roles
        self.default = default
        self.cedar = cedar
        self.has_roles = bool(roles) or cedar is None
        """Whether roles decide. Without roles and Cedar policies, callers may use nothing: a deleted role must not open the gateway."""
        self.decisions: Generations[Decision] = Generations(MAX_DECISIONS)
        """Kept decisions about tools and prompts."""
        self.reads: Generations[Decision] = Generations(MAX_DECISIONS)
        """Kept decisions about resources."""
        self._profiles: Generations[Profile] = Generations(MAX_PROFILES)

    def profile_of(self, principal: Principal) -> Profile:
        """Return the profile of a principal. Principals that no rule distinguishes share one profile, and so the decisions."""
        roles = roles_of(principal, self.roles, self.default)
        entity = None if self.cedar is None else self.cedar.principal(principal)
        key = principal.scopes, tuple(role.name for role in roles), None if entity is None else entity.key
        profile = self._profiles.get(key)
        if profile is None:
            profile = Profile(self, principal.scopes, roles, entity)
            self._profiles.keep(key, profile)
        return profile


class Profile:
    """What principals with the same scopes, roles and Cedar entity may use."""

    __slots__ = ("_rules", "entity", "roles", "scopes")

    def __init__(self, rules: AccessRules, scopes: tuple[str, ...] | None, roles: tuple[Role, ...], entity: CedarPrincipal | None) -> None:
        self._rules = rules
        self.scopes = scopes
        self.roles = roles
        self.entity = entity

    @property
    def is_operator(self) -> bool:
        """Whether the scopes contain `admin` or, without scopes, a role makes the caller an operator."""
        if self.scopes is not None:
            return ADMIN_SCOPE in self.scopes
        return any(role.is_operator for role in self.roles)

    def decide(self, kind: RightsKind, source: str, name: str) -> Decision:
        """Decide about one item. `name` is the native name of the tool or prompt, or the native URI of the resource."""
        kept = self._rules.reads if kind == "resources" else self._rules.decisions
        key = self, kind, source, name
        decision = kept.get(key)
        if decision is None:
            decision = self._decide(kind, source, name)
            kept.keep(key, decision)
        return decision

    def _decide(self, kind: RightsKind, source: str, name: str) -> Decision:
        by_roles = self.judge_roles(kind, source, name)
        if by_roles is not None and (refused := _refused_by(by_roles, kind, source, name)) is not None:
            return Decision(refused)
        call: CedarCall | None = None
        if self.entity is not None:
            found = self.entity.decide(kind, source, name)
            if isinstance(found, Reject):
                return Decision(found)
            call = found if isinstance(found, CedarCall) else None
        by_scope = judge_scope(self.scopes, kind, source, name)
        if isinstance(by_scope, Reject):
            return Decision(by_scope)
        grants = () if by_roles is None or any(not grant.rules for grant in by_roles.grants) else by_roles.grants
        asks = by_roles is not None and bool(by_roles.approval_by)
        if grants or call is not None:
            return ConditionalDecision(PASS, asks, Conditions(grants, call))
        return _APPROVED_ONLY if asks else ALLOWED

    def judge_roles(self, kind: RightsKind, source: str, name: str) -> RoleVerdict | None:
        """Return what the roles of these principals decide about an item; `None` if only Cedar policies decide."""
        return judge_roles(self.roles, kind, source, name) if self._rules.has_roles else None

    def covers(self, source: str) -> bool:
        """Return whether something of a source may be allowed, so that texts for the caller may describe the source."""
        return covers_source(self.scopes, source) and not self.hides(source)

    def hides(self, source: str) -> bool:
        """Return whether the roles, or the heads of the Cedar policies, allow nothing of a source."""
        if source == OWN_SOURCE:
            return False
        if self.entity is not None and not self.entity.covers(source):
            return True
        if not self._rules.has_roles:
            return False
        if any(pattern.covers_all_of(source) for role in self.roles for pattern in role.deny):
            return True
        return not any(pattern.covers(source) for role in self.roles for pattern in role.allow)


def _refused_by(verdict: RoleVerdict, kind: RightsKind, source: str, name: str) -> Reject | None:
    if verdict.denied_by:
        return hidden(kind, source, name, f"`{verdict.denied_by}` denies it")
    if not verdict.grants:
        return hidden(kind, source, name, "no role of the caller allows it")
    return None


def hidden(kind: RightsKind, source: str, name: str, reason: str) -> Reject:
    """Return the verdict for an item that does not exist for the caller. The text is for operators; the caller does not receive it."""
    return Reject(ACCESS_RULE, f"{kind[:-1].capitalize()} {name[:200]!r} of {source!r} does not exist for this caller: {reason}.")
