"""`CedarPolicies`: decides by the Cedar policies of `access.cedar` what a principal may use.

cedarpy evaluates all conditions. This module first leaves out the policies whose head cannot match the principal, the action or the
resource, so that an evaluation reads a few policies and not the whole set. Policies that read no arguments are evaluated once for a
principal and an item, and `decisions` keeps the result. The others become a `CedarCall`, which evaluates them for each call.

Decided: a policy whose evaluation fails refuses the call. Because: Cedar ignores such a policy, so that a failing `forbid` would permit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.access.cedar_files import CedarPolicy, load_cedarpy
from gateway.auth.principal import Principal
from gateway.json_types import JsonObject, JsonValue, as_object, items_of
from gateway.policy.caller_rights import ACCESS_RULE, RightsKind
from gateway.policy.decision import Reject
from gateway.policy.scopes import OWN_SOURCE, STATUS_NAMES

if TYPE_CHECKING:
    import cedarpy

CEDAR_RULE = "access.cedar"
"""`Reject.rule` if Cedar policies do not permit the arguments of a call."""

MAX_SETS = 5_000
"""Maximum number of reduced policy sets that are kept parsed. At the limit, all are dropped."""

MAX_DEPTH = 32
"""Maximum nesting of an argument that Cedar policies read. A deeper argument refuses the call."""

ACTIONS: dict[RightsKind, str] = {"tools": "call", "resources": "read", "prompts": "get"}
"""Kind of item → the Cedar action. A tool's own action `SOURCE/NAME` is in the action `call`."""

ITEM_TYPES: dict[RightsKind, str] = {"tools": "Tool", "resources": "Resource", "prompts": "Prompt"}
"""Kind of item → the type of its Cedar entity."""

_ESCAPES = frozenset({"__entity", "__extn", "__expr"})
"""Keys of JSON objects that Cedar reads as something other than a record. Arguments must not contain them."""

_LARGEST_DECIMAL = 922_337_203_685_477
_LARGEST_LONG = 2**63 - 1

Uid = tuple[str, str]
"""Type and id of a Cedar entity."""


class Unconvertible(Exception):
    """Raised if an argument has no form in Cedar."""


@dataclass(frozen=True, slots=True)
class _Item:
    """The Cedar entities of one item: the action, the resource, and what they belong to."""

    action: Uid
    resource: Uid
    entities: tuple[JsonObject, ...]
    actions: frozenset[Uid]
    """The action, and the actions that it belongs to."""
    resources: frozenset[Uid]
    """The resource, and its source."""


class CedarPolicies:
    """The Cedar policies of one configuration, parsed once. Create an object for each principal with `principal`."""

    def __init__(self, policies: Sequence[CedarPolicy]) -> None:
        """Store the policies. They were parsed when their files were read; the sets of them are parsed on first use."""
        self.policies = tuple(policies)
        self._sets: dict[tuple[str, ...], cedarpy.PolicySet] = {}

    def principal(self, principal: Principal) -> CedarPrincipal:
        """Return the object that decides for a principal."""
        return CedarPrincipal(self, principal)

    def evaluate(self, policies: Sequence[CedarPolicy], request: JsonObject, entities: str, *, permits: bool = False) -> CedarResult:
        """Evaluate some of the policies. `entities` is JSON. With `permits`, a policy that permits everything is added."""
        key = (*(policy.id for policy in policies), "*" if permits else "")
        parsed = self._sets.get(key)
        if parsed is None:
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()
            parsed = self._sets[key] = self._parsed(policies, permits=permits)
        outcome = load_cedarpy().is_authorized(request, parsed, entities)
        return CedarResult(outcome.allowed, tuple(outcome.diagnostics.reasons), tuple(outcome.diagnostics.errors))

    def _parsed(self, policies: Sequence[CedarPolicy], *, permits: bool) -> cedarpy.PolicySet:
        bodies: JsonObject = {policy.id: policy.body for policy in policies}
        if permits:
            everything = {"op": "All"}
            bodies[""] = {"effect": "permit", "principal": everything, "action": everything, "resource": everything, "conditions": []}
        return load_cedarpy().PolicySet.from_json_str(json.dumps({"staticPolicies": bodies, "templates": {}, "templateLinks": []}))


@dataclass(frozen=True, slots=True)
class CedarResult:
    """The result of an evaluation."""

    is_allowed: bool
    reasons: tuple[str, ...]
    """Ids of the policies that determined the result."""
    errors: tuple[str, ...]


