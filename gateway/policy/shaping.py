"""Applies an operator's overrides (`policies.<source>.overrides`), which change a tool's published name, texts and arguments.

The functions are pure. `policy.argument_policy` uses them to override arguments, `catalog` to override names, and `gate.published` to
override texts. Schemas come from remote servers, so every walk over a schema is bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from gateway.config.policies import ToolOverride
from gateway.json_types import JsonObject, JsonValue, as_object, items_of, mapped, members_of
from gateway.policy.tool_schemas import APPLICATORS, LISTS, declared_names, resolve_local

FRAMEWORK_NAMES = frozenset({
    "chat_options", "tools", "tool_choice", "session", "thread", "conversation_id", "options", "response_format",
})  # fmt: skip
"""Names that agent frameworks use for their own parameters.

A caller may pass an argument with one of these names to a remote server only if `additionalArguments` of the policy lists it. The fixed or
default value of an override is sent in any case.
"""

NO_NAMES: frozenset[str] = frozenset()
"""Empty set, used in place of `FRAMEWORK_NAMES` for the gateway's own tools, whose authors may choose any argument names."""

_MAX_PRUNED_NODES = 5_000
_MAX_PRUNED_DEPTH = 64
"""Maximum depth at which a schema is searched for an argument to remove. A deeper argument stays published, but is never accepted."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Values from an operator's override that the gateway adds to the arguments of every call of a tool."""

    defaults: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Values to send for arguments that the caller leaves out, by name of the argument."""
    fixed: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Values of arguments that are always sent, in place of the caller's values, by name of the argument."""

    def fill(self, arguments: JsonObject) -> JsonObject:
        """Return a new object: `arguments` with the fixed values, and with defaults for missing arguments. The added values are copies."""
        return {**copy.deepcopy(self.defaults), **arguments, **copy.deepcopy(self.fixed)}


@dataclass(frozen=True, slots=True)
class ArgumentPlan:
    """Says which arguments of a tool a caller may pass, and which values the gateway adds."""

    accepted: frozenset[str]
    """Names of the arguments that a caller may pass."""
    withheld: Mapping[str, str]
    """Arguments that the tool declares or `additionalArguments` lists, but a caller may not pass → id of the rule that forbids each."""
    filling: Filling | None = None
    """Values to add to the arguments of every call; `None` if no values are added."""


def plan_arguments(
    tool_name: str, declared: frozenset[str], extra: frozenset[str], denied: frozenset[str], override: ToolOverride | None
) -> ArgumentPlan:
    """Decide for each argument of a tool whether a caller may pass it, and which values the gateway adds.

    `tool_name` is the tool's name at its source. `declared` are the arguments in the tool's schema, and `extra` the names in
    `additionalArguments` of the policy. A caller may pass all of them, with two exceptions. Names in `denied`, which agent frameworks use
    for their own parameters, are accepted only if they are in `extra`. Arguments that the override hides or sets to a fixed value are not
    accepted.

    The gateway adds the override's fixed and default values, but only for arguments in `declared` or `extra`.
    """
    known = declared | extra
    withheld = dict.fromkeys(sorted((declared & denied) - extra), "frameworkNames")
    if override is None:
        return ArgumentPlan(known - withheld.keys(), withheld)
    path = f"overrides.{tool_name}"
    withheld |= {name: f"{path}.hide" for name in override.hide if name in known}
    fixed = {name: value for name, value in override.fixed.items() if name in known}
    withheld |= dict.fromkeys(fixed, f"{path}.fixed")
    accepted = known - withheld.keys()
    defaults = {name: value for name, value in override.defaults.items() if name in known and name not in fixed}
    filling = Filling(defaults, fixed) if fixed or defaults else None
    return ArgumentPlan(accepted, withheld, filling)


def with_properties(schema: JsonObject) -> JsonObject:
    """Return `schema`, the schema of a tool, or a copy with `properties: {}` if its `properties` cannot be read.

    The copy is returned if `properties` is not an object, or if it is missing and no other part of the schema declares an argument.
    """
    if isinstance(schema.get("properties"), dict) or ("properties" not in schema and declared_names(schema)):
        return schema
    return {**schema, "properties": {}}


def without_arguments(schema: JsonObject, gone: Iterable[str], optional: Iterable[str] = ()) -> JsonObject:
    """Return a tool's schema without the arguments in `gone`, and with the arguments in `optional` no longer `required`.

    Return the same object if nothing changes. Subschemas that apply to the arguments (`allOf`, `if` and others) are changed too. If a local
    `$ref` points to a part that must change, a changed copy of the part replaces the `$ref`.
    """
    taken = frozenset(gone)
    lenient = taken | frozenset(optional)
    return _Pruner(schema, taken, lenient).prune(schema, 0, ()) if lenient else schema


