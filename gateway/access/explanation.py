"""Explains for `moongate policy explain --as` why a principal may or may not use an item.

It asks the same rights as the gate. `principal_of` reads the names of callers that operators write on the command line and in files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.access.principal_rights import Access, BoundRights
from gateway.auth.api_keys import KeyInfo
from gateway.auth.principal import LOCAL, Principal
from gateway.errors import NotFound
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.caller_rights import Decision, RightsKind, is_hidden
from gateway.policy.decision import Reject


@dataclass(frozen=True, slots=True)
class CallerSpec:
    """A caller as an operator names it, for questions about its rights."""

    text: str
    """`local`, `key:ID` or `key:NAME`, or the subject of a user."""
    issuer: str = ""
    groups: Sequence[str] = ()
    client: str = ""
    tenant: str = ""
    scopes: Sequence[str] | None = None
    """Scopes of the caller's access token; `None` if they do not restrict it. An API key has its own scopes."""


def principal_of(spec: CallerSpec, keys: Sequence[KeyInfo]) -> Principal:
    """Return the principal that an operator names, without rights by the configuration (`Access.bind` adds them).

    Raises:
        NotFound: No API key has the id or name (kind `key`).
    """
    if spec.text == LOCAL.id:
        return LOCAL
    if spec.text.startswith("key:"):
        wanted = spec.text.removeprefix("key:")
        found = [key for key in keys if wanted == key.id] or [key for key in keys if wanted == key.name]
        if not found:
            raise NotFound("key", wanted, f"No API key has the id or name {wanted!r}; `moongate keys list` shows the keys.")
        return found[-1].principal
    digest = hashlib.sha256("\0".join((spec.issuer, spec.text, spec.client)).encode()).hexdigest()[:32]
    scopes = None if spec.scopes is None else tuple(spec.scopes)
    user = Principal(f"user:{digest}", spec.text, scopes, kind="user", issuer=spec.issuer, subject=spec.text, client=spec.client)
    return replace(user, groups=tuple(sorted(spec.groups)), tenant=spec.tenant)


@dataclass(frozen=True, slots=True)
class AccessExplanation:
    """Why a caller may or may not use an item."""

    principal: str
    roles: tuple[str, ...]
    """The roles of the caller; empty without roles."""
    decision: Decision
    refused: Reject | None
    """The refusal; `None` if the caller may use the item, with the given arguments."""
    approval_by: str
    """Path of the pattern that requires an approval; empty if none does."""

    @property
    def is_hidden(self) -> bool:
        """Whether the item does not exist for the caller."""
        return is_hidden(self.refused)

    def to_json(self) -> JsonObject:
        """Return the JSON object that `moongate policy explain --json` prints under `access`."""
        refused = self.refused
        verdict: JsonValue = "allowed" if refused is None else "hidden" if self.is_hidden else "refused"
        return {
            "principal": self.principal,
            "roles": list(self.roles),
            "verdict": verdict,
            "rule": None if refused is None else refused.rule,
            "reason": None if refused is None else refused.reason,
            "approval": self.approval_by or None,
        }


def explain_access(
    access: Access, principal: Principal, item: tuple[RightsKind, str, str], call: tuple[Mapping[str, JsonValue], JsonObject] | None
) -> AccessExplanation:
    """Return why a principal may or may not use an item: its kind, source, and native name or URI.

    `call` has the arguments of a tool's call as they reach the tool, and the tool's published input schema; `None` to judge no arguments.
    """
    bound = access.bind(principal)
    rights = bound.rights
    decision = Decision() if rights is None else rights.decide(*item)
    refused = decision.verdict if isinstance(decision.verdict, Reject) else None
    if refused is None and call is not None:
        refused = decision.judge(dict(call[0]), call[1])
    profile = rights.profile if isinstance(rights, BoundRights) else None
    by_roles = None if profile is None else profile.judge_roles(*item)
    roles = () if profile is None else tuple(role.name for role in profile.roles)
    return AccessExplanation(principal.id, roles, decision, refused, "" if by_roles is None else by_roles.approval_by)