class CedarPrincipal:
    """Decides by Cedar policies for one principal."""

    def __init__(self, cedar: CedarPolicies, principal: Principal) -> None:
        self._cedar = cedar
        self.uid, self._entities = entities_of(principal)
        self.key: Hashable = json.dumps(self._entities, sort_keys=True)
        """A value that is equal for principals whom no policy distinguishes."""
        own = frozenset({self.uid, *(("Group", group) for group in principal.groups if self.uid[0] == "User")})
        self._policies = [policy for policy in cedar.policies if may_match(policy.principal, self.uid, own)]

    def covers(self, source: str) -> bool:
        """Return whether a policy may permit something of a source."""
        return any(policy.effect == "permit" and _concerns(policy.resource, source) for policy in self._policies)

    def decide(self, kind: RightsKind, source: str, name: str) -> Reject | CedarCall | None:
        """Decide about one item. Return the refusal, the condition on the arguments of calls, or `None` for an item without conditions.

        The gateway's own tools and resources need no permission, except those with the status.
        """
        item = _item(kind, source, name)
        found = [
            policy
            for policy in self._policies
            if may_match(policy.action, item.action, item.actions) and may_match(policy.resource, item.resource, item.resources)
        ]
        needs_none = source == OWN_SOURCE and name not in STATUS_NAMES
        plain = [policy for policy in found if not policy.reads_context]
        readers = [policy for policy in found if policy.reads_context]
        request = self._request(item)
        entities = json.dumps([*self._entities, *item.entities])
        permitted = needs_none
        if plain:
            result = self._cedar.evaluate(plain, {**request, "context": {}}, entities, permits=needs_none)
            if result.errors or (result.reasons and not result.is_allowed):
                return _hidden(kind, source, name, result)
            permitted = permitted or result.is_allowed
        if not permitted and not any(policy.effect == "permit" for policy in readers):
            return _hidden(kind, source, name, None)
        if not readers:
            return None
        call = CedarCall(self._cedar, tuple(readers), request, entities, permits=permitted)
        if kind == "tools":
            return call
        verdict = call.judge({})  # reads have no arguments
        return None if verdict is None else Reject(ACCESS_RULE, verdict.reason)

    def _request(self, item: _Item) -> JsonObject:
        uids = {"principal": self.uid, "action": item.action, "resource": item.resource}
        return {part: {"type": uid[0], "id": uid[1]} for part, uid in uids.items()}


@dataclass(frozen=True, slots=True)
class CedarCall:
    """The policies that read the arguments of calls of one tool by one principal."""

    cedar: CedarPolicies
    policies: tuple[CedarPolicy, ...]
    request: JsonObject
    entities: str
    permits: bool
    """Whether policies that read no arguments permit the call, so that these policies can only forbid it."""

    def judge(self, arguments: JsonObject) -> Reject | None:
        """Return why the policies refuse a call with these arguments; `None` if they permit it."""
        record: JsonObject = {}
        for name, value in arguments.items():
            try:
                if value is not None:
                    record[name] = to_cedar(value)
            except Unconvertible as problem:
                if any(name in policy.attributes for policy in self.policies):
                    return Reject(CEDAR_RULE, f"Argument {name[:60]!r} {problem}, so the policies for this tool cannot be evaluated.")
        request = {**self.request, "context": {"arguments": record}}
        result = self.cedar.evaluate(self.policies, request, self.entities, permits=self.permits)
        if result.errors:
            return Reject(CEDAR_RULE, "A policy for this tool cannot be evaluated for these arguments.")
        if result.is_allowed:
            return None
        forbidding = ", ".join(reason for reason in result.reasons if reason)
        return Reject(CEDAR_RULE, f"Forbidden by {forbidding}." if forbidding else "No policy permits a call with these arguments.")


def entities_of(principal: Principal) -> tuple[Uid, list[JsonObject]]:
    """Return the uid of the Cedar entity of a principal, and the entity with its groups.

    A user is `User::"ISSUER|SUBJECT"`, an API key `Key::"ID"`, and the local user `Local::"local"`.
    """
    scopes: JsonObject = {} if principal.scopes is None else {"scopes": list(principal.scopes)}
    if principal.kind == "user":
        uid = "User", f"{principal.issuer}|{principal.subject}"
        groups = [("Group", group) for group in principal.groups]
        attributes: JsonObject = {
            "issuer": principal.issuer,
            "subject": principal.subject,
            "client": principal.client,
            "tenant": principal.tenant,
            "groups": list(principal.groups),
            **scopes,
        }
        return uid, [_entity(uid, attributes, groups), *(_entity(group, {}) for group in groups)]
    if principal.kind == "key":
        uid = "Key", principal.id.removeprefix("key:")
        return uid, [_entity(uid, {"name": principal.name, **scopes})]
    uid = "Local", "local"
    return uid, [_entity(uid, {})]


