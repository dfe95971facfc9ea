"""`Role`: a role of `access.roles`, compiled. `judge_roles` decides by a principal's roles whether it may use an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.access.patterns import ItemPattern, read_pattern, read_tool_pattern
from gateway.auth.principal import Principal
from gateway.config.access_settings import AccessMember, AccessRole, AccessSettings
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import RightsKind
from gateway.policy.scopes import OWN_SOURCE, STATUS_NAMES


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the configuration, with parsed patterns."""

    name: str
    members: tuple[AccessMember, ...]
    allow: tuple[ItemPattern, ...]
    deny: tuple[ItemPattern, ...]
    arguments: tuple[tuple[ItemPattern, Mapping[str, JsonObject]], ...]
    """Pattern for tools → the rules for their arguments."""
    approval: tuple[ItemPattern, ...]
    is_operator: bool

    def allowing(self, kind: RightsKind, source: str, name: str) -> ItemPattern | None:
        """Return the first pattern that allows an item; `None` if none does."""
        return next((pattern for pattern in self.allow if pattern.allows(kind, source, name)), None)

    def denying(self, kind: RightsKind, source: str, name: str) -> ItemPattern | None:
        """Return the first pattern that denies an item; `None` if none does."""
        return next((pattern for pattern in self.deny if pattern.denies(kind, source, name)), None)

    def rules_for(self, source: str, name: str) -> tuple[tuple[str, str, JsonObject], ...]:
        """Return the rules for the arguments of a tool: argument, path of the rule in the configuration, and JSON Schema."""
        return tuple(
            (argument, f"access.roles.{self.name}.arguments.{pattern.written}.{argument}", rule)
            for pattern, rules in self.arguments
            if pattern.denies("tools", source, name)
            for argument, rule in rules.items()
        )


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role that allows an item, with the rules for the arguments of its calls."""

    role: str
    pattern: str
    """The pattern of `allow` that matches; empty for the gateway's own tools, which need none."""
    rules: tuple[tuple[str, str, JsonObject], ...]
    """Argument, path of the rule in the configuration, and JSON Schema."""


@dataclass(frozen=True, slots=True)
class RoleVerdict:
    """What the roles of a principal decide about one item."""

    grants: tuple[RoleGrant, ...] = ()
    """The roles that allow the item. A call must fulfil the rules of one of them. Empty: the item is not allowed."""
    denied_by: str = ""
    """Path of the pattern in the configuration that denies the item; empty if none does."""
    approval_by: str = ""
    """Path of the pattern in the configuration that requires an approval of calls; empty if none does."""


def read_roles(settings: AccessSettings) -> tuple[Role, ...]:
    """Compile the roles of the configuration, in their order. Raises `ConfigError` for a malformed pattern."""
    return tuple(_read_role(name, role) for name, role in settings.roles.items())


def _read_role(name: str, role: AccessRole) -> Role:
    place = f"access.roles.{name}"
    return Role(
        name,
        tuple(role.members),
        tuple(read_pattern(written, f"{place}.allow[{number}]") for number, written in enumerate(role.allow)),
        tuple(read_pattern(written, f"{place}.deny[{number}]") for number, written in enumerate(role.deny)),
        tuple((read_tool_pattern(written, f"{place}.arguments"), rules) for written, rules in role.arguments.items()),
        tuple(read_tool_pattern(written, f"{place}.approval[{number}]") for number, written in enumerate(role.approval)),
        role.operator,
    )


def roles_of(principal: Principal, roles: Sequence[Role], default: str | None) -> tuple[Role, ...]:
    """Return the roles that a principal has, in the order of the configuration; the role `default` if no other role names it."""
    found = tuple(role for role in roles if any(is_member(principal, member) for member in role.members))
    return found or tuple(role for role in roles if role.name == default)


def is_member(principal: Principal, member: AccessMember) -> bool:
    """Return whether a principal matches every key of an entry of `members`.

    An API key matches by its id or name. The name is the one that the operator gave to the key, and need not be unique.
    """
    if member.key is not None:
        return principal.kind == "key" and member.key in (principal.id.removeprefix("key:"), principal.name)
    if principal.kind != "user":
        return False
    return (
        (member.group is None or member.group in principal.groups)
        and (member.issuer is None or member.issuer == principal.issuer)
        and (member.subject is None or member.subject == principal.subject)
        and (member.client is None or member.client == principal.client)
        and (member.tenant is None or member.tenant == principal.tenant)
    )


def judge_roles(roles: Sequence[Role], kind: RightsKind, source: str, name: str) -> RoleVerdict:
    """Decide about one item. `name` is the native name of the tool or prompt, or the native URI of the resource.

    The gateway's own tools need no pattern in `allow`, except those with the status, because they show a caller only its own tasks,
    sessions and results.
    """
    for role in roles:
        if (pattern := role.denying(kind, source, name)) is not None:
            return RoleVerdict(denied_by=f"access.roles.{role.name}.deny[{role.deny.index(pattern)}]")
    if source == OWN_SOURCE and name not in STATUS_NAMES:
        return RoleVerdict(grants=(RoleGrant("", "", ()),))
    asking = ""
    grants = [
        RoleGrant(role.name, pattern.written, role.rules_for(source, name) if kind == "tools" else ())
        for role in roles
        if (pattern := role.allowing(kind, source, name)) is not None
    ]
    if kind == "tools" and grants:
        asking = next(
            (
                f"access.roles.{role.name}.approval[{number}]"
                for role in roles
                for number, pattern in enumerate(role.approval)
                if pattern.denies("tools", source, name)
            ),
            "",
        )
    return RoleVerdict(tuple(grants), approval_by=asking)