class _Pruner:
    """Removes arguments from a tool's schema in one walk. Parts of the schema in which nothing changes stay the original objects."""

    def __init__(self, root: JsonObject, gone: frozenset[str], lenient: frozenset[str]) -> None:
        self._root = root
        self._gone = gone
        self._lenient = lenient
        self._left = _MAX_PRUNED_NODES

    def prune(self, node: JsonObject, depth: int, refs: tuple[str, ...]) -> JsonObject:
        self._left -= 1
        if depth > _MAX_PRUNED_DEPTH or self._left < 0:
            return node
        changed: JsonObject = {}
        self._names(node, changed)
        for key in APPLICATORS:
            branch = as_object(node.get(key))
            if branch is not None and (pruned := self.prune(branch, depth + 1, refs)) is not branch:
                changed[key] = pruned
        for key in LISTS:
            branches = items_of(node.get(key))
            pruned = mapped(branches, lambda branch: self._branch(branch, depth, refs))
            if pruned is not branches:
                changed[key] = pruned
        self._dependencies(node, changed, depth, refs)
        result = {**node, **changed} if changed else node
        if result.get("required") == [] and "required" in changed:
            result = {key: value for key, value in result.items() if key != "required"}
        return self._reference(result, depth, refs)

    def _branch(self, branch: JsonValue, depth: int, refs: tuple[str, ...]) -> JsonValue:
        node = as_object(branch)
        return branch if node is None else self.prune(node, depth + 1, refs)

    def _names(self, node: JsonObject, changed: JsonObject) -> None:
        properties = as_object(node.get("properties"))
        if properties is not None and not self._gone.isdisjoint(properties):
            changed["properties"] = {name: value for name, value in properties.items() if name not in self._gone}
        required = node.get("required")
        if isinstance(required, list) and (kept := self._still_required(required)) != required:
            changed["required"] = kept

    def _still_required(self, names: JsonValue) -> list[JsonValue]:
        return [name for name in cast("list[JsonValue]", names) if not isinstance(name, str) or name not in self._lenient]

    def _dependencies(self, node: JsonObject, changed: JsonObject, depth: int, refs: tuple[str, ...]) -> None:
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            written = as_object(node.get(key))
            if written is None:
                continue
            kept: JsonObject = {}
            for name, value in written.items():
                if name not in self._gone:
                    kept[name] = self._still_required(value) if isinstance(value, list) else self._branch(value, depth, refs)
            if len(kept) != len(written) or any(kept[name] is not written[name] and kept[name] != written[name] for name in kept):
                changed[key] = kept

    def _reference(self, node: JsonObject, depth: int, refs: tuple[str, ...]) -> JsonObject:
        ref = node.get("$ref")
        if not isinstance(ref, str) or ref in refs:
            return node
        target = as_object(resolve_local(self._root, ref))
        if target is None or (pruned := self.prune(target, depth + 1, (*refs, ref))) is target:
            return node
        rest = {key: value for key, value in node.items() if key != "$ref"}
        rest["allOf"] = [*items_of(rest.get("allOf")), pruned]
        return rest


def with_defaults(schema: JsonObject, defaults: JsonObject) -> JsonObject:
    """Return a tool's schema with the operator's default values as the keyword `default` of the declared arguments."""
    properties = members_of(schema.get("properties"))
    filled: JsonObject = {}
    for name, value in defaults.items():
        if name in properties:
            node = {} if properties[name] is True else as_object(properties[name])
            filled[name] = properties[name] if node is None else {**node, "default": value}
    return {**schema, "properties": {**properties, **filled}} if filled else schema


# -- names and texts -----------------------------------------------------------------------------------------------


def shown_texts(
    title: str | None, description: str | None, annotations: JsonObject | None, override: ToolOverride
) -> tuple[str | None, str | None, JsonObject | None]:
    """Return a tool's title, description and annotations, in which the texts of the operator's override replace the server's texts.

    A new title also replaces `annotations.title`, which older clients show.
    """
    if override.title is not None and annotations is not None and "title" in annotations:
        annotations = {**annotations, "title": override.title}
    return override.title or title, override.description or description, annotations


def public_names(natives: Iterable[str], overrides: Mapping[str, ToolOverride]) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the published names of a source's tools, and the tools that cannot be published because their new name is in use.

    `natives` are the tools' names at the source. The first result maps each tool that can be published to its published name, without the
    source's prefix. The second result maps each other tool to a pair: its new name in the override, and the tool that already uses this
    name (its name at the source). A tool without a new name keeps its name. If two overrides give the same name, the first tool in
    `natives` gets it.
    """
    listed = list(natives)
    renamed = {name: new for name in listed if (o := overrides.get(name)) is not None and (new := o.name) is not None and new != name}
    taken = {name: name for name in listed if name not in renamed}
    lost: dict[str, tuple[str, str]] = {}
    for native, new in renamed.items():
        if new in taken:
            lost[native] = (new, taken[new])
        else:
            taken[new] = native
    return {native: renamed.get(native, native) for native in listed if native not in lost}, lost