def _item(kind: RightsKind, source: str, name: str) -> _Item:
    above = "Action", ACTIONS[kind]
    action = ("Action", f"{source}/{name}") if kind == "tools" else above
    resource, home = (ITEM_TYPES[kind], f"{source}/{name}"), ("Source", source)
    entities = [_entity(resource, {"source": source, "name": name}, [home]), _entity(home, {})]
    entities.append(_entity(action, {}, [above] if kind == "tools" else []))
    if kind == "tools":
        entities.append(_entity(above, {}))
    return _Item(action, resource, tuple(entities), frozenset({action, above}), frozenset({resource, home}))


def _entity(uid: Uid, attributes: JsonObject, parents: Iterable[Uid] = ()) -> JsonObject:
    return {"uid": _uid(uid), "attrs": attributes, "parents": [_uid(parent) for parent in parents]}


def _uid(uid: Uid) -> JsonObject:
    return {"type": uid[0], "id": uid[1]}


def may_match(condition: JsonObject, uid: Uid, above: frozenset[Uid]) -> bool:
    """Return whether a condition in a policy's head may hold for an entity. `above` has its uid and those of its ancestors.

    A condition of an unknown form may hold: cedarpy decides.
    """
    match condition.get("op"):
        case "==":
            return _named(condition) is None or uid in (_named(condition) or ())
        case "in":
            named = _named(condition)
            return named is None or not above.isdisjoint(named)
        case "is":
            if condition.get("entity_type") != uid[0]:
                return False
            inside = as_object(condition.get("in"))
            named = None if inside is None else _named(inside)
            return named is None or not above.isdisjoint(named)
        case _:
            return True


def _named(condition: JsonObject) -> frozenset[Uid] | None:
    """Return the entities that a condition names; `None` if its form is unknown."""
    listed = items_of(condition.get("entities")) if "entities" in condition else [condition.get("entity")]
    found: set[Uid] = set()
    for value in listed:
        entity = as_object(value)
        entity = (as_object(entity.get("__entity")) or entity) if entity is not None else None
        if entity is None or "type" not in entity or "id" not in entity:
            return None
        found.add((str(entity["type"]), str(entity["id"])))
    return frozenset(found)


def _concerns(condition: JsonObject, source: str) -> bool:
    """Return whether a condition on the resource may hold for an item of a source."""
    named = _named(condition) if condition.get("op") in ("==", "in") else None
    if condition.get("op") == "is" and (inside := as_object(condition.get("in"))) is not None:
        named = _named(inside)
    return named is None or any(uid == ("Source", source) or uid[1].startswith(f"{source}/") for uid in named)


def to_cedar(value: JsonValue, depth: int = 0) -> JsonValue:
    """Return the form of a JSON value in Cedar: a list becomes a set, a fraction a decimal, and `null` members are left out.

    Raises:
        Unconvertible: The value has no form in Cedar.
    """
    if depth > MAX_DEPTH:
        raise Unconvertible(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_LONG:
        raise Unconvertible("is a number that is too large")
    if isinstance(value, list):
        return [to_cedar(item, depth + 1) for item in items_of(value) if item is not None]
    if (members := as_object(value)) is not None:
        if not _ESCAPES.isdisjoint(members):
            raise Unconvertible("has a member with a reserved name")
        return {name: to_cedar(member, depth + 1) for name, member in members.items() if member is not None}
    return value


def _number(value: float) -> JsonValue:
    """Return a fraction as a Cedar `decimal`, and a whole number that JSON wrote as a fraction as a `Long`."""
    if not math.isfinite(value) or abs(value) > _LARGEST_DECIMAL:
        raise Unconvertible("is a number that is too large")
    if value.is_integer():
        return int(value)
    text = f"{value:.4f}"
    if float(text) != value:
        raise Unconvertible("is a number with more than four decimal places")
    return {"__extn": {"fn": "decimal", "arg": text}}


def _hidden(kind: RightsKind, source: str, name: str, result: CedarResult | None) -> Reject:
    if result is None:
        why = "no Cedar policy permits it"
    elif result.errors:
        why = f"a Cedar policy cannot be evaluated ({result.errors[0][:200]})"
    else:
        why = f"{', '.join(result.reasons)} forbids it"
    return Reject(ACCESS_RULE, f"{kind[:-1].capitalize()} {name[:200]!r} of {source!r} does not exist for this caller: {why}.")
